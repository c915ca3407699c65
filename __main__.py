"""`python -m rsn` is the `rsn` command."""

from .cli.main import main

if __name__ == "__main__":
    main(prog_name="rsn")
