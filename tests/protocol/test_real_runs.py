"""What only a whole run shows: where rows came from, overflow in half precision, memory, savers, and paths under each
launcher."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from fewnlu.errors import ConfigError
from fewnlu.methods import memory
from fewnlu.protocol.trial import run_trial
from fewnlu.reporting.studies import read_studies, summarise
from tests.running import Workplace, config, failures, results, write_task
from tests.tiny import tiny_model_dir


def test_i064_a_record_says_which_rows_it_trained_selected_and_tested_on(place: Workplace) -> None:
    """Source, number and hash for train, dev and test; the hashes can be made again from the ids in the record."""
    (result,) = place.run("split.run=0", "data.n_labeled=10")
    rows = result["rows"]
    assert rows["labeled"]["origin"] == "packaged reviews/labeled.jsonl" and rows["labeled"]["n"] == 10
    assert rows["test"]["origin"] == "packaged reviews/test.jsonl" and rows["test"]["n"] == 12
    assert sum(rows["test"]["n_per_class"].values()) == 12
    assert len(rows["labeled"]["sha256"]) == len(rows["test"]["sha256"]) == 64
    for which in ("train", "dev"):
        ids = rows[which]["ids"]
        again = hashlib.sha256(json.dumps(ids, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
        assert rows[which]["hash"] == again and sum(rows[which]["n_per_class"].values()) == len(ids) == 5
    write_task(place.folder, "own")
    cfg = config(
        *place.base(), "task=own", "data.dir=data", "data.n_labeled=null", "split.k=2", config_dir=place.folder / "conf"
    )
    run_trial(cfg, place.folder / "files", threads=1)
    for one in results(place.folder / "files"):
        assert one["rows"]["labeled"]["origin"] == "file own-labeled.jsonl" and one["rows"]["labeled"]["n"] == 16
        assert one["rows"]["test"]["origin"] == "file own-test.jsonl" and one["rows"]["test"]["n"] == 12


@pytest.mark.parametrize("micro", ["null", "4"])
def test_i070_batch_accumulation_and_devices_are_stored(place: Workplace, micro: str) -> None:
    (result,) = place.run("split.run=0", f"runtime.micro_batch={micro}")
    (path,) = (place.folder / "s").rglob("meta.json")
    meta = json.loads(path.read_bytes())
    assert result["h"]["batch_size"] == 8  # the effective batch is part of h, how it was cut is not
    assert meta["config"]["runtime"]["micro_batch"] == (None if micro == "null" else 4)
    assert meta["config"]["trainer"]["devices"] == 1 and "gpu" in meta


def overflowing(folder: Path, model: Path) -> Path:
    """A model whose last feed-forward block passes 65504 and stays far below the limit of 32 bits."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "layer.3." in name and name.endswith("dense.weight") and "attention" not in name:
            tensors[name] = tensor * 3000
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("method", ["pet", "cls"])
@pytest.mark.parametrize("steps", [0, 4])
def test_i093_overflow_in_half_precision_is_a_failure_and_no_score(place: Workplace, method: str, steps: int) -> None:
    """Trained or not: no accuracy of exactly chance; the same model in 32 bits has a score."""
    model = overflowing(place.folder / "model", place.models("bert"))
    overrides = [o for o in place.base() if not o.startswith(("+method", "model_args"))]
    overrides += [f"+method={method}", f"model_args.path={model}", f"hp.max_steps={steps}", "split.k=2"]
    value = run_trial(config(*overrides, "model_args.dtype=float16"), place.folder / "half", threads=1)
    assert np.isnan(value) and results(place.folder / "half") == []
    assert len(failed := failures(place.folder / "half")) == 2
    assert all(any(w in one["error"] for w in ("not finite", "loss is nan", "loss is inf")) for one in failed)
    (study,) = read_studies([place.folder / "half"])
    summary = summarise(study)
    assert len(study.failed) == 2 and not summary.test and summary.choice.h is None
    assert run_trial(config(*overrides), place.folder / "single", threads=1) >= 0
    assert failures(place.folder / "single") == []


