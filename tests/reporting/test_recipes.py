"""The recipes of the analysis compose, and give the studies that their reports need."""

from __future__ import annotations

import re

import pytest

from fewnlu.config import conf_dir
from fewnlu.protocol.check import config_loader
from fewnlu.protocol.grid import expand
from fewnlu.protocol.setup import read_setup


def commands(name: str) -> list[list[str]]:
    text = (conf_dir() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    return [line.split() for line in re.findall(r"^#\s+python -m fewnlu\.train -m (.*)$", text, re.M)]


def plan(overrides: list[str]):
    from fewnlu.protocol.compose import compose

    loader = config_loader()
    composed = compose(loader, [o for o in overrides if "," not in o])
    params = {k: str(v) for k, v in (composed.hydra.sweeper.get("params") or {}).items()}
    return expand(loader, overrides, params)


def test_strategies_are_one_method_on_six_strategies():
    plans = [plan(c) for c in commands("strategies")]
    setups = [read_setup(one.cfg) for p in plans for one in p.composed]
    names = sorted((s.strategy.name, s.strategy.k) for s in setups)
    cv_mdl = [(n, k) for n in ("cv", "mdl") for k in (2, 4, 8)]
    assert names == sorted([(n, 8) for n in ("bagging", "mi", "multisplit", "rand")] + cv_mdl)
    assert {s.data.labeled.sha256 for s in setups} == {setups[0].data.labeled.sha256}
    assert all(len(job.hs) for p in plans for job in p.jobs)


@pytest.mark.parametrize("command", commands("sensitivity"), ids=lambda c: c[-1])
def test_sensitivity_varies_one_factor(command):
    found = plan(command)
    points = [(h, one.cfg["seed"]["train"]) for one in found.composed for job in found.jobs for h in job.hs]
    values = {
        name: {str(h[name]) for h, _ in points}
        for name in ("pattern", "lr", "batch_size", "eval_ratio", "max_steps", "warmup_ratio")
    }
    moved = {name for name, seen in values.items() if len(seen) > 1}
    factor = command[-1].split("=")[0]
    assert moved == ({factor.removeprefix("hp.")} if factor.startswith("hp.") else set())
    assert len({seed for _, seed in points}) == (3 if factor == "seed.train" else 1)
