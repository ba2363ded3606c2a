"""Trials on a tiny model: records that repeat to the byte, what is run again, what is seeded, what failed."""

from __future__ import annotations

import copy
import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from fewnlu.methods.pet import Method
from fewnlu.protocol import records, trial
from fewnlu.protocol.records import is_done, run_folder, scan, write_failure, write_started
from fewnlu.protocol.setup import read_setup
from fewnlu.protocol.trial import run_trial
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.reporting.tables import studies_text
from tests.running import Workplace, config, failures, result_bytes, results, write_task

ONE = "split.run=0"


def test_a_rerun_in_another_folder_is_equal_to_the_byte(place: Workplace) -> None:
    place.run(sweep="a")
    torch.rand(3)  # global random state is nobody's input
    place.run(sweep="b")
    a, b = (result_bytes(place.folder / s) for s in "ab")
    assert a == b and len(a) == 2
    tables = [pq.read_table(p).to_pylist() for s in "ab" for p in sorted((place.folder / s).rglob("*.parquet"))]
    assert tables[:2] == tables[2:]


def test_the_order_of_runs_decides_nothing(place: Workplace) -> None:
    place.run("split.run=1", sweep="a")
    place.run("split.run=0", sweep="a")
    place.run(sweep="b")
    assert result_bytes(place.folder / "a") == result_bytes(place.folder / "b")


def test_threads_move_scores_by_float_noise_at_most(place: Workplace) -> None:
    (one,) = place.run(ONE, sweep="a")
    try:
        run_trial(place.config(ONE), place.folder / "b", threads=2)
    finally:
        torch.set_num_threads(1)
    (two,) = results(place.folder / "b")
    assert one["key"] == two["key"]
    assert abs(one["dev"]["select"] - two["dev"]["select"]) <= 1e-4
    scores = [pq.read_table(next((place.folder / s).rglob("*.parquet"))).to_pylist() for s in "ab"]
    for x, y in zip(*scores, strict=True):
        assert abs(x["score:positive"] - y["score:positive"]) <= 1e-4


def test_what_a_record_states(place: Workplace) -> None:
    (result,) = place.run(ONE)
    folder = next(place.folder.rglob("result.json")).parent
    assert sorted(p.name for p in folder.iterdir()) == ["meta.json", "predictions.parquet", "result.json"]
    rows = result["rows"]
    assert rows["labeled"]["origin"] == "packaged reviews/labeled.jsonl" and rows["labeled"]["n"] == 16
    assert len(rows["train"]["ids"]) == len(rows["dev"]["ids"]) == 8
    assert not set(rows["train"]["ids"]) & set(rows["dev"]["ids"])
    assert sum(rows["train"]["n_per_class"].values()) == 8
    assert rows["test"]["n"] == 12 and len(rows["test"]["sha256"]) == 64
    assert [step for step, _ in result["looks"]] == [2, 4] and result["chosen_step"] in (2, 4)
    assert result["dev"]["select"] == dict(result["looks"])[result["chosen_step"]]
    assert set(result["test"]["controls"]) == {"majority", "chance"}
    assert str(place.folder) not in json.dumps(result)  # no path: records of two machines are equal
    meta = json.loads((folder / "meta.json").read_bytes())
    assert meta["versions"]["torch"] and meta["seconds"] > 0 and meta["peak_memory"] > 0
    predictions = pq.read_table(folder / "predictions.parquet").to_pylist()
    dev = [p for p in predictions if p["set"] == "dev"]
    assert [p["id"] for p in dev] == rows["dev"]["ids"]
    assert sum(p["gold"] == p["prediction"] for p in dev) / 8 == result["dev"]["metrics"]["accuracy"]


