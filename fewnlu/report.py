"""python -m fewnlu.report show|status|sensitivity|compare|leaderboard|export DIR…: what the records of sweeps say."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fewnlu.errors import ConfigError, FewnluError
from fewnlu.processes import end_unread
from fewnlu.reporting.commands import add_commands, run

ABOUT = (
    "Reports from the records of sweeps, also while they are running. Nothing is trained, and nothing below DIR is "
    "changed. Each command has a --help of its own. Exit status 0, 1 where a run failed or is missing, 2 where the "
    "command can't be done."
)


def main(argv: list[str] | None = None) -> None:
    """Entry point; exit status 0, 1 where a run failed or is missing, 2 where a folder holds no records."""
    parser = argparse.ArgumentParser(prog="python -m fewnlu.report", description=ABOUT)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_commands(commands)
    status = commands.add_parser(
        "status",
        help="which runs are done, running, failed, damaged or missing, and why",
        description="Counts the runs of a sweep by their state and says of each that is not done why, also while the "
        "sweep is running. Exit status 1: a run failed, is damaged or is missing.",
    )
    status.add_argument("dirs", nargs="+", metavar="DIR", help="a sweep's folder, such as multirun/main")
    args = parser.parse_args(argv)
    try:
        sys.exit(_status([Path(d) for d in args.dirs]) if args.command == "status" else run(args))
    except FewnluError as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        end_unread()


def _status(dirs: list[Path]) -> int:
    from fewnlu.reporting.status import read_status, status_text

    worst = 0
    for folder in dirs:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; sweeps lie in multirun/<sweep>")
        found = read_status(folder)
        if not found.runs:
            raise ConfigError(f"{folder}: no runs and no command that asked for some; sweeps lie in multirun/<sweep>")
        print(status_text(found))
        worst = max(worst, int(any(run.state not in {"done", "running"} for run in found.runs)))
    return worst


if __name__ == "__main__":
    main()
