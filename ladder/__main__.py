"""`python -m ladder`, and the console command `ladder`.

Only the standard library is read until missing packages are known. The syntax is that of Python 3.6.
"""

from ladder.core import starting


def main() -> None:
    """Run the command line. A Python that is too old or lacks a package ends it with one line and status 2."""
    starting.check_python()
    from ladder.cli.main import main as command

    command(prog_name=starting.program_name())


if __name__ == "__main__":
    main()
