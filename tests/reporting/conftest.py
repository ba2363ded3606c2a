"""A sweep that many tests of reports read and none changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reporting.trees import Tree


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("sweep") / "main"
    tree = Tree(root)
    tree.study(k=16)
    tree.study(method="cls", quality=-0.6)
    for k in (2, 4):
        tree.study(split="cv", k=k, k_total=k)
    tree.study(task="cb", metrics=("accuracy", "macro_f1"))
    return root
