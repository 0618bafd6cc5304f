"""`python -m langevin`."""

from langevin.cli import main

main()
