"""`report leaderboard`: studies of several sweeps, one table per task and test set, best first; warns of mixtures."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence

from fewnlu.errors import ConfigError
from fewnlu.reporting.checks import mixtures, versions_of, where
from fewnlu.reporting.commands import emit, read
from fewnlu.reporting.layout import MISSING, Table, count, mean_std, number, percent
from fewnlu.reporting.names import method_name, model_name, score_name, seeds_text, split_name, task_name
from fewnlu.reporting.studies import Summary, summarise
from fewnlu.reporting.sure import chosen_runs, sureness
from fewnlu.reporting.tables import runs_text

SHOWN = ("torch", "transformers", "fewnlu")


def run(args: argparse.Namespace) -> int:
    """Print the leaderboard; 1 where a run failed or is damaged."""
    studies = read(args.dirs)
    if args.where:
        studies = where(studies, args.where)
        if not studies:
            raise ConfigError(f"--where {args.where!r}: no run was made with that")
    summaries = [summarise(s) for s in studies]
    emit(leaderboard(summaries), args.format, args.out, [*mixtures(studies), *unranked(summaries)])
    return 1 if any(s.failed or s.damaged for s in studies) else 0


def leaderboard(summaries: Sequence[Summary]) -> list[Table]:
    """One table per task, score and content of the test rows: what is not comparable shares no table (fault I055)."""
    groups: dict[tuple[str, str, str], list[Summary]] = defaultdict(list)
    for s in summaries:
        runs = chosen_runs(s)
        if runs:
            sha = ((runs[0]["rows"].get("test") or {}).get("sha256") or "")[:8]
            groups[task_name(s.study), score_name(s.study.config), sha].append(s)
    out = []
    for (task, score, sha), found in sorted(groups.items()):
        found = sorted(found, key=lambda s: (-s.test["select"].mean if s.test else math.inf, s.study.name))
        title = f"{task}: {count(len(found), 'study', 'studies')}"
        title += f" on test rows {sha or 'none'}" if len({g[2] for g in groups if g[0] == task}) > 1 else ""
        several = len({g[1] for g in groups if g[0] == task}) > 1
        title += f" by {score}" if several else ""
        name = f"leaderboard-{task}-{sha or 'no-test'}" + (f"-{score.replace(' ', '-')}" if several else "")
        notes = [
            f"Test and dev: {score} in percent, mean±std over the runs of h*, chosen on dev alone. Data: hash of the "
            "labelled rows."
        ]
        out.append(Table(name, title, _HEADER, [_row(s) for s in found], notes))
    return out


def unranked(summaries: Sequence[Summary]) -> list[str]:
    """A sentence for every study that has no line in a table: all its runs failed, or no h could be chosen."""
    out = []
    for s in summaries:
        if not chosen_runs(s):
            why = "no dev score to choose h* by; " if s.study.runs else ""
            out.append(f"{s.study.name} is in no table: {why}{runs_text(s)}")
    return out


_HEADER = ["method", "model", "strategy", "seeds", "test", "95 % interval", "dev", "Spearman", "runs", "failed"]
_HEADER += ["data", "study", "versions"]


def _row(s: Summary) -> list[str]:
    study, runs, interval, test = s.study, chosen_runs(s), sureness(s).interval, s.test.get("select")
    versions = [versions_of(r) for r in runs]
    shown = []
    for name in SHOWN:
        found = sorted({v[name] for v in versions if name in v})
        if found:
            shown.append(f"{name} {'/'.join(found)}" + (" MIXED" if len(found) > 1 else ""))
    have = f"{len(runs)} of {study.wanted}" if len(runs) < study.wanted else str(len(runs))
    sure = not isinstance(interval, str) and interval.known
    return [
        *(method_name(study), model_name(study), split_name(study)),
        seeds_text(study),
        mean_std(test.mean, test.std) if test else MISSING,
        f"{percent(interval.low)} to {percent(interval.high)}" if sure and not isinstance(interval, str) else MISSING,
        percent(s.choice.mean),
        number(s.rho, 3),
        have,
        str(len(study.failed)),
        runs[0]["rows"]["labeled"]["sha256"][:8],
        study.key[:8],
        ", ".join(shown) or MISSING,
    ]
