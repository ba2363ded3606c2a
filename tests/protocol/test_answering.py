"""Whole trials of method=zeroshot on tiny models: records, resuming, seeds, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewnlu.errors import ConfigError
from fewnlu.methods import zeroshot
from fewnlu.protocol.trial import run_trial
from fewnlu.reporting.answers import answer_tables
from fewnlu.reporting.studies import read_studies
from tests.running import config, failures, results

DUTCH = Path(__file__).parents[2] / "fewnlu/tasks/data/dutch"


class Asking:
    """Zero-shot trials of a tiny Llama in a folder of their own."""

    def __init__(self, place: Any) -> None:
        self.folder = place.folder
        self.base = ["+method=zeroshot", "model=local", f"model_args.path={place.models('llama')}", "logger=none"]

    def config(self, *more: str, task: str = "dutch_cola") -> dict[str, Any]:
        # The tiny models read 256 tokens, of which their toy tokenizer makes a word or two of Dutch.
        own = [f"task={task}", f"task.source.packaged=dutch/{task}", "data.limit_test=6"]
        own = own if task in {p.name for p in DUTCH.iterdir()} else [f"task={task}", "data.limit_test=6"]
        short = ["++task.prompt='{sentence} {labels}'", "task.stub=''"] if task == "dutch_cola" else []
        return config(*self.base, *own, *short, *more)

    def run(self, *more: str, task: str = "dutch_cola", sweep: str = "s") -> list[dict[str, Any]]:
        run_trial(self.config(*more, task=task), self.folder / sweep, threads=1)
        return results(self.folder / sweep)


@pytest.fixture
def asking(place: Any) -> Asking:
    return Asking(place)


def draws(folder: Path) -> dict[int, list[str]]:
    """Rep -> predictions by row id."""
    import pyarrow.parquet as pq

    found = {}
    for path in sorted(folder.rglob("predictions.parquet")):
        rep = json.loads((path.parent / "result.json").read_bytes())["rep"]
        table = pq.read_table(path).to_pydict()
        found[rep] = [p for _, p in sorted(zip(table["id"], table["prediction"], strict=True))]
    return found


def test_five_draws_and_what_is_known_of_them(asking):
    runs = asking.run()
    assert [r["rep"] for r in runs] == [0, 1, 2, 3, 4] and len({r["key"] for r in runs}) == 5
    for run in runs:
        answers = run["answers"]
        assert sum(answers["counts"].values()) == 6 and answers["invalid"] == 0 and answers["form"] == "base"
        expected = answers["expected"]
        assert expected["low"] <= expected["value"] <= expected["high"] and expected["high"] - expected["low"] < 3e-3
        assert set(run["test"]["metrics"]) == {"accuracy", "weighted_f1", "macro_f1", "mcc"}
        assert set(run["test"]["controls"]) == {"majority", "chance"} and run["dev"] is None
        assert run["rows"]["labeled"]["n"] == 0 and run["config"]["decode"]["name"] == "tree"
    assert not (asking.folder / "s" / runs[0]["study_name"] / ".shards").exists()
    meta = json.loads(next((asking.folder / "s").rglob("meta.json")).read_bytes())
    assert {"torch", "transformers", "outlines"} <= set(meta["versions"])  # I051: rows can be found by version
    (table,) = answer_tables(read_studies([asking.folder / "s"]))
    (line,) = table.rows
    assert line[table.header.index("runs")] == "5" and "±" in line[table.header.index("weighted F1")]
    assert {"±decoding", "±rows", "±both", "chance", "majority", "published"} <= set(table.header)


def test_draws_do_not_depend_on_batches_and_outlines_agrees_with_the_probabilities(asking):
    asking.run(sweep="a")
    asking.run("runtime.eval_batch=2", sweep="b")
    assert draws(asking.folder / "a") == draws(asking.folder / "b")
    assert draws(asking.folder / "a")[0] != draws(asking.folder / "a")[1]
    few = asking.run("paradigm.reps=2", sweep="c")  # another study, the same first draws
    assert len(few) == 2 and draws(asking.folder / "c")[0] == draws(asking.folder / "a")[0]
    runs = asking.run("decode=outlines", "paradigm.reps=16", sweep="o")
    exact = results(asking.folder / "a")[0]["answers"]["expected"]
    found = np.mean([r["test"]["metrics"]["accuracy"] for r in runs])
    assert found == pytest.approx(exact["value"], abs=4 * exact["sd"] / math.sqrt(16) + 1e-9)
    assert all(r["answers"]["expected"] is None for r in runs)


def test_a_killed_job_goes_on_in_the_middle_of_its_task(asking, monkeypatch):
    monkeypatch.setattr(zeroshot, "SHARD", 2)
    real, asked = zeroshot.Method.answer, []

    def dying(self: Any, rows: Any, runs: Any, done: Any = None) -> Any:
        asked.append(list(rows))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(self, rows, runs, done)

    monkeypatch.setattr(zeroshot.Method, "answer", dying)
    with pytest.raises(KeyboardInterrupt):
        asking.run()
    assert len(list((asking.folder / "s").rglob(".shards/*.json"))) == 2 and not results(asking.folder / "s")
    asking.run()
    assert asked[3:] == asked[2:3]  # the third shard alone
    asking.run(sweep="whole")
    assert draws(asking.folder / "s") == draws(asking.folder / "whole")


def test_i126_kept_answers_are_reused_only_where_nothing_changed(asking, monkeypatch):
    from fewnlu.protocol import answerlab

    real, asked = zeroshot.Method.answer, []
    monkeypatch.setattr(
        zeroshot.Method, "answer", lambda self, rows, *a: asked.append(len(rows)) or real(self, rows, *a)
    )

    def lab(*more: str) -> None:
        """All answers of a config, asked for beside its records (its folder is one for all: keys must tell)."""
        from fewnlu.protocol.setup import read_setup

        setup = read_setup(asking.config(*more))
        lab = answerlab.AnswerLab(setup, setup.study("w"), asking.folder / "shards")
        lab.train(0, 0, [{}])

    lab("method.shots=1")
    assert asked == [6]
    for change in ("++task.prompt='{labels} {sentence}'", "seed.data=1", "decode.temperature=2.0", "data.limit_test=5"):
        before = len(asked)
        lab("method.shots=1", change)
        assert len(asked) == before + 1, change
    before = len(asked)
    lab("method.shots=1")
    assert len(asked) == before


def test_kept_answers_of_another_seed_stay(asking, monkeypatch):
    """Seeds are no part of a study's key, so jobs under several share its folder."""
    real, seeds = zeroshot.Method.answer, []

    def dying(self: Any, rows: Any, *more: Any) -> Any:
        seeds.append(self.seed("x", 0))
        if len(seeds) == 2:
            raise KeyboardInterrupt
        return real(self, rows, *more)

    monkeypatch.setattr(zeroshot, "SHARD", 3)
    monkeypatch.setattr(zeroshot.Method, "answer", dying)
    with pytest.raises(KeyboardInterrupt):
        asking.run("seed.train=1")
    (kept,) = (asking.folder / "s").rglob(".shards/*.json")
    assert len(asking.run("seed.train=2")) == 5 and list(kept.parent.iterdir()) == [kept]
    before = len(seeds)
    assert len(asking.run("seed.train=1")) == 10 and len(seeds) == before + 1 and not kept.parent.exists()


