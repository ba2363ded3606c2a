"""Metrics of answer texts and of groups, and their chance."""

import numpy as np
import pytest

from fewnlu.tasks.answers import exact_match, normalised_answer, token_f1
from fewnlu.tasks.metrics import compute, controls
from tests.tasks.samples import sample


def test_i024_white_space_and_case_do_not_count_and_the_text_is_kept():
    outputs = ["ja", "ja ", " ja\n", "Ja", "nee"]
    assert [exact_match(o, ["ja"]) for o in outputs] == [1, 1, 1, 1, 0]
    assert outputs == ["ja", "ja ", " ja\n", "Ja", "nee"]


def test_official_normalisation():
    assert normalised_answer(" The  U.S. Congress, a body! ") == "us congress body"
    assert normalised_answer("Ana the Great") == "ana great" and normalised_answer("theatre") == "theatre"


def test_best_of_several_answers():
    assert exact_match("the Congress", ["Senate", "Congress"]) == 1.0
    assert token_f1("Diego Costa", ["Kurt Zouma", "Costa"]) == pytest.approx(2 / 3)
    assert token_f1("Costa Costa", ["Costa"]) == pytest.approx(2 / 3)
    assert token_f1("Lund", []) == 0.0 == exact_match("Lund", [])


META = [
    {"candidates": ("Ana", "Lev"), "right": (0,), "answers": ("Ana",)},
    {"candidates": ("Lund", "Port Lund", "Oslo"), "right": (0,), "answers": ("Lund",)},
]


def test_metrics_over_the_rows_own_candidates():
    names = ["accuracy", "answer_em", "answer_f1"]
    scores = [[-1.0, -2.0, -np.inf], [-3.0, -1.0, -2.0]]
    found = compute(names, scores, [0, 0], (), META)
    assert found == {"accuracy": 0.5, "answer_em": 0.5, "answer_f1": pytest.approx((1 + 2 / 3) / 2)}
    assert compute(names, [[1, 0, -np.inf], [1, 0, 0]], [0, 0], (), META)["answer_em"] == 1.0


def test_chance_knows_how_many_candidates_a_row_has(tmp_path):
    task, _ = sample(tmp_path, "record")
    chance = controls(task, [0, 0], meta=META)["chance"]
    assert chance["answer_em"] == pytest.approx((1 / 2 + 1 / 3) / 2, abs=0.03)
    assert chance["answer_f1"] == pytest.approx((1 / 2 + (1 + 2 / 3) / 3) / 2, abs=0.03)
    assert chance == controls(task, [0, 0], meta=META)["chance"]


def test_chance_of_exact_match_falls_with_the_size_of_groups(tmp_path):
    task, rows = sample(tmp_path, "multirc")
    gold = [task.gold(row) for row in rows]
    chance = controls(task, gold, meta=[row.meta for row in rows])["chance"]
    assert chance["em"] == pytest.approx(1 / 4, abs=0.03) and chance["accuracy"] == 0.5
    with pytest.raises(ValueError, match="0 groups for 4 rows"):
        controls(task, gold)


def test_chance_of_candidates_does_not_depend_on_the_parts(tmp_path, monkeypatch):
    task, _ = sample(tmp_path, "record")
    whole = controls(task, [0, 0], meta=META)
    monkeypatch.setattr("fewnlu.tasks.metrics._AT_ONCE", 14)  # seven draws a part
    assert controls(task, [0, 0], meta=META) == whole
