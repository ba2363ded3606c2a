"""The benchmark's tables: what prompting methods answered, with each kind of uncertainty under its own name.

One line per task and study: accuracy with the range of its runs (as the benchmark's card says), weighted F1 with
1.96·sd/√R (as its paper prints), what chance and a constant answer reach, how often each label was answered, and three
intervals of accuracy: decoding noise (the draws), row sampling (which rows are in the test set), and both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fewnlu.protocol.records import PREDICTIONS
from fewnlu.protocol.selection import mean, std
from fewnlu.reporting.layout import MISSING, Table, count
from fewnlu.reporting.published import PublishedRow, load
from fewnlu.reporting.studies import Study

Z = 1.96
RENAMED = {"fietje-2": "fietje-2b", "fietje-2-chat": "fietje-2b-chat", "fietje-2-instruct": "fietje-2b-instruct"}


@dataclass(frozen=True)
class Halves:
    """Half-widths (1.96 standard errors) of the mean accuracy over R runs of n rows, as fractions; NaN: not known.

    Attributes:
        decoding: because answers are drawn; the rows are taken as they are.
        rows: because another test set would hold other rows.
        both: of the two together; the squares add up.
    """

    decoding: float
    rows: float
    both: float


def halves(right: np.ndarray, p: np.ndarray | None = None) -> Halves:
    """Intervals of the mean accuracy from what was right.

    Args:
        right: [rows, runs], 1 where a draw is right.
        p: [rows], each row's probability of being right, where it is known in closed form (a ranking: 0 or 1); else
            what the draws of a row say is taken.
    """
    n, runs = right.shape
    if p is not None:
        decoding = float((p * (1 - p)).sum()) / runs / n**2
        rows = float(p.var(ddof=1)) / n if n > 1 else math.nan
        both = decoding + rows
    else:
        decoding = float(right.var(axis=1, ddof=1).sum()) / runs / n**2 if runs > 1 else math.nan
        both = float(right.mean(axis=1).var(ddof=1)) / n if n > 1 else math.nan
        rows = max(0.0, both - decoding) if not math.isnan(decoding) else math.nan
    return Halves(Z * math.sqrt(decoding), Z * math.sqrt(rows), Z * math.sqrt(both))


@dataclass(frozen=True)
class Line:
    """One study of a prompting method."""

    task: str
    model: str
    decode: str
    study: Study
    runs: list[dict[str, Any]]
    halves: Halves

    def values(self, metric: str) -> list[float]:
        return [float(r["test"]["metrics"][metric]) for r in self.runs]


def answer_lines(studies: Sequence[Study]) -> list[Line]:
    """The studies among these whose rows were asked, by task and model."""
    lines = []
    for study in studies:
        runs = [r for results in study.runs.values() for r in results if r.get("answers")]
        if not runs:
            continue
        config = study.config
        lines.append(
            Line(
                task=str(config["task"]["name"]),
                model=str(config["model"]["name"]),
                decode=_decode(config, runs[0]["answers"]),
                study=study,
                runs=runs,
                halves=halves(*_right(runs, str(config["decode"]["name"]))),
            )
        )
    return sorted(lines, key=lambda x: (x.task, -mean(x.values("weighted_f1")), x.model, x.decode))


def answer_tables(studies: Sequence[Study]) -> list[Table]:
    """The benchmark's table, the ranks over tasks where there are several models, and notes on what to mind."""
    lines = answer_lines(studies)
    if not lines:
        return []
    published = {row.cells["model"]: row for row in load("fietje")}
    header = ["task", "model", "decode", "runs", "accuracy", "min–max", "±decoding", "±rows", "±both"]
    header += ["weighted F1", "published", "macro-F1", "MCC", "chance", "majority", "answers"]
    table = Table("answers", "Answers to questions, in percent", header, [_row(x, published) for x in lines])
    table.notes = _notes(lines)
    ranks = rank_table(
        {(x.model, x.decode): {y.task: mean(y.values("weighted_f1")) for y in _alike(x, lines)} for x in lines}
    )
    return [table, *([ranks] if ranks else [])]


def _alike(line: Line, lines: Sequence[Line]) -> list[Line]:
    return [y for y in lines if (y.model, y.decode) == (line.model, line.decode)]


def _row(x: Line, published: Mapping[str, PublishedRow]) -> list[str]:
    accuracy, weighted = x.values("accuracy"), x.values("weighted_f1")
    controls = x.runs[0]["test"]["controls"]
    wanted = max(len(x.runs), x.study.wanted)
    runs = str(len(x.runs)) if len(x.runs) == wanted else f"{len(x.runs)} of {wanted} !"
    counts = {k: mean([r["answers"]["counts"][k] for r in x.runs]) for k in x.runs[0]["answers"]["counts"]}
    said = " ".join(f"{k} {v:.0f}" for k, v in counts.items())
    if invalid := mean([r["answers"]["invalid"] for r in x.runs]):
        said += f" invalid {invalid:g} !"
    return [
        x.task,
        x.model,
        x.decode,
        runs,
        _points(mean(accuracy)),
        f"{_points(min(accuracy))}–{_points(max(accuracy))}" if len(accuracy) > 1 else MISSING,
        _points(x.halves.decoding),
        _points(x.halves.rows),
        _points(x.halves.both),
        with_half(weighted),
        published_cell(published, x.model, x.task),
        _points(mean(x.values("macro_f1"))),
        _points(mean(x.values("mcc"))),
        *(f"{_points(controls[k]['accuracy'])}/{_points(controls[k]['weighted_f1'])}" for k in ("chance", "majority")),
        said,
    ]


