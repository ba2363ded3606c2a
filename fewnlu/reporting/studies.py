"""From a folder of records to studies: what was compared, h* (chosen on dev alone), and what judges it."""

from __future__ import annotations

import contextlib
import gc
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewnlu.protocol.expected import read_expected
from fewnlu.protocol.records import canonical, scan
from fewnlu.protocol.selection import Choice, DevScores, mean, select, std
from fewnlu.protocol.statistics import spearman


@dataclass
class Study:
    """The runs of one study under one set of seeds (and, where splits are not nested, one K).

    Attributes:
        runs: results by canonical JSON of h, ordered by (k, rep); each with its "folder", without the ids of its rows.
        failed: failures, ordered by path.
        damaged: run folders that hold neither a whole result nor a failure.
        sampled: the sweeper that drew h, where H is no grid.
    """

    name: str
    key: str
    seeds: dict[str, int]
    k_total: int | None
    folder: Path
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failed: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)
    sampled: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        for results in self.runs.values():
            return results[0]["config"]
        return self.failed[0].get("config", {}) if self.failed else {}

    @property
    def n_runs(self) -> int:
        return sum(len(results) for results in self.runs.values())

    @property
    def wanted(self) -> int:
        """Runs that each h should have: the splits and repetitions seen anywhere in the study."""
        return len(
            {(r["k"], r["rep"]) for results in self.runs.values() for r in results}
            | {(f.get("k"), f.get("rep")) for f in self.failed}
        )


@dataclass
class Spread:
    """Mean and spread over runs, as fractions; std and variance are the sample's (n - 1), NaN for one run."""

    mean: float
    std: float
    n: int

    @property
    def variance(self) -> float:
        return self.std**2

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(mean(values), std(values), len(values))


@dataclass
class Summary:
    """What is printed of a study.

    Attributes:
        choice: h* and its dev score.
        test: per metric and under "select", over the K runs of h*; empty without a test set.
        rho / n_points: Spearman of dev and test means over H, and how many h it rests on.
        controls: majority and chance on the test set, per metric.
    """

    study: Study
    choice: Choice
    test: dict[str, Spread]
    rho: float
    n_points: int
    controls: dict[str, dict[str, float]]
    n_test: int | None
    warnings: dict[str, int]


def read_studies(roots: Iterable[Path]) -> list[Study]:
    """All studies below some folders, ordered by name and seeds."""
    found: dict[tuple[Any, ...], Study] = {}
    damaged: list[Path] = []
    shared: dict[str, Any] = {}
    with _no_garbage():
        for root in roots:
            for run in scan(Path(root)):
                what = run.result or run.failure
                if what is None:
                    if run.damage:
                        damaged.append(run.folder)
                    continue  # begun and not ended: see `reporting.status`
                seeds = {k: v for k, v in what["seeds"].items() if k != "run"}
                ident = (what["study_name"], what["study"], canonical(seeds), what.get("k_total") or 0)
                study = found.get(ident)
                if study is None:
                    study = Study(
                        what["study_name"], what["study"], seeds, what.get("k_total"), run.folder.parent.parent
                    )
                    found[ident] = study
                if run.result is not None:
                    study.runs.setdefault(canonical(run.result["h"]), []).append(_slim(run.result, run.folder, shared))
                else:
                    study.failed.append(what)
    for study in found.values():
        for h, results in study.runs.items():
            # The same run found twice (two sweeps, or a folder given twice) counts once.
            study.runs[h] = sorted({r["key"]: r for r in results}.values(), key=lambda r: (r["k"], r["rep"]))
        study.damaged = [d for d in damaged if d.is_relative_to(study.folder)]
        study.sampled = next((e.sampled for e in read_expected(study.folder.parent) if study.name in e.studies), None)
    return [found[ident] for ident in sorted(found)]


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """No garbage collection while many small objects are made that all stay: it would walk them again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _slim(result: dict[str, Any], folder: Path, shared: dict[str, Any]) -> dict[str, Any]:
    """A result as reports need it: with its folder, without the ids of its rows, one config object per study."""
    result["config"] = shared.setdefault(result["study"], result["config"])
    result["folder"] = str(folder)
    for name in ("train", "dev"):
        (result["rows"].get(name) or {}).pop("ids", None)
    return result


def dev_table(study: Study) -> list[DevScores]:
    """Dev scores per h: all that selection may see."""
    return [
        DevScores(results[0]["h"], [r["dev"]["select"] for r in results if r["dev"] and r["dev"]["select"] is not None])
        for results in study.runs.values()
    ]


def summarise(study: Study) -> Summary:
    """Select h* on dev, then look at its test scores (Algorithm 1, steps 3 to 5)."""
    choice = select(dev_table(study))
    chosen = study.runs.get(canonical(dict(choice.h))) if choice.h is not None else None
    if chosen is None and len(study.runs) == 1:  # a strategy without dev and a single h: nothing to select
        chosen = next(iter(study.runs.values()))
    test: dict[str, Spread] = {}
    controls: dict[str, dict[str, float]] = {}
    n_test = None
    if chosen and all(r["test"] for r in chosen):
        for name in chosen[0]["test"]["metrics"]:
            test[name] = Spread.of([r["test"]["metrics"][name] for r in chosen])
        test["select"] = Spread.of([r["test"]["select"] for r in chosen])
        controls = chosen[0]["test"]["controls"]
        n_test = chosen[0]["rows"]["test"]["n"]
    full = max((len(results) for results in study.runs.values()), default=0)
    points = [
        (mean([r["dev"]["select"] for r in results]), mean([r["test"]["select"] for r in results]))
        for results in study.runs.values()
        if len(results) == full and all(r["dev"] and r["test"] for r in results)
    ]
    rho = spearman([p[0] for p in points], [p[1] for p in points]) if points else math.nan
    warnings = Counter(w for results in study.runs.values() for r in results for w in r["warnings"])
    return Summary(study, choice, test, rho, len(points), controls, n_test, dict(sorted(warnings.items())))
