"""`python -m langevin`."""

from langevin.cli.main import main

if __name__ == "__main__":
    main()
