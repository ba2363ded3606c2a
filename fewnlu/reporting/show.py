"""`report show`: every study as text; with --out also Markdown, CSV, figures and the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.protocol.expected import read_expected
from fewnlu.protocol.intervals import ESTIMAND
from fewnlu.reporting.answers import answer_tables
from fewnlu.reporting.checks import mixtures
from fewnlu.reporting.commands import out_folder, read
from fewnlu.reporting.layout import Table, count, plain
from fewnlu.reporting.overview import notes_markdown, overview_table
from fewnlu.reporting.paper import k_table, paper_tables, seeds_table, studies_table
from fewnlu.reporting.status import gaps_text, read_status
from fewnlu.reporting.studies import Summary, summarise
from fewnlu.reporting.sure import sure_table
from fewnlu.reporting.tables import studies_text
from fewnlu.reporting.views import k_curves


def run(args: argparse.Namespace) -> int:
    """Print or write the report; 1 where a run failed or is damaged."""
    if args.format == "html" and args.out is None:
        raise ConfigError("--format html needs --out DIR: the page is written there as index.html")
    studies = read(args.dirs)
    summaries = [summarise(s) for s in studies]
    warnings = mixtures(studies)
    curves = k_curves(studies, args.k)
    several = {ident: by_k for ident, by_k in curves.items() if len(by_k) > 1 or len(args.k) == 1}
    tables: list[Table | None] = [sure_table(summaries), k_table(several), seeds_table(studies, summaries)]
    extra = [*answer_tables(studies), *(t for t in tables if t is not None)]
    if args.out is None:
        _print(args.format or "text", summaries, extra, warnings)
    else:
        write(out_folder(args.out), args, summaries, [*extra, *paper_tables(summaries)], warnings, several)
    missing = _missing(args.dirs)
    if missing:
        print(f"\n{missing}", file=sys.stderr if args.out is not None or args.format else sys.stdout)
    return 1 if missing or any(s.failed or s.damaged for s in studies) else 0


def _missing(dirs: Sequence[Path | str]) -> str:
    """Runs that the sweeps' commands asked for and that are not done; a half-done sweep must not look whole.

    A folder within a sweep, such as a study's, is asked for what belongs below it.
    """
    parts = []
    for folder in map(Path, dirs):
        whole = folder.absolute()
        sweep = next((f for f in (whole, *whole.parents[:3]) if read_expected(f)), None)
        if sweep is None:
            continue  # no command is known, so nothing can be missing: no need to look at every run again
        wanted = [run for run in read_status(sweep).runs if run.wanted and (sweep / run.path).is_relative_to(whole)]
        gaps = [run for run in wanted if run.state != "done"]
        if gaps:
            parts.append(f"{folder} is not whole: {gaps_text(gaps, len(wanted), most=5)}")
    return "\n".join(parts)


def _print(form: str, summaries: Sequence[Summary], extra: list[Table], warnings: Sequence[str]) -> None:
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)
    if form == "text":
        print("\n\n".join([studies_text(summaries), *(t.text() for t in extra)]))
    elif form == "markdown":
        print(markdown(summaries, [*extra, *paper_tables(summaries)], warnings))
    else:
        print(studies_table(summaries).csv(), end="")


def markdown(
    summaries: Sequence[Summary], tables: Sequence[Table], warnings: Sequence[str], base: Path | None = None
) -> str:
    """One document: warnings, the studies with their notes, and all tables.

    Args:
        base: folder that it will lie in; records are named relative to it.
    """
    lines = ["# Report", "", f"What intervals are about: {ESTIMAND}.", ""]
    lines += [f"- **Warning:** {plain(w)}" for w in warnings] + ([""] if warnings else [])
    studies = [overview_table(summaries, base).markdown(), *notes_markdown(summaries)]
    return "\n".join([*lines, *studies, *(t.markdown() for t in tables)])


def write(
    out: Path,
    args: argparse.Namespace,
    summaries: Sequence[Summary],
    tables: Sequence[Table],
    warnings: Sequence[str],
    curves: dict[Any, dict[int, Summary]],
) -> None:
    """Write what was asked for below `out` and say what was written."""
    wanted = {args.format} if args.format else {"markdown", "csv", "html"}
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)
    if "text" in wanted:
        body = "\n\n".join([studies_text(summaries), *(t.text() for t in tables)])
        (out / "report.txt").write_text(body + "\n", encoding="utf-8")
    if "markdown" in wanted:
        (out / "report.md").write_text(markdown(summaries, tables, warnings, out), encoding="utf-8")
    if "csv" in wanted:
        (out / "tables").mkdir(exist_ok=True)
        for table in [studies_table(summaries), *tables]:
            (out / "tables" / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")
    if "html" in wanted:
        from fewnlu.reporting.page import page

        html = page(summaries, tables, warnings, out.absolute(), text=not args.no_text)
        (out / "index.html").write_text(html, encoding="utf-8")
    drawn = 0
    if not args.no_figures and args.format is None:
        try:
            from fewnlu.reporting.figures import draw_all

            drawn = len(draw_all(summaries, curves, out / "figures", args.figures))
        except ConfigError as err:  # the extra is not installed: all else is written
            print(f"warning: {err}", file=sys.stderr)
    files = sorted({p.name for p in out.iterdir() if not p.name.startswith(".")})
    figures = f"; {count(drawn, 'figure')}" if drawn else ""
    print(f"{count(len(summaries), 'study', 'studies')} → {out}: {', '.join(files)}{figures}")
    if drawn and len(summaries) > args.figures:
        print(f"figures of single studies: the first {args.figures} of {len(summaries)}; --figures N draws more")
