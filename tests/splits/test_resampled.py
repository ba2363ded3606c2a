"""Bagging, random sampling and model-informed splits: counts of spec 2.4, overlap, duplicates, nesting, refusals."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from fewnlu.errors import ConfigError, DataError
from fewnlu.splits.strategy import SplitStrategy, build_strategy
from fewnlu.splits.vectors import unit_vectors

UNITS = [f"u{i}" for i in range(64)]
TOPICS = ["the soup was cold and salty", "the striker scored two late goals", "rain and wind on the coast today"]


def texts(n: int = 64) -> list[str]:
    return [f"{TOPICS[i % 2]} number {i} {TOPICS[2] if i % 5 == 0 else ''}" for i in range(n)]


def ready(name: str, n: int = 64, **options: object) -> SplitStrategy:
    strategy = build_strategy({"name": name, **options})
    if strategy.needs_vectors:
        strategy.vectors = unit_vectors(strategy.encoder, [f"u{i}" for i in range(n)], texts(n))
    return strategy


@pytest.mark.parametrize(
    ("name", "options", "train", "dev"),
    [
        ("cv", {}, [48, 48, 48, 48], [16, 16, 16, 16]),
        ("mdl", {}, [32, 40, 48, 56], [8, 8, 8, 8]),
        ("multisplit", {"ratio": 0.5}, [32] * 4, [32] * 4),
        ("multisplit", {"ratio": 0.75}, [48] * 4, [16] * 4),
        ("rand", {"ratio": 0.5}, [32] * 4, [32] * 4),
        ("rand", {"ratio": 0.75}, [48] * 4, [16] * 4),
    ],
)
def test_counts_of_the_paper(name, options, train, dev):
    splits = ready(name, k=4, **options).splits(UNITS, 42)
    assert [len(s.train) for s in splits] == train
    assert [len(s.dev) for s in splits] == dev


@pytest.mark.parametrize(("ratio", "draws", "unique", "out"), [(0.5, 32, 25.3, 38.7), (0.75, 48, 33.9, 30.1)])
def test_bagging_counts_draws_and_out_of_bag(ratio, draws, unique, out):
    splits = ready("bagging", k=400, ratio=ratio).splits(UNITS, 42)
    assert {len(s.train) for s in splits} == {draws}
    assert statistics.mean(len(set(s.train)) for s in splits) == pytest.approx(unique, abs=0.4)
    assert statistics.mean(len(s.dev) for s in splits) == pytest.approx(out, abs=0.4)
    assert all(not set(s.train) & set(s.dev) for s in splits)
    assert all(sorted({*s.train, *s.dev}) == list(range(64)) for s in splits)
    assert any(len(set(s.train)) < len(s.train) for s in splits)


@pytest.mark.parametrize(("ratio", "shared"), [(0.5, 16), (0.75, 12)])
def test_random_sampling_shares_rows_between_train_and_dev(ratio, shared):
    splits = ready("rand", k=400, ratio=ratio).splits(UNITS, 42)
    assert all(len(set(s.train)) == len(s.train) and len(set(s.dev)) == len(s.dev) for s in splits)
    assert statistics.mean(len(set(s.train) & set(s.dev)) for s in splits) == pytest.approx(shared, abs=0.4)


@pytest.mark.parametrize("name", ["bagging", "mi", "cv", "mdl", "multisplit"])
def test_train_and_dev_are_apart(name):
    for split in ready(name, k=4).splits(UNITS, 7):
        assert split.dev and not set(split.train) & set(split.dev)


def test_model_informed_clusters_texts_and_swaps_roles():
    strategy = ready("mi", k=4)
    splits = strategy.splits(UNITS, 42)
    for k, split in enumerate(splits):
        assert sorted([*split.train, *split.dev]) == list(range(64))
        small = min(len(split.train), len(split.dev))
        assert (len(split.train) >= len(split.dev)) == (k % 2 == 0) or len(split.train) == len(split.dev) or small < 8


def test_model_informed_keeps_the_larger_side_when_the_other_is_small():
    vectors = np.eye(2)[[0] * 57 + [1] * 7]
    strategy = build_strategy({"name": "mi", "k": 2})
    strategy.vectors = vectors
    assert [len(s.train) for s in strategy.splits(UNITS, 42)] == [57, 57]  # 7 < max(8, classes): no swap
    strategy.vectors = np.eye(2)[[0] * 55 + [1] * 9]
    assert [len(s.train) for s in strategy.splits(UNITS, 42)] == [55, 9]
    labels = [str(i % 10) for i in range(64)]  # ten classes: 9 are too few for dev to be the larger side
    assert [len(s.train) for s in strategy.splits(UNITS, 42, labels)] == [55, 55]


def test_model_informed_refuses_what_it_cannot_split():
    strategy = build_strategy({"name": "mi", "k": 2})
    strategy.vectors = np.ones((64, 3))
    with pytest.raises(ConfigError, match="too much alike"):
        strategy.splits(UNITS, 42)
    with pytest.raises(ConfigError, match=r"split.vectors='bert'"):
        build_strategy({"name": "mi", "vectors": "bert"})
    with pytest.raises(ValueError, match="one vector per unit"):
        build_strategy({"name": "mi"}).splits(UNITS, 42)


@pytest.mark.parametrize("name", ["bagging", "rand", "mi"])
def test_first_splits_of_more_are_the_same_and_seeds_matter(name):
    four, eight = (ready(name, k=k).splits(UNITS, 42) for k in (4, 8))
    assert eight[:4] == four == ready(name, k=4).splits(UNITS, 42)
    assert ready(name, k=4).splits(UNITS, 43) != four
    assert ready(name, k=4).nested


@pytest.mark.parametrize("name", ["bagging", "rand", "mi"])
def test_rows_of_one_unit_stay_together(name):
    units = [f"u{i // 2}" for i in range(64)]
    strategy = build_strategy({"name": name, "k": 4})
    if strategy.needs_vectors:
        strategy.vectors = unit_vectors("tfidf", units, texts())
    for split in strategy.splits(units, 42):
        for side in (split.train, split.dev):
            assert {r + 1 if r % 2 == 0 else r - 1 for r in side} == set(side)


@pytest.mark.parametrize(("name", "ratio"), [("bagging", 0), ("bagging", 1.2), ("rand", 1), ("rand", True)])
def test_ratio_is_checked(name, ratio):
    with pytest.raises(ConfigError, match=r"split\.ratio"):
        build_strategy({"name": name, "ratio": ratio})


def test_bagging_always_leaves_a_dev_unit():
    assert all(s.dev for s in ready("bagging", n=2, k=50, ratio=1.0).splits(["a", "b"], 1))
    with pytest.raises(ConfigError, match="two units"):
        ready("bagging").splits(["a"], 1)


def test_unit_vectors():
    vectors = unit_vectors("tfidf", ["a", "b", "a"], ["red fox", "blue sea", "red red"])
    assert vectors.shape[0] == 2 and np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert float(vectors[0] @ vectors[1]) == 0
    with pytest.raises(DataError, match="no word"):
        unit_vectors("tfidf", ["a"], ["!!"])
    with pytest.raises(ConfigError, match="tfidf"):
        unit_vectors("x", ["a"], ["b"])


def test_a_config_with_model_informed_splits_is_read(tmp_path):
    from fewnlu.protocol.check import config_loader
    from fewnlu.protocol.compose import compose
    from fewnlu.protocol.setup import read_setup

    setups = [
        read_setup(compose(config_loader(), ["+method=pet", "split=mi", "task=reviews", *more]).cfg)
        for more in ([], ["split.k=8"])
    ]
    four, eight = (s.splits for s in setups)
    assert eight[:4] == four and all(min(len(s.train), len(s.dev)) >= 2 for s in eight)
