"""Facts about the machine and the software that a record's meta.json states; none of them changes a run's key."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from fewnlu.methods import memory

PACKAGES = (
    "fewnlu",
    "torch",
    "pytorch-lightning",
    "transformers",
    "tokenizers",
    "hydra-core",
    "datasets",
    "outlines",
    "numpy",
    "scipy",
)


@functools.cache
def versions() -> dict[str, str]:
    """Versions of python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def commit() -> str | None:
    """Commit of the checkout that fewnlu runs from, with ``+`` for changed files; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (head.stdout.strip() + ("+" if dirty.stdout.strip() else "")) or None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def stay() -> None:
    """Keep this process where it is a joblib worker: models and outputs of frozen layers that it holds are no leak.

    joblib ends a worker that has grown by 300 MB since its first job; the next one would read the model anew and
    compute those outputs again. It has no setting for that (joblib 1.6, loky's `process_executor`).
    """
    workers = sys.modules.get("joblib.externals.loky.process_executor")
    if getattr(workers, "_USE_PSUTIL", False):
        vars(workers)["_USE_PSUTIL"] = False


def facts() -> dict[str, Any]:
    """Versions, commit, hardware and peak memory (bytes, of the process that took most)."""
    torch = sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_available()
    return {
        "versions": versions(),
        "commit": commit(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "threads": torch.get_num_threads() if torch is not None else None,
        "gpu": torch.cuda.get_device_name(0) if torch is not None and cuda else None,
        **memory.peaks(),
    }


@functools.cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
