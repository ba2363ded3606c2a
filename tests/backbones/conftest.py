"""Tiny models of all families, loaded; a cache of its own for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fewnlu.backbones import loading
from fewnlu.backbones.backbone import Backbone

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEWNLU_WHEEL", raising=False)
    yield
    loading.forget()


@pytest.fixture
def load(tiny: Callable[[str], Path]) -> Callable[..., Backbone]:
    """Load the tiny model of a family: `load("bert", freeze_layers=2)`."""

    def load_family(family: str, **options: object) -> Backbone:
        return loading.load_backbone("local", path=tiny(family), **options)  # type: ignore[arg-type]

    return load_family
