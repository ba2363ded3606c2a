"""Split strategies: golden lists, disjoint parts, whole units, balanced folds, refusals."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewnlu.errors import ConfigError
from fewnlu.splits.multisplit import take
from fewnlu.splits.strategy import SplitStrategy, build_strategy, runs_of, split_seeds

N64 = [str(i) for i in range(64)]


def strategy(name: str, **options: Any) -> SplitStrategy:
    return build_strategy({"name": name, "run": None, **options})


def test_split_seeds_are_those_of_the_released_toolkit() -> None:
    expected = [1824, 409, 4506, 4012, 3657, 2286, 1679, 8935, 1424, 9674, 6912, 520, 488, 1535, 3582, 3811]
    assert split_seeds(42, 16) == expected
    assert split_seeds(42, 3) == expected[:3]


@pytest.mark.parametrize(
    ("k", "first"),
    [
        (0, [45, 60, 0, 18, 13, 3, 31, 27, 50, 14]),
        (1, [48, 49, 21, 19, 20, 15, 31, 4, 38, 18]),
        (2, [34, 48, 3, 7, 18, 8, 30, 61, 29, 24]),
        (3, [41, 54, 42, 47, 56, 45, 57, 51, 7, 3]),
    ],
)
def test_multisplit_golden(k: int, first: list[int]) -> None:
    split = strategy("multisplit", k=4).splits(N64, 42)[k]
    assert list(split.train[:10]) == first
    assert len(split.train) == len(split.dev) == 32
    assert sorted(split.train + split.dev) == list(range(64))


def test_multisplit_k8_begins_with_k4() -> None:
    four, eight = (strategy("multisplit", k=k).splits(N64, 7) for k in (4, 8))
    assert eight[:4] == four
    assert len({s.train for s in eight}) == 8


@pytest.mark.parametrize(
    ("n", "ratio", "train"), [(100, 0.29, 29), (100, 0.57, 57), (64, 0.75, 48), (10, 0.7, 7), (7, 0.5, 3)]
)
def test_multisplit_ratio_is_free_of_float_error(n: int, ratio: float, train: int) -> None:
    split = strategy("multisplit", ratio=ratio).split([str(i) for i in range(n)], 0, 42)
    assert (len(split.train), len(split.dev)) == (train, n - train)


def test_cv_file_order_golden() -> None:
    splits = strategy("cv", k=4, order="file").splits(N64, 42)
    assert [s.dev for s in splits] == [tuple(range(a, a + 16)) for a in (0, 16, 32, 48)]
    assert splits[1].train == (*range(16), *range(32, 64))


def test_mdl_file_order_golden() -> None:
    splits = strategy("mdl", k=4, order="file").splits(N64, 42)
    assert [s.train for s in splits] == [tuple(range(n)) for n in (32, 40, 48, 56)]
    assert [s.dev for s in splits] == [tuple(range(n, n + 8)) for n in (32, 40, 48, 56)]


def test_single_file_order_is_the_first_half() -> None:
    (split,) = strategy("single", order="file").splits(N64, 42)
    assert (split.train, split.dev) == (tuple(range(32)), tuple(range(32, 64)))


def test_fixed_trains_on_all_rows_and_has_no_dev() -> None:
    (split,) = strategy("fixed").splits(N64, 42)
    assert (split.train, split.dev) == (tuple(range(64)), ())


def test_shuffled_order_golden() -> None:
    order = list(range(12))
    random.Random(42).shuffle(order)
    assert order == [7, 5, 2, 8, 9, 6, 11, 3, 4, 0, 1, 10]  # CPython's; a change of it would change every split
    units = [str(i) for i in range(12)]
    cv = strategy("cv", k=3).splits(units, 42)
    assert [s.dev for s in cv] == [tuple(order[:4]), tuple(order[4:8]), tuple(order[8:])]
    assert cv[0].train == tuple(order[4:])
    mdl = strategy("mdl", k=3).splits(units, 42)
    assert [s.dev for s in mdl] == [tuple(order[6:8]), tuple(order[8:10]), tuple(order[10:])]
    assert mdl[2].train == tuple(order[:10])
    (one,) = strategy("single").splits(units, 42)
    assert one.train == tuple(order[:6])
    assert strategy("cv", k=3).splits(units, 43) != cv


@pytest.mark.parametrize("k", [10, 12, 24, 64])
def test_cv_folds_are_balanced_and_never_empty(k: int) -> None:
    """The toolkit's rounding left folds empty at N = 64, K = 24 (spec 2.6, quirk 2)."""
    splits = strategy("cv", k=k).splits(N64, 42)
    sizes = [len(s.dev) for s in splits]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    assert sorted(i for s in splits for i in s.dev) == list(range(64))


