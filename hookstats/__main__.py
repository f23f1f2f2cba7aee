"""`python -m hookstats`: the command line."""

from hookstats.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