def test_runs_that_are_done_are_left_alone(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run()
    before = {p: p.stat().st_mtime_ns for p in place.folder.joinpath("s").rglob("*.*") if p.is_file()}
    monkeypatch.setattr(trial, "_open_lab", lambda *a: pytest.fail("a model was read"))
    value = run_trial(place.config(), place.folder / "s")
    assert value == sum(r["dev"]["select"] for r in results(place.folder / "s")) / 2
    assert {p: p.stat().st_mtime_ns for p in place.folder.joinpath("s").rglob("*.*") if p.is_file()} == before


def test_i103_a_changed_setting_is_run_not_reused(place: Workplace) -> None:
    cfg = place.config(ONE)

    def key(section: str = "", name: str = "", value: Any = None) -> str:
        changed = copy.deepcopy(cfg)
        if section:
            changed[section][name] = value
        setup = read_setup(changed)
        return setup.key(setup.study("w")[0], setup.hs[0], 0, 0)

    template = {0: {**cfg["task"]["patterns"][0], "template": "{text~} So it was [MASK]."}}
    changes = [("seed", "train", 1), ("seed", "split", 1), ("seed", "data", 1), ("hp", "lr", 1e-4)]
    changes += [("hp", "warmup_ratio", 0.5), ("data", "n_labeled", 18), ("data", "limit_test", 11)]
    changes += [("task", "patterns", {**cfg["task"]["patterns"], **template}), ("model_args", "freeze_layers", 1)]
    changes += [("trainer", "gradient_clip_val", 2.0), ("split", "ratio", 0.25)]
    keys = [key(), *(key(*change) for change in changes)]
    assert len(set(keys)) == len(keys)
    # How it is run is no part of what is run.
    same = [("runtime", "eval_batch", 3), ("runtime", "micro_batch", 2), ("runtime", "cache_gb", 0), ("split", "k", 5)]
    for change in (*same, ("trainer", "accelerator", "cpu"), ("logger", "name", "csv")):
        assert key(*change) == keys[0], change
    place.run(ONE)
    assert len(place.run(ONE, "hp.lr=1e-4")) == 2


def test_a_damaged_or_foreign_result_is_not_done(place: Workplace) -> None:
    (result,) = place.run(ONE)
    path = next(place.folder.rglob("result.json"))
    folder, key = path.parent, result["key"]
    assert is_done(folder, key) and not is_done(folder, "other")
    whole = path.read_bytes()
    foreign = json.dumps({**result, "key": "0" * len(key)}).encode()
    for bad in (whole[: len(whole) // 2], b"", b"{", b"null", b"[]", b'{"schema": 1}', foreign, b"\xff\xfe"):
        path.write_bytes(bad)
        assert not is_done(folder, key), bad[:40]
    path.write_bytes(whole)
    assert is_done(folder, key)
    (folder / "predictions.parquet").unlink()
    assert not is_done(folder, key)


def test_a_damaged_result_is_run_again(place: Workplace) -> None:
    place.run(ONE)
    path = next(place.folder.rglob("result.json"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    place.run(ONE)
    assert path.read_bytes() == whole


def test_i087_a_crash_between_predictions_and_result_leaves_the_run_open(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = records.write_atomic

    def dies(path: Path, data: bytes) -> None:
        if path.name == "result.json":
            raise KeyboardInterrupt  # as a kill would: nothing after it runs
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(records, "write_atomic", dies)
        with pytest.raises(KeyboardInterrupt):
            place.run(ONE)
    folder = next(place.folder.rglob("predictions.parquet")).parent
    assert not (folder / "result.json").exists() and not any(p.name.startswith(".") for p in folder.iterdir())
    (study,) = [s for s in read_studies([place.folder / "s"])] or [None]
    assert study is None
    assert len(place.run(ONE)) == 1


def test_write_atomic_leaves_the_old_file_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "file"
    records.write_atomic(target, b"old")

    def fails(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        records.write_atomic(target, b"new")
    assert [p.name for p in target.parent.iterdir()] == ["file"] and target.read_bytes() == b"old"


def test_nan_becomes_null() -> None:
    assert json.loads(records.to_json({"a": float("nan"), "b": [float("inf"), 1.0]})) == {"a": None, "b": [None, 1.0]}


def _nan_loss_of(k_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Method.loss

    def loss(self: Any, batch: dict[str, Any]) -> Any:
        value = real(self, batch)
        return value * float("nan") if torch.initial_seed() == k_seed else value

    monkeypatch.setattr(Method, "loss", loss)


def test_i054_a_failed_run_costs_the_others_nothing_and_success_removes_it(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = read_setup(place.config()).run_seed(1, 0)
    with monkeypatch.context() as patch:
        _nan_loss_of(bad, patch)
        cfg = place.config("split.k=3")
        value = run_trial(cfg, place.folder / "s", threads=1)
    assert value != value  # NaN: this h was not measured
    assert [r["k"] for r in results(place.folder / "s")] == [0, 2]
    (failure,) = failures(place.folder / "s")
    assert failure["k"] == 1 and "Diverged" in failure["error"] and "update 1" in failure["error"]
    assert "FAILED" in capsys.readouterr().err  # when it happens, not at the end (I095)
    (study,) = read_studies([place.folder / "s"])
    text = studies_text([summarise(study)])
    assert "2 of 3 done, 1 FAILED" in text and "update 1" in text
    assert len(place.run("split.k=3")) == 3 and failures(place.folder / "s") == []


def test_i097_fail_fast_stops_the_job(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    _nan_loss_of(read_setup(place.config()).run_seed(0, 0), monkeypatch)
    assert place.run("runtime.fail_fast=true") == []
    assert len(failures(place.folder / "s")) == 1


def test_i065_every_run_has_a_recorded_seed_of_its_own(place: Workplace) -> None:
    setup = read_setup(place.config())
    seeds = {setup.run_seed(k, rep) for k in range(16) for rep in range(3)}
    assert len(seeds) == 48
    recorded = [r["seeds"] for r in place.run()]
    assert [s["run"] for s in recorded] == [setup.run_seed(0, 0), setup.run_seed(1, 0)]
    assert all((s["data"], s["split"], s["train"]) == (42, 42, 42) for s in recorded)


def test_i069_training_seed_keeps_rows_and_data_seed_changes_them(place: Workplace) -> None:
    def ids(*changes: str) -> list[str]:
        return [r.id for r in read_setup(place.config(*changes)).rows]

    assert ids() == ids("seed.train=1") == ids("seed.split=1")
    assert ids() != ids("seed.data=1")


def test_i073_a_run_without_updates_is_marked_untrained(place: Workplace) -> None:
    (result,) = place.run(ONE, "hp.max_steps=0")
    assert result["steps_done"] == 0 and any("untrained" in w for w in result["warnings"])
    (study,) = read_studies([place.folder / "s"])
    assert "untrained" in studies_text([summarise(study)])


def test_shared_trajectory_records_what_separate_trainings_record(place: Workplace) -> None:
    ratios = (0.25, 0.5, 1.0)
    share = ",".join(f"{{eval_ratio:{r},patience:6}}" for r in ratios)
    place.run(ONE, f"runtime.share=[{share}]", sweep="together")
    for ratio in ratios:
        place.run(ONE, f"hp.eval_ratio={ratio}", sweep="apart")
    together, apart = (result_bytes(place.folder / s) for s in ("together", "apart"))
    assert together == apart and len(together) == 3


def test_i063_randomised_test_labels_change_no_choice(place: Workplace) -> None:
    found = []
    for name, flip in (("right", False), ("wrong", True)):
        home = write_task(place.folder / name, "copy", flip_test=flip)
        cfg = [f"data.dir={home / 'data'}", "task=copy", "runtime.share=[{eval_ratio:0.25},{eval_ratio:0.5}]"]
        full = config(*place.base(), "data.n_labeled=null", "split.k=2", *cfg, config_dir=home / "conf")
        run_trial(full, place.folder / f"s-{name}", threads=1)
        found.append(results(place.folder / f"s-{name}"))
    right, wrong = found
    for a, b in zip(right, wrong, strict=True):
        assert (a["looks"], a["chosen_step"], a["dev"]) == (b["looks"], b["chosen_step"], b["dev"])
    tests = [[r["test"]["select"] for r in one] for one in found]
    assert tests[0] == [pytest.approx(1 - t) for t in tests[1]]
    stars = [summarise(read_studies([place.folder / f"s-{name}"])[0]).choice for name in ("right", "wrong")]
    assert stars[0] == stars[1]


def test_without_a_test_set_selection_works_and_says_optimistic(place: Workplace) -> None:
    home = write_task(place.folder / "t", "untested", test=False)
    cfg = [f"data.dir={home / 'data'}", "task=untested", "runtime.share=[{eval_ratio:0.25},{eval_ratio:0.5}]"]
    full = config(*place.base(), "data.n_labeled=null", "split.k=2", *cfg, config_dir=home / "conf")
    run_trial(full, place.folder / "s", threads=1)
    assert [r["test"] for r in results(place.folder / "s")] == [None] * 4
    (study,) = read_studies([place.folder / "s"])
    summary = summarise(study)
    assert summary.choice.h is not None and summary.test == {}
    text = studies_text([summary])
    assert "optimistic: best of |H| = 2" in text and "no test set" in text and "Spearman" not in text


def test_i068_the_best_h_run_by_itself_gives_the_same_metrics(place: Workplace) -> None:
    place.run("runtime.share=[{eval_ratio:0.25},{eval_ratio:0.5}]", ONE, sweep="grid")
    (study,) = read_studies([place.folder / "grid"])
    star = summarise(study).choice.h
    assert star is not None
    (alone,) = place.run(*(f"hp.{k}={v}" for k, v in star.items()), ONE, sweep="alone")
    (same,) = [r for r in results(place.folder / "grid") if r["h"] == star]
    assert alone == same


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_i088_memory_is_flat_over_20_runs_and_i090_nothing_large_is_kept(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident: list[int] = []
    real = trial.write_record

    def record(*args: Any) -> None:
        real(*args)
        resident.append(_resident())

    monkeypatch.setattr(trial, "write_record", record)
    found = place.run("split.k=20", "hp.max_steps=2", "data.limit_test=4")
    assert len(found) == len(resident) == 20
    assert resident[-1] - resident[2] < max(0.05 * resident[2], 15 * 2**20)
    files = [p for p in (place.folder / "s").rglob("*") if p.is_file()]
    assert {p.name for p in files} == {"result.json", "meta.json", "predictions.parquet"}
    assert sum(p.stat().st_size for p in files) < 20 * 30_000
    assert not any(p.name in {"lightning_logs", "checkpoints"} for p in place.folder.iterdir())
    shutil.rmtree(place.folder / "s")


def test_an_older_failure_no_longer_holds_once_its_run_is_begun_again(tmp_path: Path) -> None:
    """Killed again, the run is interrupted; it would show as failed for the old reason."""
    folder = run_folder(tmp_path, "s", {"lr": 0.1}, 0, 0, "0123456789abcdef")
    write_failure(folder, {"study": "x", "error": "of before"})
    write_started(folder, "0123456789abcdef")
    (found,) = scan(tmp_path)
    assert found.failure is None and found.started is not None and found.started["key"] == "0123456789abcdef"
