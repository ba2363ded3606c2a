"""Where a model's files lie and the hash of its weights, config and tokenizer; nothing here imports torch.

The hash goes into the study key, so it is asked before any model is read. Those of the weights are cached by (path,
size, mtime) because hashing gigabytes at every start is what one would switch off.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from fewnlu.backbones import smollm2_mlm
from fewnlu.backbones.kind import check_source, hub_error
from fewnlu.backbones.smollm2 import GGUF_SHA256, cache_dir, ensure_smollm2
from fewnlu.errors import ConfigError

_SINGLE, _SHARDS = "model.safetensors", "model-*-of-*.safetensors"
# What decides beside the weights what a model computes and how it reads text; the same tensors under another tokenizer
# are another model.
_BESIDE = ["config.json", "tokenizer*.json", "special_tokens_map.json", "added_tokens.json"]
_BESIDE += ["vocab.*", "merges.txt", "*.model", "*.jinja"]
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.jinja", _SINGLE, _SHARDS]


def model_folder(source: str, name: str | None, path: str | Path | None, revision: str | None) -> Path:
    """The local folder of a model's files, fetched or made first where that is needed.

    Raises:
        ConfigError: no such folder, the hub cannot be reached, the embedded model cannot be made.
    """
    check_source(source, name, path)
    if source == "smollm2":
        return ensure_smollm2(progress=True)
    if source == "smollm2_mlm":
        return smollm2_mlm.ensure_smollm2_mlm()
    if source == "local":
        folder = Path(str(path)).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"model_args.path={str(path)!r} is no folder")
        return folder.resolve()
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(str(name), revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"])
    except Exception as error:  # the hub raises HTTP, OS, validation and cache errors alike
        raise hub_error(str(name), revision, "the files", error) from error
    return Path(found)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, sorted by name.

    Raises:
        ConfigError: there are none; says how to convert pickled weights, which are never read (they can run
            code).
    """
    files = [folder / _SINGLE] if (folder / _SINGLE).is_file() else sorted(folder.glob(_SHARDS))
    if files:
        return files
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.ckpt"), *folder.glob("*.h5")])
    seen = f"found only {', '.join(p.name for p in pickled)}" if pickled else "found no weights"
    raise ConfigError(
        f"{folder}: {seen}, expected model.safetensors. Pickled weights can run code when read and are "
        "refused.\nIf you trust them, convert once: load the model with transformers, then "
        "model.save_pretrained(FOLDER) and tokenizer.save_pretrained(FOLDER); then model=local "
        "model_args.path=FOLDER.\n"
        "On the hub many models have a converted revision (model_args.revision=refs/pr/N)."
    )


def weights_sha(folder: Path) -> str:
    """SHA-256 over the names and hashes of a folder's weight, config and tokenizer files (hex)."""
    digest = hashlib.sha256()
    for file in weight_files(folder):
        digest.update(f"{file.name} {_file_sha(file)}\n".encode())
    for file in sorted({file for pattern in _BESIDE for file in folder.glob(pattern)}):
        digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def fingerprint(
    source: str, name: str | None = None, path: str | Path | None = None, revision: str | None = None
) -> str:
    """The hash that identifies a model (`weights_sha`), without torch; for the embedded models the pinned file's.

    Equal to `Backbone.weights_sha` of the loaded model.

    Raises:
        ConfigError: the weights are not there or are pickled.
    """
    check_source(source, name, path)
    if source == "smollm2":
        return GGUF_SHA256
    if source == "smollm2_mlm":
        return smollm2_mlm.fingerprint()
    return weights_sha(model_folder(source, name, path, revision))


def _file_sha(file: Path) -> str:
    real = file.resolve()  # the hub's cache links to blobs
    stat = real.stat()
    key = f"{real}|{stat.st_size}|{stat.st_mtime_ns}"
    store = cache_dir() / "weights-sha256.json"
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict):
        known = {}
    if key not in known:
        with real.open("rb") as stream:
            known[key] = hashlib.file_digest(stream, "sha256").hexdigest()
        _write(store, json.dumps(known, indent=0, sort_keys=True))
    return str(known[key])


def _write(file: Path, text: str) -> None:
    """Write atomically; an unwritable cache only costs the next start some seconds."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".hashes-")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except OSError:
        pass
