"""Every pair of (method, auxiliary loss, paradigm, shape of answer, model family) in some trial of a few steps."""

from __future__ import annotations

import copy
import itertools
import json
import random
from functools import cache
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fewnlu.errors import ConfigError
from fewnlu.protocol.setup import read_setup
from fewnlu.protocol.trial import run_trial
from tests.methods.shapes import SHAPES, write
from tests.running import Workplace, config, failures, results
from tests.tiny import FAMILIES, TAUGHT

PARADIGMS = {
    "single": ["split.run=0"],
    "ipet": ["paradigm=ipet", "paradigm.generations=2", "paradigm.reps=2", "split.run=0"],
    "noisy_cross": ["paradigm=noisy_student", "paradigm.generations=2", "paradigm.labeling=cross", "split.run=0"],
    "cross_clean": ["paradigm=ipet", "paradigm.generations=2", "paradigm.labeling=cross_clean", "split.run=0"],
}
AXES: list[list[str]] = [
    [*FAMILIES, TAUGHT], ["pet", "adapet", "ptuning", "cls"], list(PARADIGMS), list(SHAPES), ["0.0", "1.0"]
]  # fmt: skip


def cover() -> list[tuple[str, ...]]:
    """Combinations in which each pair of values of two axes is there at least once, found greedily."""
    missing = {
        ((i, a), (j, b)) for i, j in itertools.combinations(range(len(AXES)), 2) for a in AXES[i] for b in AXES[j]
    }
    whole, chosen, rng = list(itertools.product(*AXES)), [], random.Random(0)
    rng.shuffle(whole)
    while missing:
        best = max(whole, key=lambda c: sum(p in missing for p in itertools.combinations(enumerate(c), 2)))
        missing -= set(itertools.combinations(enumerate(best), 2))
        chosen.append(best)
    return chosen


@cache
def base(method: str, *more: str) -> dict[str, Any]:
    """A config of a few steps; composing takes longer than a run, so each is composed once."""
    small = ["split.k=2", "hp.max_steps=2", "hp.eval_ratio=0.5", "hp.batch_size=4", "runtime.micro_batch=2"]
    return config(f"+method={method}", "model=local", "model_args.path=x", "logger=none", *small, *more)


def composed(place: Workplace, family: str, method: str, shape: str, *more: str) -> dict[str, Any]:
    """A config of a few steps on one of the tiny tasks."""
    cfg = copy.deepcopy(base(method, *more))
    cfg["task"], cfg["data"]["dir"] = copy.deepcopy(SHAPES[shape]), str(write(place.folder)[1] / shape)
    cfg["model_args"]["path"] = str(place.models(family))
    return cfg


def run_one(place: Workplace, combination: tuple[str, ...]) -> None:
    family, method, paradigm, shape, weight = combination
    cfg = composed(place, family, method, shape)
    chosen = base("pet", *PARADIGMS[paradigm])
    cfg["paradigm"], cfg["split"], cfg["aux"]["mlm_weight"] = chosen["paradigm"], chosen["split"], float(weight)
    out = place.folder / "s"
    run_trial(cfg, out, threads=1)
    assert not failures(out)
    found = results(out)
    assert [r["rep"] for r in found] == list(range(2 if paradigm == "ipet" else 1))
    for r in found:
        assert r["steps_done"] == 2 and 0 <= r["test"]["select"] <= 1
        if paradigm != "single":
            assert sum(r["self_training"]["pseudo_per_class"].values()) > 0
    for path in out.rglob("predictions.parquet"):
        rows = pq.read_table(path).to_pylist()
        assert np.isfinite([[v for n, v in row.items() if n.startswith("score:")] for row in rows]).all()


@pytest.mark.parametrize("combination", cover(), ids="-".join)
def test_pairwise(place: Workplace, combination: tuple[str, ...]) -> None:
    run_one(place, combination)


@pytest.mark.slow
@pytest.mark.parametrize("combination", itertools.product(*AXES), ids="-".join)
def test_whole_matrix(place: Workplace, combination: tuple[str, ...]) -> None:
    run_one(place, combination)