def test_kept_answers_stay_until_the_records_are_written(asking, monkeypatch):
    from fewnlu.protocol import trial

    def full(folder: Path, *args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trial, "write_record", full)
        with pytest.raises(KeyboardInterrupt):
            asking.run("paradigm.reps=1")
    monkeypatch.setattr(zeroshot.Method, "answer", None)  # nothing is asked again
    assert len(asking.run("paradigm.reps=1")) == 1 and not list((asking.folder / "s").rglob(".shards"))


def test_demonstrations_are_drawn_from_the_labelled_rows_that_data_asks_for(asking):
    from fewnlu.protocol.setup import read_setup

    rows = (DUTCH / "dutch_cola/test.jsonl").read_text(encoding="utf-8").splitlines()
    (asking.folder / "labeled.jsonl").write_text("\n".join(rows[:20]), encoding="utf-8")
    (asking.folder / "test.jsonl").write_text("\n".join(rows[20:26]), encoding="utf-8")
    files = "++task.source.files={labeled: labeled.jsonl, test: test.jsonl}"
    argv = [f"data.dir={asking.folder}", files, "task.source.packaged=null", "method.shots=1"]
    whole, four, pairs = (
        read_setup(asking.config(*argv, *more)).data.labeled
        for more in ([], ["data.n_labeled=4"], ["data.per_class=2"])
    )
    assert [len(one.rows) for one in (whole, four, pairs)] == [20, 4, 4]
    assert {r.id for r in four.rows} < {r.id for r in whole.rows}
    assert sorted(str(r.label) for r in pairs.rows)[1:3] == sorted({str(r.label) for r in whole.rows})


