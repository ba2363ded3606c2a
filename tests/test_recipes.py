"""The paper's best combinations (spec 5.11) compose into what their table says."""

from __future__ import annotations

import pytest

from fewnlu.protocol.grid import points
from tests.running import config

CERTAIN = {
    "boolq": ("pet", "ipet", 1.0),
    "rte": ("adapet", "noisy_student", 0.0),
    "wic": ("pet", "ipet", 0.0),
    "cb": (None, "ipet", None),
    "multirc": (None, "noisy_student", None),
    "wsc": (None, "noisy_student", 0.0),
    "copa": ("pet", "ipet", 0.0),
}


@pytest.mark.parametrize("task", CERTAIN)
def test_best_combination(task: str) -> None:
    method, paradigm, weight = CERTAIN[task]
    cfg = config(f"experiment=best_{task}", "data.dir=x", "model_args.kind=masked")
    assert (cfg["task"]["name"], cfg["paradigm"]["name"], cfg["paradigm"]["labeling"]) == (task, paradigm, "cross")
    assert method in (None, cfg["method"]["name"]) and weight in (None, cfg["aux"]["mlm_weight"])
    assert len(points(cfg)) == 1 and cfg["model"]["name"] == "deberta_xxlarge"
    assert cfg["hp"]["batch_size"] == 16 and cfg["hp"]["batch_size"] % cfg["runtime"]["micro_batch"] == 0
