"""`python -m ladder` is the `ladder` command."""

from ladder.cli import main

if __name__ == "__main__":
    main(prog_name="ladder")
