"""The embedded masked model: SmolLM2-135M with the adapter that this package ships merged in, as a folder in the cache.

How the adapter was made is in its card (``smollm2_mlm/README.md``); the script is ``scripts/train_smollm2_mlm.py``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from fewnlu.backbones.smollm2 import GGUF_SHA256, cache_dir, ensure_smollm2
from fewnlu.errors import ConfigError

ADAPTER = Path(__file__).parent / "smollm2_mlm" / "adapter.safetensors"
MASK_TOKEN = "<empty_output>"  # in SmolLM2's vocabulary for notebooks' cells; text does not hold it
START_TOKEN = "<|endoftext|>"  # stood between the passages of the training text


@functools.cache
def fingerprint() -> str:
    """What identifies the model: the base's pinned file and the shipped adapter (hex)."""
    return hashlib.sha256(f"{GGUF_SHA256} {hashlib.sha256(ADAPTER.read_bytes()).hexdigest()}".encode()).hexdigest()


def target() -> Path:
    """Where the folder lies, or is going to."""
    return cache_dir() / f"smollm2-135m-mlm-{fingerprint()[:8]}"


def is_made() -> bool:
    """Whether the folder is there; it appears whole, by one rename."""
    return (target() / "fewnlu.json").is_file()


def ensure_smollm2_mlm() -> Path:
    """The model's folder, made on first use from the embedded causal model (540 MB, a few seconds).

    Raises:
        ConfigError: the causal model can't be had, or the cache can't be written.
    """
    from filelock import FileLock

    from fewnlu.backbones.masked_next import build

    if is_made():
        return target()
    base, folder = ensure_smollm2(), target()
    try:
        with FileLock(folder.parent / f"{folder.name}.lock"):
            if not is_made():
                for stale in folder.parent.glob(f".{folder.name}-*"):  # of a process that was killed; the lock is ours
                    shutil.rmtree(stale, ignore_errors=True)
                print(
                    f"fewnlu: embedded model smollm2_mlm: merging its adapter, once (540 MB in {folder.parent})",
                    file=sys.stderr,
                    flush=True,
                )
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as work:
                    made = Path(work) / "model"
                    build(base, ADAPTER, made, MASK_TOKEN, START_TOKEN)
                    shutil.copy(ADAPTER.parent / "README.md", made / "README.md")
                    (made / "fewnlu.json").write_text(json.dumps({"fingerprint": fingerprint()}))
                    shutil.rmtree(folder, ignore_errors=True)
                    os.replace(made, folder)
    except OSError as error:
        raise ConfigError(
            f"the cache {folder.parent} can't be written ({error}).\n"
            "Set FEWNLU_CACHE to a folder that can, with 1 GB free."
        ) from error
    return folder