def with_half(values: Sequence[float]) -> str:
    """``mean ± 1.96·sd/√R`` as the paper prints it, sd being the sample's; the mean alone for one run."""
    if len(values) < 2:
        return _points(mean(values))
    return f"{_points(mean(values))} ± {_points(Z * std(values) / math.sqrt(len(values)))}"


def published_cell(published: Mapping[str, PublishedRow], model: str, task: str) -> str:
    """The paper's weighted F1 with its printed half-width, where it has the model and the task."""
    row = published.get(RENAMED.get(model, model))
    value = row.cells.get(f"{task}_wf1") if row else None
    return f"{value} ± {row.cells[f'{task}_ci95']}" if row and value else MISSING


def rank_table(scores: Mapping[tuple[str, str], Mapping[str, float]]) -> Table | None:
    """Ranks per task (1 is best, ties share the better rank) and their median and mean, best first.

    Args:
        scores: (model, decode) -> task -> score.

    Returns:
        None unless two or more have scores on the same tasks: a rank among others says nothing.
    """
    tasks = sorted({t for own in scores.values() for t in own})
    whole = {who: own for who, own in scores.items() if all(t in own for t in tasks)}
    if len(whole) < 2:
        return None
    ranks = ranks_of(whole)
    order = sorted(whole, key=lambda who: (median(ranks[who].values()), mean(list(ranks[who].values())), who))
    rows = [
        [
            *who,
            *(str(ranks[who][t]) for t in tasks),
            f"{median(ranks[who].values()):g}",
            f"{mean(list(ranks[who].values())):.2f}",
        ]
        for who in order
    ]
    left = len(scores) - len(whole)
    notes = [f"{count(left, 'study', 'studies')} left out for lack of a task"] if left else []
    return Table("answer-ranks", "Ranks by weighted F1", ["model", "decode", *tasks, "median", "mean"], rows, notes)


def ranks_of(scores: Mapping[Any, Mapping[str, float]]) -> dict[Any, dict[str, int]]:
    """Rank of each on each task: 1 plus the number of better ones."""
    return {
        who: {task: 1 + sum(other[task] > value for other in scores.values()) for task, value in own.items()}
        for who, own in scores.items()
    }


def _notes(lines: Sequence[Line]) -> list[str]:
    notes = [
        "accuracy: mean over the runs and their range. Weighted F1: mean ± 1.96·sd/√runs, decoding noise alone, as "
        "published. chance, majority: accuracy/weighted F1.",
        "±decoding, ±rows, ±both: 1.96 standard errors of the mean accuracy from drawing answers, from drawing rows, "
        "and from both.",
    ]
    for x in lines:
        own = x.runs[0]["answers"].get("likelihood")
        if own:
            notes.append(
                f"{x.task}, {x.model}: in {own['differs_from_sampler']} of {own['rows']} rows the likeliest whole "
                f"answer is not the likeliest draw (compared by {own['normalise']})"
            )
        expected = x.runs[0]["answers"].get("expected")
        if expected and x.runs[0]["config"]["decode"]["name"] == "tree":
            notes.append(
                f"{x.task}, {x.model}: expected accuracy {_points(expected['value'])} (certain: between "
                f"{_points(expected['low'])} and {_points(expected['high'])})"
            )
    shas: dict[str, set[str]] = {}
    for x in lines:
        shas.setdefault(x.task, set()).add(str(x.runs[0]["rows"]["test"]["sha256"]))
    notes += [
        f"{task}: these studies have different test rows and must not be compared"
        for task, s in shas.items()
        if len(s) > 1
    ]
    return notes


def _decode(config: Mapping[str, Any], answers: Mapping[str, Any]) -> str:
    decode, method = config["decode"], config["method"]
    parts = [str(decode["name"]), str(answers["form"])]
    if decode.get("normalise", "sum") != "sum":
        parts.append(f"per {decode['normalise']}")
    if decode["choices"] != "letters":
        parts.append(str(decode["choices"]))
    if decode["leading_space"] != "auto":
        parts.append("as published")
    if method.get("shots"):
        parts.append(f"{method['shots']}-shot")
    return ", ".join(parts)


def _right(runs: Sequence[dict[str, Any]], decode: str) -> tuple[np.ndarray, np.ndarray | None]:
    """[rows, runs]: whether each draw was right; [rows]: the probability of that, where the decoder knows it."""
    import pyarrow.parquet as pq

    columns = []
    for run in runs:
        table = pq.read_table(Path(run["folder"]) / PREDICTIONS).to_pydict()
        columns.append([float(g == p) for g, p in zip(table["gold"], table["prediction"], strict=True)])
    right = np.array(columns).T
    if decode == "likelihood":
        return right, right[:, 0]
    if decode == "tree":
        return right, np.array([math.exp(table[f"score:{g}"][i]) for i, g in enumerate(table["gold"])])
    return right, None


def _points(value: float) -> str:
    return MISSING if math.isnan(value) else f"{100 * value:.1f}"
