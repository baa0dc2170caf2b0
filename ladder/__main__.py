"""`python -m ladder`, and the console command `ladder`.

Only the standard library is read until missing packages are known. The syntax is that of Python 3.6.
"""

import sys

from ladder.base import starting


def main() -> None:
    """Run the command line. A Python that is too old or lacks a package ends it with one line and status 2."""
    starting.watch()
    from ladder.base import stopping

    stopping.count_once()
    from ladder.cli.main import main as command

    note = starting.another_checkout() if starting.program() == "ladder" else None
    if note:
        print("ladder:", note, file=sys.stderr)
    command(prog_name=starting.program())


if __name__ == "__main__":
    main()
