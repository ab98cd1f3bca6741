"""The search, in plain Python and NumPy: the tree, the run file, and the loop over legs."""
