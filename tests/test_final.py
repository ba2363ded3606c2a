"""From a study to a model one can use: h* retrained on all rows, saved without pickles, and rows labelled with it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewnlu import final, predict
from fewnlu.errors import ConfigError, DataError
from fewnlu.protocol.lab import Lab
from fewnlu.protocol.trial import run_trial
from fewnlu.tasks.streams import stream_rows
from fewnlu.tasks.task import task_from_config
from tests.methods.shapes import SHAPES, items, write
from tests.running import Workplace, config, results, rewrite


def study(place: Workplace, method: str, shape: str, family: str, *more: str) -> Path:
    """A study of two points of H on a tiny task."""
    conf, data = write(place.folder)
    cfg = config(
        *(f"task={shape}", f"data.dir={data / shape}", f"+method={method}", "model=local", "logger=none"),
        *(f"model_args.path={place.models(family)}", "split.k=2", "hp.max_steps=4", "hp.eval_ratio=0.25"),
        *("hp.batch_size=4", *more),
        config_dir=conf,
    )
    for lr in (1e-3, 1e-2):
        run_trial({**cfg, "hp": {**cfg["hp"], "lr": lr}}, place.folder / "s", threads=1)
    (folder,) = [p for p in (place.folder / "s").iterdir() if not p.name.startswith(".")]
    return folder


@pytest.mark.parametrize(
    ("method", "shape", "family", "more"),
    [
        ("pet", "words", "gpt2", []),
        ("cls", "words", "bert", []),
        ("ptuning", "choices", "bert", []),
        ("adapet", "span", "deberta_v2", []),
        ("pet", "words", "albert", ["paradigm=ipet", "paradigm.generations=2", "paradigm.reps=2", "split.run=0"]),
    ],
)
def test_final_then_predict(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, method: str, shape: str, family: str, more: list[str]
) -> None:
    folder = study(place, method, shape, family, *more)
    trained: list[Any] = []
    original = Lab.train

    def train(self: Lab, *args: Any) -> Any:
        out = original(self, *args)
        if self.keep and self.kept is not None:
            trained[:] = [out[0].test_scores]
        return out

    monkeypatch.setattr(Lab, "train", train)
    text = final.retrain(folder, "median", 2, place.folder / "m")
    record = json.loads((place.folder / "m" / "fewnlu.json").read_bytes())
    chosen = final.choose(folder)
    steps = sorted(r["chosen_step"] for r in chosen.runs)
    assert record["steps"] in steps and record["h"] == chosen.h and record["trained_on"]["n"] == 12
    assert len(record["test"]["metrics"]["accuracy"]["values"]) == 2 and "±" in text
    assert str(place.folder) not in (place.folder / "m" / "fewnlu.json").read_text()
    names = {p.name for p in (place.folder / "m").rglob("*") if p.is_file()}
    assert {"model.safetensors", "method.safetensors", "config.json", "README.md"} <= names
    assert not [n for n in names if n.endswith((".bin", ".pt", ".pkl", ".ckpt"))]
    # rows labelled from a file get the scores that the model had when it was trained
    rows = place.folder / "rows.jsonl"
    rows.write_text((place.folder / "data" / shape / "test.jsonl").read_text())
    n, where = predict.predict(place.folder / "m", rows, batch=4)
    assert n == 6 and where.endswith("rows.labels.csv")
    table = list(csv.DictReader(Path(where).read_text().splitlines()))
    labels = SHAPES[shape]["labels"]
    got = np.array([[float(row[f"score:{name}"]) for name in labels] for row in table])
    want = np.exp(trained[0] - trained[0].max(1, keepdims=True))
    np.testing.assert_allclose(got, want / want.sum(1, keepdims=True), atol=1e-4)
    assert [row["label"] for row in table] == [labels[i] for i in got.argmax(1)]
    assert [row["id"] for row in table] == [item["id"] for item in items(shape, 6, 2)]


def test_steps_are_the_median_or_all_on_the_same_schedule(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = study(place, "pet", "words", "bert")
    seen = []
    original = Lab.train

    def train(self: Lab, *args: Any) -> Any:
        out = original(self, *args)
        seen.append((self.steps, out[0].steps_done, args[2][0]["max_steps"]))
        return out

    monkeypatch.setattr(Lab, "train", train)
    for path in folder.rglob("result.json"):
        record = json.loads(path.read_bytes())
        record["chosen_step"] = 1 + record["k"]  # 1 and 2
        rewrite(path, record)
    final.retrain(folder, "median", 1, place.folder / "m")
    final.retrain(folder, "max", 1, place.folder / "n")
    assert seen == [(1, 1, 4), (4, 4, 4)]  # the lower of two middles is a step that a run chose


def test_h_star_is_chosen_on_dev_alone(place: Workplace) -> None:
    folder = study(place, "pet", "words", "bert")
    for path in folder.rglob("result.json"):
        record = json.loads(path.read_bytes())
        good = record["h"]["lr"] == 1e-3
        record["dev"]["select"], record["test"]["select"] = (0.9, 0.0) if good else (0.1, 1.0)
        rewrite(path, record)
    assert final.choose(folder).h["lr"] == 1e-3


def test_refusals(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study(place, "pet", "words", "bert")
    (folder / "f").write_text("")
    for argv, message in (
        (["nowhere"], "nowhere: no finished runs; give a study's folder"),
        ([str(folder), "final.step=max"], "unknown key 'final.step': did you mean 'final.steps'"),
        ([str(folder), "final.steps=most"], "final.steps=most"),
        ([str(folder), "final.seeds=0"], "final.seeds=0: expected a whole number"),
        ([str(folder), "seed.train=x"], "seed.train=x: expected a whole number"),
        ([str(folder), "seed.train=7"], "no finished runs, seed.train=7"),
        ([str(folder), f"final.out={folder / 'f'}"], "is no folder"),
        ([str(folder), f"final.out={folder}"], "the folder is not empty; name another, or set final.overwrite=true"),
    ):
        with pytest.raises(SystemExit) as status:
            final.main(argv)
        assert status.value.code == 2 and message in capsys.readouterr().err
    path = place.folder / "data" / "words" / "labeled.jsonl"
    path.write_text(path.read_text().replace("okay", "fine", 1))
    with pytest.raises(ConfigError, match="labelled rows are not those of the study any more"):
        final.retrain(folder, "median", 1, place.folder / "m")
    with pytest.raises(ConfigError, match=r"no fewnlu\.json; expected a folder that python -m fewnlu\.final wrote"):
        predict.predict(place.folder, path)


def test_rows_are_streamed_from_each_kind_of_file(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    task = task_from_config(SHAPES["choices"])
    rows = items("choices", 5, 9, label=False)
    (tmp_path / "r.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    with (tmp_path / "r.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    want = [(r["id"], {n: r[n] for n in ("text", "a", "b")}) for r in rows]
    for name in ("r.jsonl", "r.csv", "r.parquet"):
        assert [(r.id, dict(r.fields)) for r in stream_rows(task, tmp_path / name)] == want
    (tmp_path / "broken.csv").write_text("text,a,b\nx,y,z\nx,y\n")
    stream = stream_rows(task, tmp_path / "broken.csv")
    assert next(stream).id == "1"  # rows before a broken one have been given by then
    with pytest.raises(DataError, match=r"broken\.csv:3: 2 cells, the first line names 3 columns"):
        next(stream)
    (tmp_path / "lacks.jsonl").write_text('{"text": "x", "a": "y"}\n')
    with pytest.raises(DataError, match=r"lacks\.jsonl:1: field 'b' is missing"):
        next(stream_rows(task, tmp_path / "lacks.jsonl"))


def test_a_stream_is_not_read_ahead(place: Workplace) -> None:
    """Memory holds a chunk: when the first label comes out, a chunk of rows has been taken, not all."""
    from fewnlu.protocol.saved import Predictor
    from fewnlu.tasks.task import Row

    folder = study(place, "pet", "words", "bert", "split.run=0")
    final.retrain(folder, "max", 1, place.folder / "m")
    taken = 0

    def rows() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield Row(str(taken), {"text": f"the movie {taken}"}, None, str(taken))

    stream = Predictor(place.folder / "m").label(rows(), at_once=8)
    first = next(stream)
    assert first.row.id == "1" and taken == 8 and sum(first.scores.values()) == pytest.approx(1)
    assert torch.is_grad_enabled()


def test_records_of_the_study_are_untouched(place: Workplace) -> None:
    folder = study(place, "pet", "words", "bert")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    final.retrain(folder, "median", 1, place.folder / "m")
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert len(results(place.folder / "s")) == 4


def test_a_folder_with_runs_under_two_seeds(place: Workplace) -> None:
    """Seeds are no part of a study's key, so its folder may hold several; those of one are taken."""
    conf, data = write(place.folder)
    for seed in (1, 2):
        cfg = config(
            *(
                "task=words",
                f"data.dir={data / 'words'}",
                "+method=pet",
                "model=local",
                "logger=none",
                "hp.max_steps=2",
            ),
            *(f"model_args.path={place.models('bert')}", "split.k=2", "hp.batch_size=4", f"seed.train={seed}"),
            config_dir=conf,
        )
        run_trial(cfg, place.folder / "s", threads=1)
    (folder,) = [p for p in (place.folder / "s").iterdir() if not p.name.startswith(".")]
    with pytest.raises(ConfigError, match=r"under several seeds.* add seed\.train=1 or seed\.train=2"):
        final.choose(folder)
    assert {r["seeds"]["train"] for r in final.choose(folder, {"train": 2}).runs} == {2}


def test_a_bad_row_costs_only_what_comes_after_it(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    folder, rows = study(place, "pet", "words", "bert"), place.folder / "rows.jsonl"
    final.retrain(folder, "median", 1, place.folder / "m")
    good = [json.dumps(item) for item in items("words", 3, 1)]
    rows.write_text("\n".join([*good, '{"id": "x"}', *good]))
    with pytest.raises(DataError, match=r"rows\.jsonl:4: field"):
        predict.predict(place.folder / "m", rows)
    # what is labelled lies in a file that says it is a part; a whole one of before stays
    assert "rows.labels.csv.part" in capsys.readouterr().err and not (place.folder / "rows.labels.csv").exists()
    assert len(list(csv.DictReader((place.folder / "rows.labels.csv.part").open()))) == 3
    # what the first row shows is said before the model is read, and nothing is written
    (place.folder / "m" / "model.safetensors").unlink()
    rows.write_text('{"id": "x"}')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: field"):
        predict.predict(place.folder / "m", rows)
    with pytest.raises(ConfigError, match="there is no folder"):
        predict.predict(place.folder / "m", rows, str(place.folder / "no" / "x.csv"))
    assert not (place.folder / "rows.labels.csv").exists()
