"""python -m fewnlu.report show DIR…: the studies of one or more sweeps, read off their records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fewnlu.errors import ConfigError, FewnluError


def main(argv: list[str] | None = None) -> None:
    """Entry point; exit status 0, 1 where a run failed, 2 where a folder holds no records."""
    parser = argparse.ArgumentParser(prog="python -m fewnlu.report", description="Reports from the records of sweeps.")
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="h*, dev and test scores, Spearman and failures of every study")
    show.add_argument(
        "dirs", nargs="+", metavar="DIR", help="a sweep's folder, such as multirun/main, or any part of it"
    )
    args = parser.parse_args(argv)
    try:
        sys.exit(_show([Path(d) for d in args.dirs]))
    except FewnluError as err:
        print(f"error: {err}", file=sys.stderr)
        sys.exit(2)


def _show(dirs: list[Path]) -> int:
    from fewnlu.reporting.studies import read_studies, summarise
    from fewnlu.reporting.tables import studies_text

    for folder in dirs:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; sweeps lie in multirun/<sweep>")
    studies = read_studies(dirs)
    if not studies:
        raise ConfigError(
            f"{', '.join(map(str, dirs))}: no records (result.json) below; sweeps lie in multirun/<sweep>"
        )
    print(studies_text([summarise(s) for s in studies]))
    return 1 if any(s.failed or s.damaged for s in studies) else 0


if __name__ == "__main__":
    main()
