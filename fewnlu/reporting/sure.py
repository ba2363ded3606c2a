"""How sure a study's numbers are: interval of h*'s test score, of rho, and how many splits are distinct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fewnlu.protocol.comparison import Correlation, spearman_interval
from fewnlu.protocol.intervals import ESTIMAND, Interval
from fewnlu.protocol.records import canonical
from fewnlu.reporting.layout import METRIC_NAMES, MISSING, Table, number, percent
from fewnlu.reporting.names import labels, score_name
from fewnlu.reporting.outcomes import distinct_splits, outcomes
from fewnlu.reporting.scores import SELECT, interval_of, names_of
from fewnlu.reporting.studies import Summary, dev_test_means


@dataclass(frozen=True)
class Sureness:
    """How sure the numbers of one study are.

    Attributes:
        interval: of the test score of h* (the mean of the metrics that select), or why there is none.
        metrics: likewise of each of these metrics, where they are several.
    """

    interval: Interval | str
    metrics: dict[str, Interval | str]
    rho: Correlation
    splits: int
    distinct: int


def chosen_runs(summary: Summary) -> list[dict[str, Any]]:
    """The results of h*; of the only h where nothing was selected; else none."""
    study = summary.study
    if summary.choice.h is not None:
        return study.runs[canonical(dict(summary.choice.h))]
    return next(iter(study.runs.values())) if len(study.runs) == 1 else []


def sureness(summary: Summary) -> Sureness:
    """Computed once per summary: tables and the page both show it."""
    found: Sureness | None = vars(summary).get("_sure")
    if found is None:
        found = _sureness(summary)
        vars(summary)["_sure"] = found
    return found


def _sureness(summary: Summary) -> Sureness:
    points = dev_test_means(summary.study)
    runs = chosen_runs(summary)
    found = outcomes(runs) if runs and all(r["test"] for r in runs) else None
    names = names_of(runs[0]["config"], SELECT) if runs else []
    return Sureness(
        interval_of(runs, SELECT, found=found),
        {name: interval_of(runs, name, found=found) for name in names} if len(names) > 1 else {},
        spearman_interval([p[1] for p in points], [p[2] for p in points]),
        len({r["k"] for r in runs}),
        distinct_splits(runs),
    )


def sure_table(summaries: Sequence[Summary]) -> Table:
    """What the numbers of `show` can and cannot bear: one line per study, and one per metric where several select."""
    rows = []
    for name, summary in zip(labels([s.study for s in summaries]), summaries, strict=True):
        found, rho = sureness(summary), sureness(summary).rho
        across = f"{rho.low:.2f} to {rho.high:.2f}" if rho.low == rho.low else MISSING
        of_rho = [number(rho.rho, 3), across, str(rho.n_points), str(rho.tied)]
        splits = f"{found.distinct} of {found.splits}"
        score, *cells, varied = _cells(score_name(summary.study.config), found.interval)
        rows.append([name, score, *cells, splits, *of_rho, varied])
        for metric, interval in found.metrics.items():
            score, *cells, varied = _cells(METRIC_NAMES.get(metric, metric), interval)
            rows.append([name, score, *cells, splits, *[""] * 4, varied])
    header = ["study", "score", "test", "95 % interval", "std. error", "distinct splits"]
    header += ["rho", "95 % of rho", "points", "tied points", "what varies"]
    notes = [
        f"95 % intervals are about: {ESTIMAND}. Standard errors are of the mean, not the spread of runs.",
        "Spearman's rho over points of H, 95 % bootstrap over these points; runs and rows fixed.",
    ]
    if any("linearised" in row[-1] for row in rows):
        notes.append("Linearised: F1 and MCC are no means over rows; each row counts by how it moves the score.")
    return Table("sure", "How sure: h* of every study", header, rows, notes)


def worth_a_table(summaries: Sequence[Summary]) -> list[Table]:
    """`sure_table` as a list: empty where it would say nothing: a single study without an interval.

    Studies whose rows were asked in words are left out: their own table tells decoding noise from row sampling.
    """
    usable = [s for s in summaries if s.study.runs and not any(r.get("answers") for r in chosen_runs(s))]
    known = [s for s in usable if isinstance(found := sureness(s).interval, Interval) and found.known]
    return [sure_table(usable)] if known or len(usable) > 1 else []


def _cells(score: str, interval: Interval | str) -> list[str]:
    if isinstance(interval, str):
        return [score, MISSING, MISSING, MISSING, interval]
    shown = f"{percent(interval.low)} to {percent(interval.high)}" if interval.known else MISSING
    varied = "; ".join(filter(None, [interval.varied, interval.note]))
    return [score, percent(interval.estimate), shown, percent(interval.std_error), varied]
