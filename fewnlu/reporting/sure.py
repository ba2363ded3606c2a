"""How sure a study's numbers are: interval of h*'s test accuracy, of rho, and how many splits are distinct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fewnlu.protocol.comparison import Correlation, spearman_interval
from fewnlu.protocol.intervals import ESTIMAND, Interval
from fewnlu.protocol.records import canonical
from fewnlu.protocol.selection import mean
from fewnlu.reporting.layout import MISSING, Table, number, percent
from fewnlu.reporting.names import labels
from fewnlu.reporting.outcomes import accuracy_interval, distinct_splits
from fewnlu.reporting.studies import Study, Summary


@dataclass(frozen=True)
class Sureness:
    """`interval`: of test accuracy of h*, or why there is none."""

    interval: Interval | str
    rho: Correlation
    splits: int
    distinct: int


def chosen_runs(summary: Summary) -> list[dict[str, Any]]:
    """The results of h*; of the only h where nothing was selected; else none."""
    study = summary.study
    if summary.choice.h is not None:
        return study.runs[canonical(dict(summary.choice.h))]
    return next(iter(study.runs.values())) if len(study.runs) == 1 else []


def dev_test_means(study: Study) -> list[tuple[dict[str, Any], float, float]]:
    """(h, dev mean, test mean) of every h with all its runs, as `summarise` takes them for Spearman's rho."""
    full = max((len(results) for results in study.runs.values()), default=0)
    return [
        (results[0]["h"], mean([r["dev"]["select"] for r in results]), mean([r["test"]["select"] for r in results]))
        for results in study.runs.values()
        if len(results) == full
        and all(r["dev"] and r["test"] and None not in (r["dev"]["select"], r["test"]["select"]) for r in results)
    ]


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
    return Sureness(
        accuracy_interval(runs),
        spearman_interval([p[1] for p in points], [p[2] for p in points]),
        len({r["k"] for r in runs}),
        distinct_splits(runs),
    )


def sure_table(summaries: Sequence[Summary]) -> Table:
    """One line per study: what the numbers of `show` can and cannot bear."""
    rows = []
    notes: list[str] = []
    for name, summary in zip(labels([s.study for s in summaries]), summaries, strict=True):
        found = sureness(summary)
        interval, rho = found.interval, found.rho
        if isinstance(interval, str):
            shown, error, varied = MISSING, MISSING, interval
        else:
            shown = f"{percent(interval.low)} to {percent(interval.high)}" if interval.known else MISSING
            error, varied = (
                percent(interval.std_error),
                interval.varied + (f"; {interval.note}" if interval.note else ""),
            )
        across = f"{rho.low:.2f} to {rho.high:.2f}" if rho.low == rho.low else MISSING
        rows.append(
            [
                name,
                percent(None if isinstance(interval, str) else interval.estimate),
                shown,
                error,
                varied,
                f"{found.distinct} of {found.splits}",
                number(rho.rho, 3),
                across,
                str(rho.n_points),
                str(rho.tied),
            ]
        )
    notes.append(f"95 % intervals are about: {ESTIMAND}. Standard errors are of the mean, not the spread of runs.")
    notes.append("Spearman's rho over points of H, 95 % bootstrap over these points; runs and rows fixed.")
    header = ["study", "test accuracy", "95 % interval", "std. error", "what varies", "distinct splits", "rho"]
    return Table("sure", "How sure: h* of every study", [*header, "95 % of rho", "points", "tied on dev"], rows, notes)