@pytest.mark.parametrize("k", [5, 12, 31, 32])
def test_mdl_folds_are_balanced_and_never_empty(k: int) -> None:
    splits = strategy("mdl", k=k).splits(N64, 42)
    sizes = [len(s.dev) for s in splits]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    for before, after in itertools.pairwise(splits):
        assert after.train == before.train + before.dev


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[str], list[str], str, dict[str, Any], int]:
    units = draw(
        st.lists(st.sampled_from("abcdefghijklmnop"), min_size=6, max_size=60).filter(lambda u: len(set(u)) > 7)
    )
    labels = draw(st.lists(st.sampled_from("xyz"), min_size=len(units), max_size=len(units)))
    name = draw(st.sampled_from(["multisplit", "cv", "mdl", "single", "fixed"]))
    options: dict[str, Any] = {}
    if name in ("cv", "mdl"):
        options = {"k": draw(st.integers(2, 4)), "order": draw(st.sampled_from(["file", "shuffled"]))}
    if name == "multisplit":
        options = {"k": draw(st.integers(1, 4)), "stratify": draw(st.booleans())}
    if name in ("multisplit", "single"):
        options["ratio"] = draw(st.sampled_from([0.3, 0.5, 0.75]))
    return units, labels, name, options, draw(st.integers(0, 10**6))


@given(_cases())
@settings(max_examples=80, deadline=None)
def test_splits_are_disjoint_whole_units_and_repeatable(case: Any) -> None:
    units, labels, name, options, seed = case
    one = strategy(name, **options)
    splits = one.splits(units, seed, labels)
    assert splits == strategy(name, **options).splits(units, seed, labels)
    for split in splits:
        assert split.train and (split.dev or not one.has_dev)
        assert len(set(split.train)) == len(split.train) and len(set(split.dev)) == len(split.dev)
        assert not {units[i] for i in split.train} & {units[i] for i in split.dev}
        if name != "mdl":
            assert sorted(split.train + split.dev) == list(range(len(units)))
        for rows in (split.train, split.dev):
            seen = Counter(units[i] for i in rows)
            assert all(seen[u] == units.count(u) for u in seen)
    assert len(splits) == options.get("k", 1)


@given(
    st.lists(st.sampled_from("aabc"), min_size=8, max_size=80), st.sampled_from([0.25, 0.5, 0.7]), st.integers(0, 99)
)
@settings(max_examples=40, deadline=None)
def test_stratify_keeps_the_ratio_in_every_class(labels: list[str], ratio: float, seed: int) -> None:
    units = [str(i) for i in range(len(labels))]
    split = strategy("multisplit", ratio=ratio, stratify=True).split(units, 0, seed, labels)
    assert len(split.train) == int(len(labels) * ratio + 1e-9)
    sizes = Counter(labels)
    for label, n in sizes.items():
        own = sum(labels[i] == label for i in split.train)
        if min(len(split.train), len(split.dev)) >= len(sizes):
            assert n < 2 or 0 < own < n
        if min(sizes.values()) * min(ratio, 1 - ratio) >= 1:  # no class is so small that others must give
            assert abs(own - n * ratio) < 1


