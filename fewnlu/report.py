"""python -m fewnlu.report show|sensitivity|compare|leaderboard|export DIR…: what the records of sweeps say."""

from __future__ import annotations

import argparse
import sys

from fewnlu.errors import FewnluError
from fewnlu.reporting.commands import add_commands, run


def main(argv: list[str] | None = None) -> None:
    """Entry point; exit status 0, 1 where a run failed, 2 where a folder holds no records."""
    parser = argparse.ArgumentParser(prog="python -m fewnlu.report", description="Reports from the records of sweeps.")
    commands = parser.add_subparsers(dest="command", required=True)
    add_commands(commands)
    args = parser.parse_args(argv)
    try:
        sys.exit(run(args))
    except FewnluError as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