def test_i084_another_saver_changes_nothing(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A periodic saver before the one that looks at dev: the chosen weights are those of the metric all the same."""
    import pytorch_lightning as pl

    from fewnlu.methods import training

    small = ("split.run=0", "hp.max_steps=6", "hp.lr=0.02", "hp.eval_ratio=0.17")
    (plain,) = place.run(*small, sweep="plain")
    original, savers = training._trainer, []

    def with_saver(*args: Any, **kwargs: Any) -> Any:
        trainer = original(*args, **kwargs)
        savers.append(pl.callbacks.ModelCheckpoint(place.folder / "ckpt", every_n_train_steps=1, save_top_k=-1))
        trainer.callbacks.insert(0, savers[-1])
        return trainer

    monkeypatch.setattr(training, "_trainer", with_saver)
    (other,) = place.run(*small, sweep="saver")
    assert len(list((place.folder / "ckpt").glob("*.ckpt"))) == 6 and savers[0].best_model_path
    assert other == plain and len(plain["looks"]) == 6
    scores = [score for _, score in plain["looks"]]
    assert plain["chosen_step"] == max(step for step, score in plain["looks"] if score == max(scores))
    assert plain["dev"]["select"] == max(scores)
    for flag in ("++trainer.enable_checkpointing=true", "++trainer.callbacks=[]", "++trainer.default_root_dir=x"):
        with pytest.raises(ConfigError, match="protocol sets this flag itself"):
            place.config(flag)


def peak() -> int:
    """High-water mark of this process's memory since the last reset, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    pytest.skip("no VmHWM here")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks can be reset on Linux alone")
def test_i089_memory_of_an_evaluation_does_not_grow_with_the_rows(place: Workplace) -> None:
    """10,000 rows and 50,000 words: full logits at the mask would be 2 GB."""
    from fewnlu.methods.fit import score_rows
    from fewnlu.methods.method import Context, method_class
    from fewnlu.protocol.lab import Lab
    from fewnlu.protocol.setup import read_setup
    from fewnlu.splits.datamodule import Table
    from fewnlu.tasks.task import Row

    model = tiny_model_dir(place.folder, "bert", surplus=49_700)
    setup = read_setup(config(*place.base(), f"model_args.path={model}", "hp.pattern=0"))
    lab, h = Lab(setup, ("key", "name"), lambda *_: place.folder), setup.hs[0]
    reader = lab.reader(h)
    assert lab.backbone.vocab_size > 49_900
    rows = [Row(str(i), {"text": f"the food {i % 100}"}, "positive", str(i)) for i in range(10_000)]
    table = Table(reader.encode(rows), [1] * len(rows), lab.backbone.tokenizer.pad_token_id, reader=reader)
    method = method_class("pet")(Context(lab.backbone, setup.task, h, {}, reader))
    grown = []
    for n in (500, 10_000):
        memory.reset_peaks()
        before = peak()
        scores = score_rows(method, table, range(n), 32)
        grown.append(peak() - before)
        assert scores.shape == (n, 2) and scores.dtype == np.float64 and np.isfinite(scores).all()
    assert grown[1] < 64 * 2**20 and grown[1] - grown[0] < 32 * 2**20


LAUNCHERS = {
    "single": [],
    "basic": ["-m"],
    "joblib": ["launcher=joblib", "-m"],
    "submitit": ["hydra/launcher=submitit_local", "-m"],
}


@pytest.mark.slow  # two processes each
@pytest.mark.parametrize("launcher", ["basic", "joblib", "submitit"])
def test_i108_a_relative_folder_is_one_absolute_path_under_every_launcher(place: Workplace, launcher: str) -> None:
    write_task(place.folder, "own")
    model = tiny_model_dir(place.folder / "models", "bert")
    command = ["--config-dir", "conf", "task=own", "data.dir=./data", "+method=pet", "model=local", "logger=none"]
    command += [f"model_args.path={model}", "hp.max_steps=2", "hp.eval_ratio=0.5", "search=none"]
    command += ["split.k=2", "split.run=0"]
    found = {}
    for name in ("single", launcher):
        done = place.python("-m", "fewnlu.train", *command, f"sweep={name}", *LAUNCHERS[name])
        assert done.returncode == 0, done.stderr[-2000:]
        folder = place.folder / "multirun" / name
        metas = [json.loads(path.read_bytes()) for path in folder.rglob("meta.json")]
        assert metas
        assert {meta["data_dir"] for meta in metas} == {str((place.folder / "data").resolve())}
        assert {meta["config"]["data"]["dir"] for meta in metas} == {str((place.folder / "data").resolve())}
        found[name] = results(folder)
    assert found["single"] == found[launcher]  # and no path is part of a result
