"""Labelled rows drawn from a larger set, and the pool that is left."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from fewnlu.errors import ConfigError, DataError
from fewnlu.splits.strategy import build_strategy
from fewnlu.tasks.drawing import draw_labeled, limit
from fewnlu.tasks.sources import load, load_pool, load_rows
from fewnlu.tasks.task import Row
from tests.tasks.samples import ITEMS, sample_task, write_rows
from tests.tasks.test_sources import rows, toy, write


def row(i, label, unit=None, **meta):
    return Row(str(i), {"text": f"text {i}"}, label, unit or str(i), meta)


SKEWED = [row(i, "a" if i % 10 else "b") for i in range(60)] + [row(100 + i, "c") for i in range(3)]


def test_i061_each_class_has_so_many_rows_in_every_draw():
    for seed in range(1000):
        drawn = draw_labeled(SKEWED, None, seed, per_class=5)
        assert Counter(r.label for r in drawn) == {"a": 5, "b": 5, "c": 3}
        assert len({r.id for r in drawn}) == len(drawn) == 13
    assert draw_labeled(SKEWED, None, 1, per_class=5) != draw_labeled(SKEWED, None, 2, per_class=5)


def test_i060_so_many_rows_of_each_class_to_train_and_to_dev(tmp_path):
    data = write(tmp_path, "l.jsonl", rows(*["neg"] * 40, *["pos"] * 90))
    write(tmp_path, "t.jsonl", [{"id": 900, "text": "test", "label": "neg"}])
    found = load(toy(), {**data, "per_class": 20})
    labels = [str(r.label) for r in found.labeled.rows]
    strategy = build_strategy({"name": "multisplit", "k": 4, "ratio": 0.8, "stratify": True})
    for split in strategy.splits([r.unit for r in found.labeled.rows], 42, labels):
        assert Counter(labels[i] for i in split.train) == {"neg": 16, "pos": 16}
        assert Counter(labels[i] for i in split.dev) == {"neg": 4, "pos": 4}


def test_a_class_that_is_too_small_is_noted(tmp_path):
    data = write(tmp_path, "l.jsonl", rows("neg", "neg", "pos", "pos", "pos", "pos"))
    write(tmp_path, "t.jsonl", [{"id": 900, "text": "test", "label": "neg"}])
    found = load(toy(), {**data, "per_class": 3})
    assert found.labeled.notes == ("data.per_class=3, but class neg has 2 rows",)


def test_units_are_drawn_whole():
    many = [row(i, "a", unit=str(i // 4)) for i in range(40)]
    drawn = draw_labeled(many, 3, 1)
    assert len(drawn) == 12 and len({r.unit for r in drawn}) == 3
    with pytest.raises(DataError, match="11 units asked for"):
        draw_labeled(many, 11, 1)
    mixed = [row(i, "ab"[i % 2], unit=str(i // 2)) for i in range(8)]
    says = r"class a has 0 units of its own and 4 with rows of several classes \(.* a and b\); use data\.n_labeled"
    with pytest.raises(DataError, match=says):
        draw_labeled(mixed, None, 1, per_class=2)
    with pytest.raises(ConfigError, match="exclude each other"):
        draw_labeled(many, 3, 1, per_class=3)


def test_the_class_of_a_unit_is_that_of_its_original(tmp_path):
    task = sample_task("copa")
    items = [{**ITEMS["copa"][i % 2], "idx": i, "premise": f"Premise {i}."} for i in range(12)]
    data = write_rows(tmp_path, task, "labeled", items)
    write_rows(tmp_path, task, "test", ITEMS["copa"])
    drawn = load(task, {**data, "per_class": 2}).labeled.rows
    assert len(drawn) == 8 and Counter(r.label for r in drawn if not r.meta.get("copy")) == {"0": 2, "1": 2}


def test_a_unit_with_a_test_row_leaves_as_a_whole(tmp_path):
    task = sample_task("copa")
    data = write_rows(tmp_path, task, "labeled", [*ITEMS["copa"], {**ITEMS["copa"][0], "premise": "Other.", "idx": 9}])
    write_rows(tmp_path, task, "test", ITEMS["copa"])
    found = load(task, data)
    assert [r.id for r in found.labeled.rows] == ["9", "9-mirrored"] and found.n_leaks == 4


def test_limits_keep_groups_whole():
    many = [dataclasses.replace(row(i, "a"), meta={"group": str(i // 4)}) for i in range(40)]
    kept = limit(many, 3)
    assert len(kept) == 12 and len({r.meta["group"] for r in kept}) == 3 and limit(many, 10) == many


TEXT_UNIT = "{text|text}"


def test_units_of_several_classes_are_left_out_of_a_draw_by_class(tmp_path):
    """SST-2's train set has 154 texts that stand there with both labels, punctuation apart."""
    texts = [("Fun!", "pos"), ("fun", "neg"), *((f"good {i}", "pos") for i in range(4))]
    texts += [(f"bad {i}", "neg") for i in range(4)]
    data = write(tmp_path, "l.jsonl", [{"id": i, "text": t, "label": y} for i, (t, y) in enumerate(texts)])
    write(tmp_path, "t.jsonl", [{"id": 900, "text": "test", "label": "neg"}])
    task = toy(unit=TEXT_UNIT)
    for seed in range(20):
        found = load(task, {**data, "per_class": 3}, seed)
        assert Counter(r.label for r in found.labeled.rows) == {"neg": 3, "pos": 3}
        assert not {"0", "1"} & {r.id for r in found.labeled.rows}
    note = "data.per_class: 1 units with rows of several classes were not drawn from (ids 0/1)"
    assert found.labeled.notes == (note,) == load_rows(task, {**data, "per_class": 3}, "labeled").notes
    with pytest.raises(DataError, match="class neg has 4 units of its own and 1 with rows of several classes"):
        load(task, {**data, "per_class": 5})


