"""`python -m langevin`."""

from langevin.cli.main import main

main()
