"""PET on tiny models of every family: its loss against a slow reference, learning, batches and kept prefixes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fewnlu.backbones.loading import load_backbone
from fewnlu.methods.method import Context, method_class
from fewnlu.methods.pet import Method
from fewnlu.prompts.readers import Reading, reader_for
from fewnlu.prompts.verbalizer import resolve
from fewnlu.protocol.lab import Lab
from fewnlu.protocol.setup import read_setup
from fewnlu.tasks.task import task_from_config
from tests.running import Workplace, config
from tests.tiny import CAUSAL, FAMILIES, TAUGHT

HP = {"pattern": 0, "lr": 1e-3, "max_steps": 4, "weight_decay": 0.01, "warmup_ratio": 0.0, "batch_size": 8}


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_loss_equals_a_slow_reference(place: Workplace, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec 3.2 in float64, label by label: s_y = mean of the words' logits, cross-entropy over {s_y}."""
    task = task_from_config(config("+method=pet", "task=cb")["task"])
    words = {"entailment": ("yes", "true", "right"), "contradiction": ("no",), "neutral": ("maybe", "okay")}
    pattern = dataclasses.replace(
        task.patterns[0], id=0, template="{premise~} {hypothesis~} ? [MASK]", verbalizer=words
    )
    task = dataclasses.replace(task, patterns={0: pattern})
    backbone = load_backbone("local", path=place.models(family))
    reader = reader_for(backbone.tokenizer, backbone.kind, pattern, task, Reading())
    method = Method(Context(backbone, task, HP, {}, reader)).eval()
    ids = resolve(backbone.tokenizer, pattern, labels=task.labels, kind=backbone.kind)
    assert [len(i) for i in ids] == [len(words[label]) for label in task.labels]
    generator = torch.Generator().manual_seed(0)
    full = 20 * torch.randn(9, len(backbone.tokenizer), generator=generator)
    monkeypatch.setattr(type(backbone), "hidden", lambda self, ids, *a, **k: torch.zeros(*ids.shape, 2))
    monkeypatch.setattr(type(backbone), "logits", lambda self, hidden, tokens: full[:, tokens])
    gold = torch.tensor([0, 1, 2, 2, 1, 0, 0, 1, 2])
    batch = {
        "input_ids": torch.zeros(9, 5, dtype=torch.long),
        "attention_mask": torch.ones(9, 5),
        "read": torch.full((9, 1), 3),
        "gold": gold,
        "rows": list(range(9)),
    }
    total = 0.0
    for row in range(9):
        s = [math.fsum(float(full[row, t]) for t in label) / len(label) for label in ids]
        log_z = max(s) + math.log(math.fsum(math.exp(v - max(s)) for v in s))
        total += log_z - s[int(gold[row])]
        np.testing.assert_allclose(method.scores(batch)[row].double().numpy(), [v - log_z for v in s], atol=5e-6)
    assert abs(float(method.loss(batch)) - total / 9) <= 1e-6 * max(1.0, total / 9)


@pytest.mark.parametrize("family", [*FAMILIES, TAUGHT])
def test_pet_learns_eight_rows_by_heart(place: Workplace, family: str) -> None:
    cfg = place.config(
        "data.n_labeled=8", "split=fixed", "hp.max_steps=40", "hp.lr=0.005", "hp.pattern=0", family=family
    )
    setup = read_setup(cfg)
    setup.data = dataclasses.replace(setup.data, test=setup.data.labeled)  # scored on what it was trained on
    torch.set_num_threads(1)
    (one,) = Lab(setup, ("key", "name"), lambda *_: place.folder).train(0, 0, setup.hs)
    gold = [setup.task.label_id(str(r.label)) for r in setup.rows]
    assert one.test_scores is not None and one.test_scores.argmax(1).tolist() == gold
    assert -one.test_scores[range(8), gold].mean() < 0.3


def _scores(folder: Any) -> dict[str, np.ndarray]:
    """Row -> log-scores, over all predictions below a folder."""
    out = {}
    for path in sorted(folder.rglob("predictions.parquet")):
        for row in pq.read_table(path).to_pylist():
            where = f"{path.parent.name[:5]} {row['set']} {row['id']}"
            out[where] = np.array([v for name, v in row.items() if name.startswith("score:")])
            assert row["prediction"] == ("negative", "positive")[int(out[where].argmax())]
            assert abs(np.exp(out[where]).sum() - 1) < 1e-5
    assert out
    return out


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_i040_evaluation_batch_changes_nothing(place: Workplace, family: str) -> None:
    found = []
    for n in (1, 2, 7, 64):
        (result,) = place.run(f"runtime.eval_batch={n}", "hp.max_steps=0", "split.run=0", family=family, sweep=f"s{n}")
        found.append((result, _scores(place.folder / f"s{n}")))
    for result, scores in found[1:]:
        assert result["dev"] == found[0][0]["dev"]
        assert scores.keys() == found[0][1].keys()
        for row, values in scores.items():
            np.testing.assert_allclose(values, found[0][1][row], atol=1e-4)
            assert values.argmax() == found[0][1][row].argmax()


@pytest.mark.parametrize("family", ["bert", "deberta_v2", "gpt2"])
def test_kept_prefixes_change_nothing(place: Workplace, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    original = Method.scores

    def spy(self: Any, batch: dict[str, Any]) -> Any:
        used.append(batch.get("prefix") is not None)
        return original(self, batch)

    monkeypatch.setattr(Method, "scores", spy)
    found = []
    for gb in (0, 1):
        used.clear()
        (result,) = place.run(
            f"runtime.cache_gb={gb}", "model_args.freeze_layers=2", "split.run=0", family=family, sweep=f"s{gb}"
        )
        found.append((result, _scores(place.folder / f"s{gb}")))
        # DeBERTa's relative positions stay trainable, so its lower layers are not fixed.
        assert set(used) == {gb == 1 and family != "deberta_v2"}
    assert found[0][0]["key"] == found[1][0]["key"]  # how it was run is no part of what was run
    assert found[0][0]["dev"] == found[1][0]["dev"] and found[0][0]["test"] == found[1][0]["test"]
    for row, values in found[0][1].items():
        np.testing.assert_allclose(values, found[1][1][row], atol=1e-5)


def test_unknown_method_is_named() -> None:
    from fewnlu.errors import ConfigError

    with pytest.raises(ConfigError, match="did you mean 'pet'"):
        method_class("pett")


def test_causal_families_read_the_position_before_the_mask(place: Workplace) -> None:
    for family in CAUSAL:
        setup = read_setup(place.config("hp.pattern=0", family=family))
        table = Lab(setup, ("key", "name"), lambda *_: place.folder).table("labeled", setup.hs[0])
        assert table is not None
        assert all(e.read[0] == len(e.input_ids) - 1 for e in table.encoded)
