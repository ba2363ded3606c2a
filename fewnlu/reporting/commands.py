"""The sub-commands of `python -m fewnlu.report` that read results: show, sensitivity, compare, leaderboard, export.

Only options are declared here; what a command does is imported when it is run, so that `--help` stays quick.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError

DIRS = "a sweep's folder, such as multirun/main, or any part of it"
FORMATS = ("text", "markdown", "csv", "html")
RUN = {
    "show": "fewnlu.reporting.show",
    "sensitivity": "fewnlu.reporting.sensitivity",
    "compare": "fewnlu.reporting.compare",
    "leaderboard": "fewnlu.reporting.leaderboard",
    "export": "fewnlu.reporting.export",
}


def add_commands(commands: Any) -> None:
    """Add the parsers; `run` then does what was asked."""
    show = _add(commands, "show", "h*, dev and test scores, Spearman, K-curves, the paper's tables, a page and figures")
    show.add_argument(
        "--k", type=_ks, default=(2, 4, 8, 16), metavar="2,4", help="K of the K-curves (default 2,4,8,16)"
    )
    show.add_argument("--format", choices=FORMATS, help="what to print; with --out: the only thing to write")
    show.add_argument("--out", metavar="DIR", help="write report.md, tables/*.csv, figures/ and index.html there")
    show.add_argument("--no-text", action="store_true", help="leave the rows' texts out of the page")
    show.add_argument(
        "--figures", type=int, default=6, metavar="N", help="of the first N studies (default 6; 0.5 s each)"
    )
    show.add_argument("--no-figures", action="store_true", help="write no PNG and SVG figures")
    sensitivity = _add(commands, "sensitivity", "one factor at a time around h*: std over its values (Table 4)")
    sensitivity.add_argument("--factor", action="append", metavar="NAME", help="only this factor (may be repeated)")
    compare = _add(commands, "compare", "paired differences of studies on the same test rows, with Holm's correction")
    compare.add_argument("--against", metavar="NAME", help="compare with this study only (part of its name or label)")
    compare.add_argument("--level", type=float, default=0.95, help="of the intervals (default 0.95)")
    leaderboard = _add(commands, "leaderboard", "one line per study of all sweeps, best first; warns of mixtures")
    for one in (sensitivity, compare, leaderboard):
        one.add_argument("--format", choices=FORMATS[:3], default="text", help="what to print (default text)")
        one.add_argument("--out", metavar="DIR", help="also write Markdown and CSV there, and figures where there are")
    export = _add(commands, "export", "copy records without absolute paths, with a manifest of hashes")
    export.add_argument("--out", metavar="DIR", required=True, help="an empty or new folder")
    for one in (leaderboard, export):
        one.add_argument("--where", metavar="COND", help="only runs made with these versions: 'outlines>=1.0,<1.3'")


def run(args: argparse.Namespace) -> int:
    """Run a parsed command; the exit status is 1 where a run failed.

    Raises:
        ConfigError: a folder that is none, or that holds no records.
    """
    execute: Callable[[argparse.Namespace], int] = importlib.import_module(RUN[args.command]).run
    return execute(args)


def _add(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("dirs", nargs="+", metavar="DIR", help=DIRS)
    return parser


def _ks(text: str) -> tuple[int, ...]:
    try:
        ks = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        ks = ()
    if not ks or min(ks) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers of splits, such as 2,4,8")
    return ks


def read(dirs: list[str]) -> list[Any]:
    """The studies below some folders.

    Raises:
        ConfigError: no such folder, or no records in any.
    """
    from fewnlu.reporting.studies import read_studies

    for folder in dirs:
        if not Path(folder).is_dir():
            raise ConfigError(f"{folder}: no such folder; sweeps lie in multirun/<sweep>")
    studies = read_studies([Path(d) for d in dirs])
    if not studies:
        raise ConfigError(f"{', '.join(dirs)}: no records (result.json) below; sweeps lie in multirun/<sweep>")
    return studies


def emit(tables: list[Any], form: str, out: str | None, warnings: list[str]) -> None:
    """Print tables in a form, warnings before them, and write Markdown and CSV below `out` where that is given."""
    import sys

    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)
    render = {"text": lambda t: t.text(), "markdown": lambda t: t.markdown(), "csv": lambda t: t.csv()}[form]
    print("\n\n".join(render(t).rstrip() for t in tables) if tables else "nothing to show")
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables:
            (folder / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")
            (folder / f"{table.name}.md").write_text(table.markdown(), encoding="utf-8")
