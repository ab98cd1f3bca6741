"""What `ridgerider bench` measures: ratios of one run against what one would use instead."""