def test_texts_without_words_are_units_of_their_own(tmp_path):
    texts = ["👍", "!!!", "👎", "!!! ", "?", "：）", ":)", "Fun !", "fun"]
    data = write(tmp_path, "l.jsonl", [{"id": i, "text": t, "label": "pos"} for i, t in enumerate(texts)])
    units = [r.unit for r in load_rows(toy(unit=TEXT_UNIT), data, "labeled").rows]
    assert units[1] == units[3] and units[5] == units[6] and units[7] == units[8]  # white space, NFKC, punctuation
    assert len(set(units)) == 6


def test_the_pool_has_no_labelled_and_no_test_row(tmp_path):
    task = toy(source=POOL)
    data = write(tmp_path, "l.jsonl", rows("neg", "pos"))
    write(tmp_path, "t.jsonl", [{"id": 4, "text": "In Test", "label": "neg"}])
    pool = [{"id": 0, "text": "another text of id 0"}, {"id": 7, "text": "TEXT  1"}, {"id": 8, "text": "in test"}]
    write(tmp_path, "u.jsonl", [*pool, {"id": 4, "text": "id of a test row"}, {"id": 1, "text": "text 1"}])
    left = load_pool(task, data, load(task, data))
    assert [r.id for r in left.rows] == ["0", "4"]
    assert left.notes == (
        "removed from the pool: 2 rows whose unit holds the text of a labelled row, "
        "1 whose unit holds the text of a test row",
    )


POOL = {"files": {"labeled": "l.jsonl", "test": "t.jsonl", "unlabeled": "u.jsonl"}}


@pytest.mark.parametrize("own", ["id", None, "name"])
def test_rows_of_a_pool_that_is_numbered_by_itself_stay(tmp_path, own):
    """A coincidence of ids says nothing: RTE's pool, a task without ids, ids with an @ of their own."""
    task = toy(source=POOL, id=own)
    made = [{"id": i, "name": f"doc@{i}", "text": f"text {i}", "label": "pos"} for i in range(3)]
    data = write(tmp_path, "l.jsonl", made)
    write(tmp_path, "t.jsonl", [{"id": 0, "name": "doc@0", "text": "In Test", "label": "neg"}])
    pool = [{"id": i, "name": f"doc@{100 + i}", "text": f"free {i}"} for i in range(9)]
    write(tmp_path, "u.jsonl", [*pool, {"id": 0, "name": "doc@0", "text": "text 0"}])
    left = load_pool(task, data, load(task, data))
    assert [r.fields["text"] for r in left.rows] == [f"free {i}" for i in range(9)]
    assert len({r.id for r in left.rows}) == 9


def test_repeated_ids_of_a_pool_stay_distinct(tmp_path):
    task = toy(source=POOL)
    data = write(tmp_path, "u.jsonl", [{"id": i, "text": t} for i, t in ((1, "a"), ("1@3", "b"), (1, "c"))])
    assert [r.id for r in load_rows(task, data, "unlabeled").rows] == ["1", "1@3", "1@3@3"]


def test_a_column_called_copy_is_only_a_column(tmp_path):
    data = write(tmp_path, "l.jsonl", [{**r, "copy": "yes"} for r in rows("neg", "pos")])
    assert len(load_rows(toy(), {**data, "per_class": 1}, "labeled").rows) == 2


def test_a_task_without_a_pool_says_so(tmp_path):
    data = write(tmp_path, "l.jsonl", rows("neg", "pos"))
    write(tmp_path, "t.jsonl", [{"id": 4, "text": "In Test", "label": "neg"}])
    assert load_pool(toy(), data, load(toy(), data)) is None
