"""`python -m ladder.core.installed MODULE...`, by which `make` checks the Python that it was given."""

import importlib.util
import sys

from ladder.core import starting


def main() -> int:
    """Print one line about the first missing module and how to get it. Return the exit status, 0 or 2."""
    for name in sys.argv[1:]:
        if importlib.util.find_spec(name) is None:
            package = starting.PACKAGES.get(name, name)
            python = starting.shorten_path(sys.executable)
            install = f"`{starting.install_command(python)}`, or make without NO_VENV=1"
            print(f"make: {package} is not installed for {python}: {install}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