@pytest.mark.parametrize(
    ("sizes", "ratio", "train"),
    [
        ({"common": 62, "rare": 2}, 0.25, {"common": 15, "rare": 1}),
        ({"a_rare": 2, "common": 62}, 0.75, {"a_rare": 1, "common": 47}),
        ({"a": 2, "b": 2, "c": 58, "d": 2}, 0.25, {"a": 1, "b": 1, "c": 13, "d": 1}),
        ({"a": 2, "b": 2, "c": 58, "d": 2}, 0.75, {"a": 1, "b": 1, "c": 45, "d": 1}),
        ({"a": 1, "b": 63}, 0.5, {"a": 1, "b": 31}),  # of one unit: on one side
        ({"a": 3, "b": 4, "c": 5}, 0.5, {"a": 2, "b": 2, "c": 2}),  # largest remainders as ever; the first on ties
        ({"a": 2, "b": 2, "c": 2, "d": 2}, 0.25, {"a": 1, "b": 1}),  # train has fewer units than there are classes
        ({"a": 4, "b": 2, "c": 2}, 0.25, {"a": 1, "b": 1}),
        ({"a": 2, "b": 2}, 0.8, {"a": 2, "b": 1}),  # so has dev
    ],
)
def test_stratify_keeps_every_class_on_both_sides(sizes, ratio: float, train) -> None:
    labels = [label for label, n in sizes.items() for _ in range(n)]
    units = [str(i) for i in range(len(labels))]
    for split in strategy("multisplit", k=8, ratio=ratio, stratify=True).splits(units, 42, labels):
        assert Counter(labels[i] for i in split.train) == train
        assert len(split.train) == take(len(labels), ratio) and len(split.train) + len(split.dev) == len(labels)


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"name": "multisplits"}, "did you mean 'multisplit'"),
        ({"name": "multisplit", "k": 0}, "split.k=0"),
        ({"name": "multisplit", "k": True}, "split.k=True"),
        ({"name": "multisplit", "k": 2.0}, "split.k=2.0"),
        ({"name": "multisplit", "ratio": 0}, "split.ratio=0"),
        ({"name": "multisplit", "ratio": 1}, "split.ratio=1"),
        ({"name": "multisplit", "ratio": "half"}, "split.ratio='half'"),
        ({"name": "multisplit", "stratify": "yes"}, "split.stratify='yes'"),
        ({"name": "multisplit", "order": "file"}, "order"),
        ({"name": "cv", "k": 1}, "split.k=1"),
        ({"name": "cv", "order": "sorted"}, "split.order='sorted'"),
        ({"name": "mdl", "order": None}, "split.order=None"),
        ({"name": "single", "ratio": 2}, "split.ratio=2"),
        ({"name": "fixed", "k": 2}, "k"),
    ],
)
def test_a_strategy_that_cannot_be_built_is_refused(conf: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("(", r"\(")):
        build_strategy(conf)


@pytest.mark.parametrize(
    ("name", "options", "n"),
    [
        ("multisplit", {"ratio": 0.01}, 64),
        ("multisplit", {"ratio": 0.5}, 1),
        ("cv", {"k": 5}, 4),
        ("mdl", {"k": 5}, 8),
        ("mdl", {"k": 1}, 1),
        ("single", {"ratio": 0.1}, 5),
    ],
)
def test_too_few_units_are_refused_before_an_empty_side(name: str, options: dict[str, Any], n: int) -> None:
    with pytest.raises(ConfigError, match=r"split\.(ratio|k)="):
        strategy(name, **options).splits([str(i) for i in range(n)], 42)


def test_units_are_counted_not_rows() -> None:
    with pytest.raises(ConfigError, match="3 labelled units"):
        strategy("cv", k=4).splits(["a"] * 5 + ["b"] * 5 + ["c"] * 5, 42)


@pytest.mark.parametrize("run", [4, -1, [0, 4], 1.5, [], True, "0", {"a": 1}, [0.0]])
def test_split_run_must_list_existing_splits(run: Any) -> None:
    with pytest.raises(ConfigError, match=r"split\.run="):
        runs_of({"run": run}, 4)


def test_split_run_is_sorted_and_free_of_duplicates() -> None:
    assert runs_of({"run": None}, 3) == [0, 1, 2]
    assert runs_of({"run": [2, 0, 2]}, 3) == [0, 2]
    assert runs_of({"run": 1}, 3) == [1]
