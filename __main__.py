"""`python -m rsn` is the `rsn` command."""

from .host.cli import main

if __name__ == "__main__":
    main(prog_name="rsn")
