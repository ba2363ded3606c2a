"""The sub-commands of `python -m fewnlu.report` that read results: show, sensitivity, compare, leaderboard, export.

Only options are declared here; what a command does is imported when it is run, so that `--help` stays quick.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError

DIRS = "a sweep's folder, such as multirun/main, or any folder within; several are read as one"
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
    show = _add(
        commands,
        "show",
        "every study: h*, its scores, and how sure they are; with --out a whole report",
        "Prints every study below DIR: h* (chosen on dev alone), dev and test scores, Spearman's rho of dev and test, "
        "intervals, K-curves, and how much of the sweep is done. With --out the layouts of the paper's tables, figures "
        "and a page for the browser are written as well. Exit status 1: a run failed or is missing.",
    )
    show.add_argument(
        "--k",
        type=_ks,
        default=(2, 4, 8, 16),
        metavar="K,K",
        help="numbers of splits in the K-curves; those that the records don't hold are left out (default 2,4,8,16)",
    )
    show.add_argument(
        "--format",
        choices=FORMATS,
        help="without --out: the form of what is printed (default text; html needs --out); with --out: write only this",
    )
    show.add_argument(
        "--out", metavar="FOLDER", help="write report.md, tables/*.csv, figures/ and index.html there, print a line"
    )
    show.add_argument("--no-text", action="store_true", help="with --out: leave the rows' texts out of the page")
    show.add_argument(
        "--figures",
        type=_whole,
        default=6,
        metavar="N",
        help="with --out: draw figures of single studies for the first N (default 6; each takes half a second)",
    )
    show.add_argument("--no-figures", action="store_true", help="with --out: draw none")
    sensitivity = _add(
        commands,
        "sensitivity",
        "how much the score moves with one factor, the others as in h* (Table 4)",
        "Takes the points of H that differ from h* in one factor alone and prints the standard deviation over its "
        "values of the dev and test means, as the paper's Table 4. Training order: studies that differ in seed.train.",
    )
    sensitivity.add_argument(
        "--factor", action="append", metavar="NAME", help="only this factor, such as lr or pattern; may be given again"
    )
    compare = _add(
        commands,
        "compare",
        "differences between studies on the same test rows, with tests and intervals",
        "Pairs studies split by split and row by row and prints how far apart they are in test score, an interval, "
        "p-values before and after Holm's correction, and the least difference that would have shown.",
    )
    compare.add_argument(
        "--against",
        metavar="NAME",
        help="compare all others with one study: a part of its name or of its label that no other has",
    )
    compare.add_argument(
        "--metric", metavar="NAME", help="such as accuracy or macro_f1 (default: what selects h* in the task)"
    )
    compare.add_argument(
        "--level", type=float, default=0.95, metavar="SHARE", help="of the intervals and tests (default 0.95)"
    )
    leaderboard = _add(
        commands,
        "leaderboard",
        "one line per study of all folders, best test score first",
        "Puts the studies of several sweeps into one table per task and set of test rows, best test score first, and "
        "warns where data, weights, versions or numerics are mixed.",
    )
    for one in (sensitivity, compare, leaderboard):
        one.add_argument(
            "--format", choices=FORMATS[:3], default="text", help="the form of what is printed (default text)"
        )
    for one, what in ((sensitivity, ", and a figure"), (compare, ", and figures"), (leaderboard, "")):
        one.add_argument("--out", metavar="FOLDER", help=f"also write the table as Markdown and CSV there{what}")
    export = _add(
        commands,
        "export",
        "copy records to pass them on: no absolute paths, hashes in a manifest",
        "Copies the records below DIR without absolute paths to a new folder, with a manifest of all files and their "
        "hashes. What `show` says of the copy is what it says of the original.",
    )
    export.add_argument("--out", metavar="FOLDER", required=True, help="where to; must be new or empty")
    for one in (leaderboard, export):
        one.add_argument(
            "--where",
            metavar="COND",
            help="only runs made with some versions of a package, such as 'outlines>=1.0,<1.3', or 'commit==1a2b3c'",
        )


def run(args: argparse.Namespace) -> int:
    """Run a parsed command; the exit status is 1 where a run failed.

    Raises:
        ConfigError: a folder that is none, or that holds no records.
    """
    if getattr(args, "out", None) is not None:
        out_folder(args.out, make=False)
    execute: Callable[[argparse.Namespace], int] = importlib.import_module(RUN[args.command]).run
    return execute(args)


def _add(commands: Any, name: str, text: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=description)
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


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 0 or more")
    return int(text)


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


def out_folder(name: str, *, make: bool = True) -> Path:
    """The folder to write to, made where it is not there; `make=False` only looks, before the work is done.

    Raises:
        ConfigError: something else has that name, or nothing can be written there.
    """
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {name}: that is a file; give a folder")
    if make:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ConfigError(f"--out {name}: can't be made ({err.strerror}); give another folder") from None
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {name}: can't be written to; give another folder")
    return folder


def emit(tables: list[Any], form: str, out: str | None, warnings: list[str]) -> None:
    """Print tables in a form, warnings before them, and write Markdown and CSV below `out` where that is given."""
    folder = out_folder(out) if out is not None else None
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)
    render = {"text": lambda t: t.text(), "markdown": lambda t: t.markdown(), "csv": lambda t: t.csv()}[form]
    print("\n\n".join(render(t).rstrip() for t in tables) if tables else "nothing to show")
    if folder is not None:
        for table in tables:
            (folder / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")
            (folder / f"{table.name}.md").write_text(table.markdown(), encoding="utf-8")
