"""Rows of tables are called as the paper calls them, and a choice as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewnlu.protocol.setup import read_setup
from fewnlu.reporting.names import labels, method_choice, method_name
from fewnlu.reporting.studies import Study
from tests.running import Workplace


def study(place: Workplace, *overrides: str) -> Study:
    setup = read_setup(place.config(*overrides))
    return Study("s", "k" * 16, {}, None, Path(), {"h": [{"config": setup.study_config()}]})


@pytest.mark.parametrize(
    ("overrides", "name", "choice"),
    [
        ([], "PET", "pet"),
        (["aux.mlm_weight=1.0"], "PET+MLM", "pet aux.mlm_weight=1.0"),
        (["paradigm=ipet"], "PET + iPET (single)", "pet paradigm=ipet"),
        (
            ["paradigm=ipet", "paradigm.labeling=cross", "split.k=4", "aux.mlm_weight=1.0"],
            "PET+MLM + iPET (cross)",
            "pet aux.mlm_weight=1.0 paradigm=ipet paradigm.labeling=cross",
        ),
        (
            ["paradigm=noisy_student", "paradigm.labeling=cross_clean", "split.k=3", "paradigm.generations=2"],
            "PET + Noisy Student (cross_clean, generations=2, K=3)",
            "pet paradigm=noisy_student paradigm.labeling=cross_clean paradigm.generations=2 split.k=3",
        ),
    ],
)
def test_a_method_and_its_paradigm(place: Workplace, overrides: list[str], name: str, choice: str) -> None:
    one = study(place, *overrides)
    assert method_name(one) == name
    assert sorted(method_choice(one).split()) == sorted(choice.split())


def test_studies_that_differ_in_k_alone_have_different_names(place: Workplace) -> None:
    both = [study(place, "paradigm=ipet", "paradigm.labeling=cross", f"split.k={k}") for k in (4, 8)]
    assert labels(both) == ["PET + iPET (cross)", "PET + iPET (cross, K=8)"]
