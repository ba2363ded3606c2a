"""`report sensitivity`: one factor at a time around h* (the paper's Table 4)."""

from __future__ import annotations

import argparse
from pathlib import Path

from fewnlu.errors import ConfigError, choices
from fewnlu.reporting.checks import mixtures
from fewnlu.reporting.commands import emit, read
from fewnlu.reporting.paper import sensitivity
from fewnlu.reporting.studies import summarise


def run(args: argparse.Namespace) -> int:
    """Print Table 4 of a folder; ConfigError where no factor has two values around h*."""
    studies = read(args.dirs)
    summaries = [summarise(s) for s in studies]
    table = sensitivity([s for s in summaries if s.study.config and s.study.runs])
    if table is None:
        raise ConfigError(
            "no factor has two values around h*: sweep one more value of a hyper-parameter, or seed.train"
        )
    if args.factor:
        known = sorted({row[4] for row in table.rows})
        for factor in args.factor:
            if not any(k.split(" (")[0] == factor or k == factor for k in known):
                raise ConfigError(f"--factor {factor}: {choices(factor, known)}")
        table.rows = [r for r in table.rows if r[4] in args.factor or r[4].split(" (")[0] in args.factor]
    emit([table], args.format, args.out, mixtures(studies))
    if args.out is not None:
        from fewnlu.reporting.figures import sensitivity_figure

        sensitivity_figure(summaries, Path(args.out), args.factor)
    return 1 if any(s.failed or s.damaged for s in studies) else 0
