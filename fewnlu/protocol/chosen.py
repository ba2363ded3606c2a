"""h* of a study, from its records: what `python -m fewnlu.final` retrains."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError
from fewnlu.protocol.records import META, canonical, newest, scan
from fewnlu.protocol.selection import DevScores, select


@dataclass
class Chosen:
    """h* of a study, the records of its runs, and the whole config of one of them."""

    h: dict[str, Any]
    runs: list[dict[str, Any]]
    cfg: dict[str, Any]


def choose(study: Path, seeds: Mapping[str, int] | None = None, k: int | None = None) -> Chosen:
    """h* of a study's folder.

    Args:
        seeds: take only runs with these seeds ("data", "split", "train").
        k: take only runs of K = k splits; where the first of more splits are these splits, only runs of those.

    Raises:
        ConfigError: no runs there, those of several studies, seeds or K, or no dev scores to choose by.
    """
    wanted = dict(seeds or {})
    runs: dict[str, list[tuple[dict[str, Any], Path]]] = {}
    for found in scan(study) if study.is_dir() else ():
        if found.damage:
            print(
                f"warning: left out {found.folder}: {found.damage}; the sweep's command computes it anew",
                file=sys.stderr,
            )
        if found.result is not None and _is_wanted(found.result, wanted, k):
            runs.setdefault(canonical(found.result["h"]), []).append((found.result, found.folder))
    every = newest([result for one in runs.values() for result, _ in one])
    keys = {result["key"] for result in every}
    runs = {h: kept for h, one in runs.items() if (kept := [pair for pair in one if pair[0]["key"] in keys])}
    if not every:
        which = "".join(f", seed.{name}={value}" for name, value in wanted.items())
        which += f", split.k={k}" if k is not None else ""
        raise ConfigError(f"{study}: no finished runs{which}; give a study's folder, such as multirun/main/<study>")
    names = sorted({r["study_name"] for r in every})
    if len(names) > 1:
        raise ConfigError(
            f"{study}: runs of {len(names)} studies, and one is retrained; give the folder of one: "
            f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
        )
    for name in ("data", "split", "train"):
        found_seeds = sorted({r["seeds"][name] for r in every})
        if len(found_seeds) > 1:
            raise ConfigError(
                f"{study}: runs under several seeds, and those under one are retrained; add "
                + " or ".join(f"seed.{name}={value}" for value in found_seeds[:5])
            )
    totals = sorted({n for r in every if (n := r.get("k_total")) is not None})
    if len(totals) > 1:  # split 0 of 4 folds and split 0 of 8 train and select on other rows
        raise ConfigError(
            f"{study}: runs of several K, and those of one are retrained; add "
            + " or ".join(f"split.k={value}" for value in totals[:5])
        )
    h = _best(study, runs)
    own = sorted(runs[canonical(h)], key=lambda pair: (pair[0]["k"], pair[0]["rep"]))
    meta = json.loads((own[0][1] / META).read_bytes())
    return Chosen(h, [r for r, _ in own], _as_it_was(meta["config"], study))


def _is_wanted(result: Mapping[str, Any], seeds: Mapping[str, int], k: int | None) -> bool:
    if any(result["seeds"].get(name) != value for name, value in seeds.items()):
        return False
    total = result.get("k_total")  # None where K is no part of a run's identity
    return k is None or (result["k"] < k if total is None else total == k)


def _best(study: Path, runs: Mapping[str, list[tuple[dict[str, Any], Path]]]) -> dict[str, Any]:
    scores = [DevScores.of([r for r, _ in one]) for one in runs.values()]
    if len(runs) == 1:
        return dict(scores[0].h)
    if (chosen := select(scores).h) is not None:
        return dict(chosen)
    raise ConfigError(f"{study}: {len(runs)} points of H and no dev scores, so none can be chosen")


def _as_it_was(cfg: dict[str, Any], study: Path) -> dict[str, Any]:
    """A config of meta.json with what older versions wrote otherwise: labels of JSON's booleans, a relative path."""
    label = (cfg.get("task") or {}).get("label")
    values = label.get("values") if isinstance(label, dict) else None
    for text in ("False", "True"):  # they stood for false and true
        if isinstance(values, dict) and text in values:
            values.setdefault(text.lower(), values[text])
    path = (cfg.get("model_args") or {}).get("path")
    if path and not os.path.isabs(os.path.expanduser(path)):
        places = [Path.cwd(), *study.resolve().parents]  # a sweep lies below where its command was given
        there = next((place / path for place in places if (place / path).is_dir()), None)
        if there is None:
            raise ConfigError(
                f"{study}: its model_args.path={path!r} is relative to the folder where the study was made, and it is "
                f"not below {Path.cwd()}; start this command there"
            )
        cfg["model_args"]["path"] = str(there)
    return cfg
