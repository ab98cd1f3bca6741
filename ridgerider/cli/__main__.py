"""`python -m ridgerider.cli`."""

from ridgerider.cli import main

main()
