"""Shared fixtures: tiny models built once a session, and a working directory that nothing outside can see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiny import tiny_model_dir


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family -> the folder of its tiny model."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tiny_model_dir(tmp_path_factory.mktemp("models"), family)
        return made[family]

    return folder


@pytest.fixture(scope="session")
def _frozen() -> None:
    """Sets what the libraries made at import apart, so that the collection after each run has little to search."""
    import gc

    import fewnlu.protocol.lab  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture
def place(
    tmp_path: Path, tiny: Callable[[str], Path], _frozen: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[object]:
    """A `Workplace` in a folder of its own, one torch thread, no W&B account, no user's cache."""
    import torch

    from fewnlu.backbones import loading
    from tests.running import Workplace

    torch.set_num_threads(1)
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "cache"))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "FEWNLU_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    yield Workplace(tmp_path, tiny)
    loading.forget()
