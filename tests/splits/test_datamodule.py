"""Batches of a training: every update has the same rows whatever the micro-batch and the looks at dev."""

from __future__ import annotations

import pytest

from fewnlu.prompts.encoding import Encoded
from fewnlu.splits.datamodule import FewShotData, RowStream, Table
from fewnlu.splits.strategy import Split


def _table(n: int = 10) -> Table:
    return Table([Encoded(str(i), [1] * (i % 3 + 1), None, [0]) for i in range(n)], [0] * n, 0)


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_i070_rows_of_an_update_do_not_depend_on_the_micro_batch(micro: int) -> None:
    stream = [row for batch in RowStream(range(10, 22), 5, 8, micro, seed=3) for row in batch]
    whole = [row for batch in RowStream(range(10, 22), 5, 8, 8, seed=3) for row in batch]
    assert stream == whole and len(stream) == 40
    assert len(RowStream(range(12), 5, 8, micro, seed=3)) == 5 * 8 // micro


def test_every_row_is_seen_once_before_any_is_seen_twice() -> None:
    rows = [row for batch in RowStream(range(12), 6, 8, 4, seed=1) for row in batch]
    for start in range(0, 48, 12):
        assert sorted(rows[start : start + 12]) == list(range(12))


def test_batch_larger_than_the_train_set() -> None:
    batches = list(RowStream(range(3), 2, 8, 8, seed=1))
    assert [len(b) for b in batches] == [8, 8]


def test_order_depends_on_the_seed_alone() -> None:
    one, two, other = (list(RowStream(range(20), 4, 4, 4, seed)) for seed in (1, 1, 2))
    assert one == two != other


def test_datamodule_pads_to_the_longest_of_the_batch_and_keeps_positions() -> None:
    data = FewShotData(0, Split((3, 4, 5), (0, 1))).connect(_table(), updates=2, batch_size=3, micro_batch=3, seed=0)
    batches = list(data.train_dataloader())
    assert len(batches) == 2
    for batch in batches:
        assert sorted(batch["rows"]) == [3, 4, 5]
        assert batch["input_ids"].shape == (3, 3)
        assert batch["attention_mask"].sum(1).tolist() == [r % 3 + 1 for r in batch["rows"]]


def test_batches_cover_each_row_once_in_its_place() -> None:
    rows = [7, 1, 4, 0, 9]
    seen = {}
    for positions, batch in _table().batches(rows, 2):
        assert len(positions) <= 2
        seen.update({p: r for p, r in zip(positions, batch["rows"], strict=True)})
    assert [seen[p] for p in range(5)] == rows
