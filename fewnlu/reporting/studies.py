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
from fewnlu.protocol.records import canonical, newest, scan
from fewnlu.protocol.selection import Choice, DevScores, fullest, mean, select, std
from fewnlu.protocol.statistics import spearman


@dataclass
class Study:
    """The runs of one study under one set of seeds (and, where splits are not nested, one K).

    Attributes:
        runs: results by canonical JSON of h, ordered by (k, rep); each with its "folder", without the ids of its rows.
        failed: failures, ordered by path, but for those of runs that are done elsewhere.
        damaged: run folders that hold neither a whole result nor a failure.
        older: runs left out because others of the study were made by code with newer NUMERICS.
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
    older: int = 0
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
    def places(self) -> set[tuple[int, int]]:
        """The splits and repetitions (k, rep) seen anywhere in the study: the runs that each h should have."""
        return {(r["k"], r["rep"]) for results in self.runs.values() for r in results} | {
            (int(f.get("k") or 0), int(f.get("rep") or 0)) for f in self.failed
        }

    @property
    def wanted(self) -> int:
        """How many runs each h should have."""
        return len(self.places)

    @property
    def full(self) -> frozenset[tuple[int, int]]:
        """The runs (k, rep) over which points of H are compared; see `protocol.selection.fullest`."""
        return fullest(places(results) for results in self.runs.values())


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


def places(results: Iterable[dict[str, Any]]) -> frozenset[tuple[int, int]]:
    """(k, rep) of some runs."""
    return frozenset((r["k"], r["rep"]) for r in results)


def read_studies(roots: Iterable[Path]) -> list[Study]:
    """All studies below some folders, ordered by name and seeds.

    A run found twice (two sweeps, or a folder given twice) counts once, and where it is done its failures elsewhere do
    not count. Of runs that code with different NUMERICS made, only the newest count.
    """
    found: dict[tuple[Any, ...], Study] = {}
    folders: dict[Path, Study] = {}  # where studies lie; the first one answers for damage
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
                folder = run.folder.parent.parent
                study = found.get(ident)
                if study is None:
                    study = Study(what["study_name"], what["study"], seeds, what.get("k_total"), folder)
                    found[ident] = study
                folders.setdefault(folder, study)
                if run.result is not None:
                    study.runs.setdefault(canonical(run.result["h"]), []).append(_slim(run.result, run.folder, shared))
                else:
                    study.failed.append(what)
    for study in found.values():
        _settle(study)
        study.sampled = next((e.sampled for e in read_expected(study.folder.parent) if study.name in e.studies), None)
    for path in dict.fromkeys(damaged):
        folder = path.parent.parent
        if folder not in folders:  # nothing else is left of its study
            found[folder.name, "", str(folder), 0] = lost = Study(folder.name, "", {}, None, folder)
            folders[folder] = lost
        folders[folder].damaged.append(path)
    return [found[ident] for ident in sorted(found)]


def _settle(study: Study) -> None:
    """Each run once, of one version of the numerics; failures of what is not done."""
    kept = newest([r for results in study.runs.values() for r in results])
    study.older = study.n_runs - len(kept)
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for result in kept:
        runs.setdefault(canonical(result["h"]), {})[result["key"]] = result
    study.runs = {h: sorted(once.values(), key=lambda r: (r["k"], r["rep"])) for h, once in runs.items()}
    done = {(h, *place) for h, results in study.runs.items() for place in places(results)}
    failed: dict[str, dict[str, Any]] = {}
    for one in study.failed:
        if (canonical(one.get("h")), one.get("k"), one.get("rep")) not in done:
            failed.setdefault(str(one.get("key") or len(failed)), one)
    study.failed = list(failed.values())


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
    return [DevScores.of(results) for results in study.runs.values()]


def dev_test_means(study: Study) -> list[tuple[dict[str, Any], float, float]]:
    """(h, dev mean, test mean) of every h with the runs that are compared: what Spearman's rho is over."""
    full = study.full
    return [
        (results[0]["h"], mean([r["dev"]["select"] for r in results]), mean([r["test"]["select"] for r in results]))
        for results in study.runs.values()
        if places(results) == full
        and all(r["dev"] and r["test"] and None not in (r["dev"]["select"], r["test"]["select"]) for r in results)
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
    points = dev_test_means(study)
    rho = spearman([p[1] for p in points], [p[2] for p in points]) if points else math.nan
    warnings = Counter(w for results in study.runs.values() for r in results for w in r["warnings"])
    return Summary(study, choice, test, rho, len(points), controls, n_test, dict(sorted(warnings.items())))
