"""Who teaches whom, what they have seen, and that a killed job goes on with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fewnlu.errors import ConfigError
from fewnlu.paradigms.self_training import Model
from fewnlu.protocol.lab import Lab
from fewnlu.protocol.setup import read_setup
from fewnlu.protocol.trial import run_trial
from tests.running import Workplace, result_bytes, results

IPET = ["paradigm=ipet", "paradigm.pool=24", "data.n_labeled=12", "hp.max_steps=2", "hp.eval_ratio=0.5"]


def setup_of(place: Workplace, *overrides: str) -> Any:
    return read_setup(place.config(*IPET, *overrides))


def test_teachers_of_each_labeling(place: Workplace) -> None:
    single = setup_of(place, "split.k=4")
    assert single.paradigm.reps == 3
    assert single.paradigm.teachers(single, Model(1, 0, 2)) == [Model(1, 1, 1), Model(1, 2, 1)]
    cross = setup_of(place, "split.k=4", "paradigm.labeling=cross")
    found = cross.paradigm.teachers(cross, Model(1, 0, 1))
    assert len(found) == 2 and all(t.k != 1 and t.generation == 0 for t in found)  # round(3 / 2)
    assert found == cross.paradigm.teachers(cross, Model(1, 0, 1))
    drawn = {tuple(cross.paradigm.teachers(cross, Model(k, 0, g))) for k in range(4) for g in (1, 2)}
    assert len(drawn) > 4
    clean = setup_of(place, "split.k=4", "paradigm.labeling=cross_clean")
    for k in range(4):
        for t in clean.paradigm.teachers(clean, Model(k, 0, 2)):
            assert t.without == k != t.k
            assert all(u.without == k != u.k for u in clean.paradigm.teachers(clean, t))


def test_a_clean_teacher_without_rows_is_refused_before_the_start(place: Workplace) -> None:
    """The other fold of two trains on exactly the dev rows that it may not see."""
    options = ["paradigm.labeling=cross_clean", "split=cv", "split.k=2", "paradigm.generations=2"]
    with pytest.raises(ConfigError, match=r"cross_clean: split=cv: split 0 trains on dev rows of split 1 alone"):
        setup_of(place, *options)
    setup_of(place, *options[:2], "split.k=3", options[3])


def test_scores_of_teachers_depend_on_the_updates_that_final_makes(place: Workplace) -> None:
    setup = setup_of(place, "split.k=2")
    lab = Lab(setup, ("key", "name"), lambda *_: place.folder)
    keys = []
    for steps in (None, 1, 2):
        lab.steps = steps
        keys.append(setup.paradigm._key(lab, setup.hs[0], Model(0, 0, 0)))
    assert len(set(keys)) == 3


def test_clean_teachers_have_seen_no_dev_row(place: Workplace) -> None:
    setup = setup_of(place, "split.k=4", "paradigm.labeling=cross_clean")
    todo = [Model(k, 0, 2) for k in range(4)]
    for last in todo:
        dev, line = set(setup.splits[last.k].dev), setup.paradigm.teachers(setup, last)
        while line:
            model = line.pop()
            split = setup.paradigm._rows(setup, model)
            assert split.train and not dev & {*split.train, *split.dev}
            line += setup.paradigm.teachers(setup, model)
    cost = setup.paradigm.cost(setup)
    assert "for 4 runs" in cost and "of them trained anew without the dev rows" in cost


def test_what_a_run_trains_on(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, Any]] = []
    original = Lab.train

    def train(self: Lab, k: int, rep: int, hs: Any, training: Any = None) -> Any:
        asked.append((k, rep, training))
        return original(self, k, rep, hs, training)

    monkeypatch.setattr(Lab, "train", train)
    place.run(*IPET, "split.k=2", "split.run=0", "paradigm=noisy_student", "paradigm.word_dropout=0.1")
    # three reps; the first asks for generations 0 and 1 of the other two, which ask for its own
    assert len(asked) == 3 * 3
    for _, _, t in asked:
        n, generation = len(t.split.train), 0 if not t.pseudo else 1 if len(t.pseudo) <= 12 else 2
        assert len(t.pseudo) <= [0, 3 * n - n, 9 * n - n][generation]
        assert t.word_dropout == (0.1 if generation else 0.0)
    assert sum(t.logged for _, _, t in asked) == 3
    assert [len(t.pseudo) for _, _, t in asked if t.logged] == pytest.approx([48] * 3, abs=2)  # 6 · 3² − 6, floored
    for r in results(place.folder / "s"):
        history = r["self_training"]
        assert history["pool"]["n"] == 24 and len(history["teachers"]) == 2
        assert all(t["dev_rows_trained_on"] == 0 for t in history["teachers"])
        assert not any("optimistic" in w for w in r["warnings"])
    pseudo = pq.read_table(next((place.folder / "s").rglob("k0-r0-*/g2/pseudo.parquet"))).to_pylist()
    pool = {json.loads(line)["id"] for line in POOL.read_text().splitlines()}
    assert len(pseudo) >= 46 and {p["id"] for p in pseudo} <= pool
    assert all(0.5 <= p["confidence"] <= 1 for p in pseudo)


POOL = Path(__file__).parents[2] / "fewnlu/tasks/data/reviews/unlabeled.jsonl"


def test_cross_labeling_counts_the_dev_rows_that_teachers_know(place: Workplace) -> None:
    found = place.run(*IPET, "split.k=2", "paradigm.labeling=cross", "paradigm.generations=2")
    setup = setup_of(place, "split.k=2", "paradigm.labeling=cross", "paradigm.generations=2")
    for r in found:
        (teacher,) = r["self_training"]["teachers"]
        dev = set(setup.splits[r["k"]].dev)
        assert teacher["k"] == 1 - r["k"]
        assert teacher["dev_rows_trained_on"] == len(dev & set(setup.splits[teacher["k"]].train)) > 0
        assert teacher["dev_rows_selected_on"] == len(dev & set(setup.splits[teacher["k"]].dev))
        assert any(w.startswith("dev score is optimistic: a teacher had trained on") for w in r["warnings"])
        assert r["config"]["paradigm"]["k"] == 2  # who teaches depends on K


def test_teachers_score_with_their_best_weights(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted dev scores make the first look the best; a teacher's scores are those of a run stopped there."""
    script = iter([0.9, 0.1] * 50)
    monkeypatch.setattr(Lab, "dev_score", lambda self, scores, rows: next(script))
    more = ["split.k=2", "split.run=0", "paradigm.generations=2", "paradigm.reps=2", "hp.lr=0.01", "hp.patience=2"]
    place.run(*IPET, *more)
    folder = next((place.folder / "s").rglob("k0-r1-*/g0"))
    record = json.loads((folder / "generation.json").read_bytes())
    assert record["chosen_step"] == 1 and record["steps_done"] == 2
    best = np.array(list(pq.read_table(folder / "pool.parquet").to_pydict().values()))
    # the same training with its last weights scores otherwise
    script2 = iter([0.1, 0.9] * 50)
    monkeypatch.setattr(Lab, "dev_score", lambda self, scores, rows: next(script2))
    place.run(*IPET, *more, sweep="last")
    last = next((place.folder / "last").rglob("k0-r1-*/g0"))
    assert json.loads((last / "generation.json").read_bytes())["chosen_step"] == 2
    assert np.abs(best - np.array(list(pq.read_table(last / "pool.parquet").to_pydict().values()))).max() > 1e-4