def test_out_of_memory_halves_the_batch_and_goes_on(asking, monkeypatch, capsys):
    from fewnlu.decoding.tree import TreeDecoder

    real, sizes = TreeDecoder.read, []

    def read(self: Any, prompts: Any, choices: Any, seeds: Any) -> Any:
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(self, prompts, choices, seeds)

    monkeypatch.setattr(TreeDecoder, "read", read)
    assert len(asking.run()) == 5
    assert sizes[:4] == [6, 3, 1, 1] and "going on with 3" in capsys.readouterr().err
    monkeypatch.setattr(TreeDecoder, "read", lambda *a: (_ for _ in ()).throw(RuntimeError("shape")))
    asking.run(sweep="broken")
    assert all("shape" in f["error"] for f in failures(asking.folder / "broken"))


def test_i054_one_failing_run_costs_the_others_nothing(asking, monkeypatch):
    from fewnlu.decoding.outlines import OutlinesDecoder

    real, calls = OutlinesDecoder.read, []

    def read(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("boom")
        return real(self, *args)

    monkeypatch.setattr(OutlinesDecoder, "read", read)
    assert [r["rep"] for r in asking.run("decode=outlines")] == [0, 1, 3, 4]
    (failed,) = failures(asking.folder / "s")
    assert failed["rep"] == 2 and "boom" in failed["error"]
    (table,) = answer_tables(read_studies([asking.folder / "s"]))
    assert table.rows[0][table.header.index("runs")] == "4 of 5 !"


def test_i055_other_rows_are_another_study_and_flagged_together(asking):
    rows = (DUTCH / "dutch_cola/test.jsonl").read_text(encoding="utf-8").splitlines()
    for name, change in (("one", ""), ("two", "!")):
        (asking.folder / name).mkdir()
        changed = [json.loads(line) for line in rows[:6]]
        changed[0]["Sentence"] += change
        text = "\n".join(json.dumps(r) for r in changed)
        (asking.folder / name / "test.jsonl").write_text(text, encoding="utf-8")
        asking.run(f"data.dir={asking.folder / name}", "++task.source.files.test=test.jsonl", "paradigm.reps=1")
    found = results(asking.folder / "s")
    assert len({r["study"] for r in found}) == 2 and len({r["rows"]["test"]["sha256"] for r in found}) == 2
    table = answer_tables(read_studies([asking.folder / "s"]))[0]
    assert any("different test rows" in note for note in table.notes)


def test_three_options_never_yield_the_fourth(asking):
    rows = [json.loads(line) for line in (DUTCH / "arc_nl/test.jsonl").read_text(encoding="utf-8").splitlines()]
    three = [r for r in rows if r["option_d"] is None]
    (asking.folder / "arc.jsonl").write_text("\n".join(map(json.dumps, three)), encoding="utf-8")
    files = [
        "data.dir=" + str(asking.folder),
        "++task.source.files.test=arc.jsonl",
        "++task.prompt='{question} {options}'",
    ]
    for decode in ("tree", "outlines"):
        runs = asking.run(*files, f"decode={decode}", "paradigm.reps=6", task="arc_nl", sweep=decode)
        assert len(runs) == 6 and all(r["answers"]["counts"]["D"] == 0 for r in runs)
        assert runs[0]["test"]["controls"]["chance"]["accuracy"] == pytest.approx(1 / 3)
        assert any("offer fewer" in w for w in runs[0]["warnings"])
    texts = asking.run(*files, "decode.choices=texts", "paradigm.reps=2", task="arc_nl", sweep="texts")
    assert all(r["answers"]["counts"]["D"] == 0 for r in texts)


def test_ranking_is_one_run_and_says_where_the_sampler_differs(asking):
    (run,) = asking.run("decode=likelihood", "decode.normalise=char")
    assert run["answers"]["likelihood"]["normalise"] == "char" and run["answers"]["likelihood"]["rows"] == 6
    assert run["config"]["decode"]["normalise"] == "char"  # the rule is stored with the result
    (table,) = answer_tables(read_studies([asking.folder / "s"]))
    assert any("is not the likeliest draw" in note for note in table.notes)


def test_tasks_with_patterns_are_asked_too_with_labelled_rows_as_demonstrations(asking):
    runs = asking.run("method.shots=1", "paradigm.reps=1", task="reviews")
    labelled = {json.loads(line)["id"] for line in (DUTCH.parent / "reviews/labeled.jsonl").open(encoding="utf-8")}
    shown = runs[0]["answers"]["demonstrations"]
    assert len(shown["ids"]) == 1 and set(shown["ids"]) <= labelled and shown["seed"] == 42
    other = asking.run("method.shots=1", "paradigm.reps=1", "seed.data=1", task="reviews", sweep="t")
    assert other[0]["answers"]["demonstrations"]["ids"] != shown["ids"]
    assert other[0]["key"] != runs[0]["key"]


def test_every_task_is_read_from_local_files_in_the_original_columns(asking):
    from fewnlu.protocol.setup import read_setup

    for task in sorted(p.name for p in DUTCH.iterdir() if p.is_dir()):
        setup = read_setup(config(*asking.base, f"task={task}", f"data.dir={DUTCH}"))
        assert setup.data.test is not None and len(setup.data.test.rows) == 60
        assert setup.splits[0].train == () and setup.paradigm.reps == 5 and setup.strategy.name == "none"


def test_the_hub_path_with_a_stand_in(asking, monkeypatch):
    import datasets

    from fewnlu.protocol.setup import read_setup

    asked = []
    reviews = datasets.Dataset.from_dict(
        {"text": ["Mooi.", "Saai."], "label": [1, 0]},
        features=datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
        ),
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or reviews)
    setup = read_setup(config(*asking.base, "task=dbrd"))
    assert [r.label for r in setup.data.test.rows] == ["positief", "negatief"]
    assert asked == [(("benjaminvdb/dbrd", None), {"revision": "refs/convert/parquet", "split": "test"})]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["split=multisplit"], "use split=none"),
        (["decode=trees"], "tree"),
        (["decode.choices=words"], "letters"),
        (["method.form=chats"], "did you mean 'chat'"),
        (["method.shots=-1"], r"method\.shots"),
        (["decode.leading_space=off"], r"decode\.leading_space"),
        (["paradigm.reps=0"], r"paradigm\.reps"),
        (["decode.temprature=1"], "did you mean 'temperature'"),
        (["model_args.kind=masked"], "causal"),
        (["trainer.precision=bf16-mixed"], r"trainer\.precision=bf16-mixed: .*model_args\.dtype=bfloat16"),
        (["trainer.devices=2", "trainer.accelerator=cpu"], r"trainer\.devices=2: .* answers on one device"),
        (["paradigm=ipet"], r"paradigm=ipet: .*use paradigm=draws"),
        (["paradigm=noisy_student"], r"paradigm=noisy_student: .*use paradigm=draws"),
        (["method.shots=1", "data.n_labeled=4"], r"data\.n_labeled=4: .* has no labelled rows to draw from"),
        (["method.shots=1", "data.per_class=2"], r"data\.per_class=2: .* has no labelled rows to draw from"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_model_is_read(asking, overrides, message):
    from fewnlu.protocol.setup import read_setup

    with pytest.raises(ConfigError, match=message):
        read_setup(asking.config(*overrides))


def test_other_methods_have_no_decoder(place):
    with pytest.raises(ConfigError, match="decode"):
        place.config("decode.temperature=2")