def test_every_pair_is_covered() -> None:
    pairs = {p for c in cover() for p in itertools.combinations(enumerate(c), 2)}
    n = sum(len(a) * len(b) for a, b in itertools.combinations(AXES, 2))
    assert len(pairs) == n and len(cover()) < 40


def test_i072_weight_zero_is_exactly_the_methods_loss(place: Workplace) -> None:
    """The same run, bit for bit, and the same study as without the key; another one with it."""
    names = {}
    for weight in (None, "0.0", "0", "1.0"):
        more = [] if weight is None else [f"aux.mlm_weight={weight}"]
        cfg = composed(place, "bert", "pet", "words", "split.run=0", *more)
        run_trial(cfg, place.folder / str(weight), threads=1)
        (path,) = (place.folder / str(weight)).rglob("result.json")
        (scores,) = (place.folder / str(weight)).rglob("predictions.parquet")
        names[weight] = (path.read_bytes(), pq.read_table(scores).to_pylist())
    assert names[None] == names["0.0"] == names["0"] != names["1.0"]
    assert json.loads(names["1.0"][0])["config"]["aux"]["mlm_weight"] == 1.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+method=ptuning", "task=sst2"], r"method=ptuning: task sst2 has no templates with trainable slots"),
        (["+method=ptuning", "task=SHAPE", "hp.pattern=1"], r"hp\.pattern=1: .* has the patterns 3 for P-tuning"),
        (["+method=pet", "paradigm=ipet", "paradigm.labeling=all"], r"paradigm\.labeling='all'.*single, cross"),
        (["+method=pet", "paradigm=ipet", "paradigm.reps=1"], r"paradigm\.reps=1: .* repetitions are the teachers"),
        (
            ["+method=pet", "paradigm=ipet", "paradigm.labeling=cross", "split=single"],
            r"has one split.*labeling=single",
        ),
        (["+method=pet", "paradigm=ipet", "paradigm.labeling=cross_clean", "split.k=2"], r"split\.k=3 or more"),
        (["+method=pet", "paradigm=ipet", "paradigm.generations=1"], r"paradigm\.generations=1: .* 2 or more"),
        (["+method=pet", "aux.mlm_weight=-1"], r"aux\.mlm_weight=-1"),
        (["+method=ptuning", "task=SHAPE", "hp.head=gru"], r"hp\.head='gru': expected lstm or mlp or raw"),
        (["+method=zeroshot", "task=reviews", "aux.mlm_weight=1"], r"method=zeroshot trains nothing"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(place: Workplace, overrides: list[str], message: str) -> None:
    conf, data = write(place.folder)
    own = [f"data.dir={data / 'words'}"] if "task=SHAPE" in overrides else []
    overrides = ["task=words" if o == "task=SHAPE" else o for o in overrides]
    with pytest.raises(ConfigError, match=message):
        read_setup(config(*overrides, *own, "model=local", f"model_args.path={place.models('bert')}", config_dir=conf))


def test_no_pool_is_refused(place: Workplace) -> None:
    cfg = composed(place, "bert", "pet", "words", "aux.mlm_weight=1")
    (place.folder / "data" / "words" / "unlabeled.jsonl").unlink()
    cfg["task"]["source"]["files"]["unlabeled"] = None
    with pytest.raises(ConfigError, match=r"aux\.mlm_weight=1.*needs unlabelled rows.*task words has none"):
        read_setup(cfg)


def test_ptuning_grid_of_the_paper(place: Workplace) -> None:
    from fewnlu.protocol.grid import points

    for search, rates in (("paper_deberta", {5e-6: 1e-5, 1e-5: 1e-4}), ("paper_albert", {1e-5: 1e-4, 2e-5: 1e-4})):
        cfg = config("task=rte", "+method=ptuning", f"search={search}", "model_args.kind=masked", "model=hub",
                     "model_args.name=x")  # fmt: skip
        found = points(cfg)
        assert len(found) == 32 and {h["pattern"] for h in found} == {1}
        assert {h["lr"]: h["lr_emb"] for h in found} == rates
