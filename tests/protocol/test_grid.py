"""The exact jobs of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fewnlu.protocol.grid import Plan, expand
from tests.running import Workplace, config, loader, write_task


def plan(place: Workplace, *overrides: str, home: Path | None = None, **params: str) -> Plan:
    found = {key.replace("__", "."): value for key, value in params.items()}
    return expand(loader(home / "conf" if home else None), [*place.base(), "split.k=2", *overrides], found)


def points(found: Plan, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(h[n] for n in names) for job in found.jobs for h in job.hs]


def test_each_task_gets_its_own_patterns(place: Workplace) -> None:
    write_task(place.folder, "two", patterns=2)
    write_task(place.folder, "three", patterns=3)
    found = plan(
        place, "task=two,three", f"data.dir={place.folder / 'data'}", "search=none", "search.patterns=null",
        home=place.folder,
    )  # fmt: skip
    jobs = [(c.cfg["task"]["name"], p) for c in found.composed for p in range(len(c.cfg["task"]["patterns"]))]
    assert jobs == [("two", 0), ("two", 1), ("three", 0), ("three", 1), ("three", 2)]
    assert [(next(o for o in j.overrides if o.startswith("task=")), j.hs[0]["pattern"]) for j in found.jobs] == [
        (f"task={task}", pattern) for task, pattern in jobs
    ]
    assert (found.points, found.runs, found.trainings) == (5, 10, 10)
    assert found.summary().startswith("2 studies: 5 points of H, 10 runs from 10 trainings in 5 jobs")


QUICK = ["hp.eval_ratio=0.2,0.4,0.5", "hp.lr=2e-5,5e-5"]


def test_looks_share_a_trajectory(place: Workplace) -> None:
    found = plan(place, *QUICK)
    assert len(found.jobs) == 4 and found.points == 12 and found.trainings == 8 and found.runs == 24
    for job in found.jobs:
        assert len({(h["pattern"], h["lr"]) for h in job.hs}) == 1
        assert [h["eval_ratio"] for h in job.hs] == [0.2, 0.4, 0.5]
    for job in found.jobs[::3]:
        composed = config(*job.overrides)
        assert [s["eval_ratio"] for s in composed["runtime"]["share"]] == [0.2, 0.4, 0.5]
        assert {name: composed["hp"][name] for name in job.hs[0]} == job.hs[0]


def test_values_on_the_command_line_replace_a_dimension(place: Workplace) -> None:
    assert points(plan(place, "search=quick", "hp.lr=1e-3"), "pattern", "lr") == [(0, 1e-3), (1, 1e-3)]
    found = points(plan(place, "search=quick", "hp.pattern=1", "hp.lr=1e-3,1e-2"), "pattern", "lr")
    assert found == [(1, 1e-3), (1, 1e-2)]
    assert points(plan(place, "search=none", "hp.lr=1e-3"), "pattern", "lr") == [(0, 1e-3)]


def test_sweeper_params_work_and_lose_against_the_command_line(place: Workplace) -> None:
    params = {"hp__lr": "1e-3,1e-2", "seed__train": "1,2"}
    found = plan(place, "search=none", **params)
    assert points(found, "lr") == [(1e-3,), (1e-2,)] * 2
    assert [c.cfg["seed"]["train"] for c in found.composed] == [1, 2]
    found = plan(place, "search=none", "hp.lr=1e-4", "++seed.train=7", **params)
    assert points(found, "lr") == [(1e-4,)] and found.composed[0].cfg["seed"]["train"] == 7


def test_i104_duplicates_are_dropped(place: Workplace) -> None:
    found = plan(place, "search=none", "seed.train=1,1,2", "hp.lr=1e-3,0.001,1.0e-3")
    assert points(found, "lr") == [(1e-3,)] * 2
    assert [c.cfg["seed"]["train"] for c in found.composed] == [1, 2]


def test_i098_braces_and_commas_in_values(place: Workplace) -> None:
    """Quoted once more they are values; as a pattern id nothing need be quoted."""
    template = "{text~}, it was [MASK]."
    one = [f"task.patterns={{0:{{template:'{template}'}}}}", "search=none"]
    found = plan(place, *one)
    assert [j.hs[0]["pattern"] for j in found.jobs] == [0]
    assert config(*found.jobs[0].overrides)["task"]["patterns"][0]["template"] == template
    found = plan(place, "search=none", f"task.description='{template}','a, {{b}}'".replace("task.", "++task."))
    assert [c.cfg["task"]["description"] for c in found.composed] == [template, "a, {b}"]
    assert [config(*j.overrides)["task"]["description"] for j in found.jobs] == [template, "a, {b}"]


def test_i100_a_key_inside_a_swept_group(place: Workplace) -> None:
    found = plan(place, "search=none", "task=reviews,entail", "task.max_length=64")
    assert [c.cfg["task"]["max_length"] for c in found.composed] == [64, 64]


@pytest.mark.parametrize(("run", "trainings"), [("[0]", 1), ("1", 1), ("null", 2)])
def test_counts_follow_split_run(place: Workplace, run: str, trainings: int) -> None:
    assert plan(place, "search=none", f"split.run={run}").trainings == trainings


def test_strategies_without_k_are_counted(place: Workplace) -> None:
    found = expand(loader(), [*place.base(), "search=none", "split=fixed,single"])
    assert [j.times for j in found.jobs] == [1, 1]


def test_causal_models_get_the_patterns_they_can_read(place: Workplace) -> None:
    masked = expand(loader(), [*place.base("bert"), "search=quick", "hp.lr=1e-3"])
    causal = expand(loader(), [*place.base("gpt2"), "search=quick", "hp.lr=1e-3"])
    assert points(masked, "pattern") == points(causal, "pattern") == [(0,), (1,)]


def test_repetitions_count_as_runs() -> None:
    """What is announced, and what the bar counts to, has the repetitions of a paradigm in it."""
    assert expand(loader(), ["+method=zeroshot", "task=reviews"]).summary() == "1 study: 5 runs in 1 job"
    ranked = expand(loader(), ["+method=zeroshot", "task=reviews", "decode=likelihood"])
    assert ranked.summary() == "1 study: 1 run in 1 job"  # nothing is drawn
    found = expand(loader(), ["+method=pet", "paradigm=ipet", "search=none", "split.k=2", "paradigm.reps=3"])
    assert (found.runs, found.trainings) == (6, 6)
    assert found.summary() == "1 study: 1 point of H, 6 runs from 6 trainings in 1 job"