@pytest.mark.parametrize("at", [2, 4])
def test_a_killed_job_goes_on_and_ends_with_the_same_numbers(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    cfg = place.config(*IPET, "split.k=3", "paradigm.labeling=cross", "split.run=[0,1]")
    run_trial(cfg, place.folder / "whole", threads=1)
    original, n = Lab.train, 0

    def train(self: Lab, *args: Any) -> Any:
        nonlocal n
        n += 1
        if n == at:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(Lab, "train", train)
    with pytest.raises(KeyboardInterrupt):
        run_trial(cfg, place.folder / "cut", threads=1)
    done = n - 1
    assert len(result_bytes(place.folder / "cut")) < 2
    run_trial(cfg, place.folder / "cut", threads=1)
    assert result_bytes(place.folder / "cut") == result_bytes(place.folder / "whole")
    total = len(list((place.folder / "whole").rglob("generation.json"))) + 2
    assert n == total + 1  # each training was done once, but for the one that was cut off
    assert done == at - 1


def test_a_damaged_generation_is_computed_anew(place: Workplace) -> None:
    more = ["split.k=2", "paradigm.labeling=cross", "paradigm.generations=2"]
    place.run(*IPET, *more)
    before = result_bytes(place.folder / "s")
    for path in (place.folder / "s").rglob("result.json"):
        path.unlink()
    for path in (place.folder / "s").rglob("pool.parquet"):
        path.write_bytes(path.read_bytes()[:-7])
    place.run(*IPET, *more)
    assert result_bytes(place.folder / "s") == before
