"""The benchmark's tables: ranks as printed, names that do not lie, intervals of each kind."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest

from fewnlu.reporting.answers import halves, published_cell, rank_table, ranks_of, with_half
from fewnlu.reporting.published import load

TASKS = ("global_mmlu_nl", "dbrd", "dutch_cola", "arc_nl", "xlwic_nl")


def published() -> dict[str, dict[str, float]]:
    return {r.cells["model"]: {t: float(r.cells[f"{t}_wf1"]) for t in TASKS} for r in load("fietje")}


def test_the_published_ranks_are_recomputed():
    ranks = ranks_of(published())
    assert len(ranks) == 14
    assert {m: ranks[m]["global_mmlu_nl"] for m in ("Qwen2.5-3B-Instruct", "Phi-3.5-mini-instruct", "phi-2")} == {
        "Qwen2.5-3B-Instruct": 1,
        "Phi-3.5-mini-instruct": 2,
        "phi-2": 14,
    }
    medians = {m: median(own.values()) for m, own in ranks.items()}
    assert medians["Phi-3.5-mini-instruct"] == 2 and medians["Qwen2.5-3B-Instruct"] == 1
    assert medians["Boreas-7B-chat"] == 3 and medians["Llama-3.2-3B-Instruct"] == 4


def test_a_toy_leaderboard_keeps_its_first_task():
    toy = {
        ("a", "x"): {"one": 0.9, "two": 0.1},
        ("b", "x"): {"one": 0.1, "two": 0.2},
        ("c", "x"): {"one": 0.1, "two": 0.3},
    }
    table = rank_table(toy)
    assert table is not None and table.header == ["model", "decode", "one", "two", "median", "mean"]
    assert table.rows == [
        ["c", "x", "2", "1", "1.5", "1.50"],
        ["a", "x", "1", "3", "2", "2.00"],
        ["b", "x", "2", "2", "2", "2.00"],
    ]
    assert rank_table({("a", "x"): {"one": 1.0}}) is None
    left = rank_table({**toy, ("d", "x"): {"one": 1.0}})
    assert left is not None and left.notes == ["1 study left out for lack of a task"]


def test_weighted_f1_is_printed_as_the_paper_does():
    values = [0.4834, 0.4838, 0.4825, 0.4841, 0.4832]
    assert with_half(values) == f"48.3 ± {100 * 1.96 * np.std(values, ddof=1) / math.sqrt(5):.1f}"
    assert with_half([0.5]) == "50.0"
    rows = {r.cells["model"]: r for r in load("fietje")}
    assert published_cell(rows, "fietje-2-chat", "dbrd") == "58.78 ± 0.58"
    assert published_cell(rows, "smollm2", "dbrd") == "–"


def test_decoding_and_rows_add_up_to_both():
    rng = np.random.default_rng(0)
    n, runs = 400, 5
    p = rng.beta(0.7, 0.7, n)
    accuracies, found = [], []
    for _ in range(400):
        right = (rng.random((n, runs)) < p[:, None]).astype(float)
        accuracies.append(right.mean())
        found.append(halves(right))
    exact = halves(right, p)
    assert np.mean([h.decoding for h in found]) == pytest.approx(1.96 * np.std(accuracies), rel=0.1)
    assert exact.decoding == pytest.approx(np.mean([h.decoding for h in found]), rel=0.03)
    assert exact.both**2 == pytest.approx(exact.rows**2 + exact.decoding**2)
    assert exact.rows == pytest.approx(1.96 * p.std() / math.sqrt(n), rel=0.1)
    one = halves(right[:, :1])
    assert math.isnan(one.decoding) and math.isnan(one.rows) and one.both > 0  # not known, never 0
    assert halves(right[:, :1], right[:, 0]).decoding == 0.0  # a ranking draws nothing
