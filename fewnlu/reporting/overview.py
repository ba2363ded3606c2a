"""What a study comes to in one line and its notes: for report.md, and as the summary of a W&B run."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewnlu.protocol.intervals import Interval
from fewnlu.reporting.layout import Table, count, mean_std, number, percent, plain
from fewnlu.reporting.names import (
    labels,
    method_name,
    model_name,
    score_name,
    seeds_differ,
    seeds_text,
    split_name,
    task_name,
)
from fewnlu.reporting.studies import Spread, Summary
from fewnlu.reporting.sure import chosen_runs, sureness
from fewnlu.reporting.tables import distinct_failures, hp_text, knows_dev, relative, runs_text


def overview_table(summaries: Sequence[Summary], base: Path | None = None) -> Table:
    """One line per study: h*, its dev and test scores, what judges them, and what is done.

    Args:
        base: records are named relative to it; None: to the working directory.
    """
    usable = [s for s in summaries if s.study.config]
    seeded = seeds_differ([s.study for s in usable])
    header = ["task", "method", "model", "strategy", *(["seeds"] if seeded else []), "h*", "tied", "dev", "test"]
    header += ["majority", "chance", "Spearman", "points", "runs", "records"]
    rows = []
    for s in usable:
        test = s.test.get("select")
        star = "nothing selected" if s.choice.h is None else hp_text(s.choice.h) or "(no hyper-parameters)"
        rows.append(
            [
                *(task_name(s.study), method_name(s.study), model_name(s.study), split_name(s.study)),
                *([seeds_text(s.study)] if seeded else []),
                star,
                str(s.choice.tied) if s.choice.tied > 1 else "no",
                mean_std(s.choice.mean, s.choice.std),
                mean_std(test.mean, test.std) if test else "no test set",
                *(percent(control(s, kind)) for kind in ("majority", "chance")),
                number(s.rho, 3),
                str(s.n_points),
                runs_text(s),
                relative(s.study.folder) if base is None else os.path.relpath(s.study.folder, base),
            ]
        )
    return Table(
        "overview",
        "Studies",
        header,
        rows,
        ["Scores in percent: mean±sample std (n-1) over the runs of h*, which was chosen on dev alone."],
    )


def control(summary: Summary, kind: str) -> float | None:
    """Majority or chance on the score that selects, as a fraction; None without a test set."""
    task = summary.study.config.get("task") or {}
    values = summary.controls.get(kind) or {}
    found = [values[name] for name in task.get("select") or task.get("metrics") or () if name in values]
    return sum(found) / len(found) if found else None


def notes_of(summary: Summary) -> list[str]:
    """What a reader must mind: failures, damage, warnings of runs, scores that are optimistic."""
    study = summary.study
    notes = [f"failed: {text}" for text in distinct_failures(study.failed)]
    if study.damaged:
        notes.append(f"{count(len(study.damaged), 'damaged run folder')}: {relative(study.damaged[0])}")
    if summary.choice.left_out:
        notes.append(
            f"{count(summary.choice.left_out, 'point')} of H not compared: fewer or other runs than the others"
        )
    if summary.choice.h is not None and not summary.test and len(study.runs) > 1:
        notes.append(f"no test set: the dev score is optimistic, the best of {len(study.runs)}")
    if knows_dev(chosen_runs(summary)):
        notes.append("the dev score is optimistic: teachers had trained on dev rows")
    return notes + [f"{text} ({n} of {study.n_runs} runs)" for text, n in summary.warnings.items()]


def notes_markdown(summaries: Sequence[Summary]) -> list[str]:
    """The notes of all studies that have any, as Markdown lines."""
    usable = [s for s in summaries if s.study.config]
    lines = []
    for name, s in zip(labels([s.study for s in usable]), usable, strict=True):
        lines += [f"- {plain(f'{name}: {text}')}" for text in notes_of(s)]
    return ["### Notes", "", *lines, ""] if lines else []


def flat_summary(summary: Summary) -> dict[str, Any]:
    """The study as flat names and plain values, fractions; None, never 0, where something is not known."""
    study, choice = summary.study, summary.choice
    score = summary.test.get("select")
    dev = Spread(choice.mean, choice.std, 0)
    found: dict[str, Any] = {
        **{f"h*/{name}": value for name, value in (choice.h or {}).items()},
        "score": score_name(study.config),
        "size of H": len(study.runs),
        "tied": choice.tied,
        **_spread("dev", dev),
        "K": len({r["k"] for r in chosen_runs(summary)}),
        "runs/done": study.n_runs,
        "runs/of h*": len(chosen_runs(summary)),
        "runs/failed": len(study.failed),
        "runs/damaged": len(study.damaged),
        "spearman/points": summary.n_points,
        "spearman/rho": summary.rho,
        "notes": "; ".join(notes_of(summary)),
    }
    if score:
        found |= _spread("test", score)
        for kind in ("majority", "chance"):
            found[f"test/{kind}"] = control(summary, kind)
        sure = sureness(summary).interval  # NaN where it is not known
        found["test/95 % low"], found["test/95 % high"] = (
            (sure.low, sure.high) if isinstance(sure, Interval) else (None, None)
        )
        metrics = {n: v for n, v in summary.test.items() if n != "select"}
        for name, value in metrics.items() if len(metrics) > 1 else ():
            found |= _spread(f"test/{name}", value)
    return {n: None if isinstance(v, float) and math.isnan(v) else v for n, v in found.items()}


def points_table(summary: Summary) -> tuple[list[str], list[list[Any]]]:
    """(header, rows) of all h: hyper-parameters, number of runs, dev and test mean and std; None where not known."""
    study = summary.study
    names = sorted({n for results in study.runs.values() for n in results[0]["h"]})
    rows = []
    for results in study.runs.values():
        h = results[0]["h"]
        dev = Spread.of([r["dev"]["select"] for r in results if r["dev"] and r["dev"]["select"] is not None])
        test = Spread.of([r["test"]["select"] for r in results if r["test"]])
        star = summary.choice.h is not None and h == dict(summary.choice.h)
        cells = [None if math.isnan(x) else x for x in (dev.mean, dev.std, test.mean, test.std)]
        rows.append([*(h.get(n) for n in names), len(results), *cells, star])
    return [*names, "runs", "dev mean", "dev std", "test mean", "test std", "h*"], rows


def _spread(name: str, value: Spread) -> dict[str, float]:
    return {f"{name}/mean": value.mean, f"{name}/std": value.std, f"{name}/variance": value.variance}
