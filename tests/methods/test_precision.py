"""A mixed precision holds where rows are scored and frozen layers are read, as it does in the Trainer's own steps."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pytorch_lightning.plugins.precision import MixedPrecision

from fewnlu.backbones.precision import is_mixed, mixed
from fewnlu.methods.looks import score_rows
from fewnlu.methods.method import Context
from fewnlu.methods.pet import Method
from fewnlu.splits.prefix import prefix_of
from fewnlu.trainer_flags import PRECISIONS
from tests.methods.shapes import SHAPES, backbone, table
from tests.methods.toy import HP
from tests.running import Workplace
from tests.tiny import FAMILIES

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", [*PRECISIONS, 16, None])
def test_a_precision_is_mixed_where_lightning_says_so(precision: str | int | None) -> None:
    with mixed(precision, CPU):
        assert torch.is_autocast_enabled("cpu") == is_mixed(precision)
    assert is_mixed(precision) == (str(precision) in {"16-mixed", "bf16-mixed", "16", "bf16"})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_scored_as_lightning_would_run_a_step(family: str, shape: str) -> None:
    bb = backbone(family)
    task, reader, rows = table(bb, shape)
    method = Method(Context(bb, task, HP, {}, reader)).eval()
    full = score_rows(method, rows, range(len(rows)), 4)
    method.precision = "bf16-mixed"
    half = score_rows(method, rows, range(len(rows)), 4)
    assert not torch.is_autocast_enabled("cpu")
    with MixedPrecision("bf16-mixed", "cpu").forward_context(), torch.no_grad():
        for positions, batch in rows.batches(range(len(rows)), 4):
            assert np.array_equal(half[positions], method.scores(batch).float().numpy())
    assert shape == "span" or not np.array_equal(half, full)  # a span is right or wrong
    np.testing.assert_allclose(half, full, atol=0.1)


def test_label_words_keep_their_32_bits() -> None:
    """Logits near 300 are 2 apart in bfloat16: labels that differ by less would tie."""
    bb = backbone("bert")
    states = torch.randn(3, bb.hidden_size, generator=torch.Generator().manual_seed(0)) * 300
    ids = torch.tensor([7, 8, 9])
    with torch.no_grad():
        want = bb.logits(states, ids)
        with mixed("bf16-mixed", CPU):
            got, whole = bb.logits(states.bfloat16(), ids), bb.logits(states.bfloat16())
            with torch.enable_grad():
                trained = bb.logits(states)
    assert got.dtype == whole.dtype == torch.float32 and trained.dtype == torch.bfloat16
    torch.testing.assert_close(whole[:, ids], got)
    with torch.no_grad():
        again = bb.logits(states.bfloat16().float(), ids)
    assert torch.equal(got, again) and got.unique().numel() == 9
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


def test_outputs_of_frozen_layers_are_kept_by_precision() -> None:
    bb = backbone("bert")
    bb.freeze(2)
    _, _, rows = table(bb, "words")
    kept = [prefix_of(("t", p), bb, rows, 1.0, mixed(p, CPU)) for p in ("32-true", "bf16-mixed")]
    assert kept[0] is not None and kept[1] is not None
    assert not torch.equal(kept[0].states, kept[1].states)
    torch.testing.assert_close(kept[0].states, kept[1].states.float(), rtol=0, atol=0.1)


@pytest.mark.parametrize("frozen", [0, 2])
def test_a_run_in_mixed_precision_is_near_one_in_32_bits(place: Workplace, frozen: int) -> None:
    """Another study, and scores that differ by bfloat16's rounding, with kept outputs of frozen layers and without."""
    options = (f"model_args.freeze_layers={frozen}", "split.run=0", "hp.max_steps=0")
    found = []
    for precision in ("32-true", "bf16-mixed"):
        place.run(*options, f"++trainer.precision={precision}", sweep=precision)
        (file,) = (place.folder / precision).rglob("predictions.parquet")
        rows = pq.read_table(file).to_pylist()
        found.append(np.asarray([v for row in rows for name, v in row.items() if name.startswith("score:")]))
    assert not np.array_equal(*found)
    np.testing.assert_allclose(*found, atol=0.1)
