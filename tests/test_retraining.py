"""`final` and `predict` where records are old, mixed or of a method of the user's own, and where trainings fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fewnlu import final, plugins, predict
from fewnlu.errors import ConfigError
from fewnlu.protocol.lab import Lab
from fewnlu.protocol.records import canonical, to_json
from fewnlu.protocol.setup import read_setup
from fewnlu.protocol.trial import run_trial
from fewnlu.tasks.choice import choice_from_config, is_choice
from fewnlu.tasks.task import task_from_config
from tests.methods.shapes import SHAPES, write
from tests.running import ROOT, Workplace, config, rewrite

TASKS = sorted(p.stem for p in (ROOT / "conf/task").glob("*.yaml"))


def old_meta(folder: Path, change: Any) -> None:
    """Change the config in each meta.json of a study, as an older version or another folder would have written it."""
    for path in folder.rglob("meta.json"):
        meta = json.loads(path.read_bytes())
        change(meta["config"])
        path.write_text(json.dumps(meta, indent=1))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_comes_back_from_json_as_it_was(name: str) -> None:
    """BoolQ, WiC and WSC map JSON's false and true to labels."""
    asked = "kind: choice" in (ROOT / f"conf/task/{name}.yaml").read_text("utf-8")
    cfg = config(f"task={name}", "+method=zeroshot" if asked else "+method=pet")
    back = json.loads(to_json(cfg))["task"]
    read: Any = choice_from_config if is_choice(cfg["task"]) else task_from_config
    assert read(back) == read(cfg["task"])


def test_keys_of_studies_are_what_they_were() -> None:
    """The canonical JSON, which keys are made of, has always had booleans as JSON has them."""
    assert canonical({"values": {False: "F", True: "T"}}) == '{"values":{"false":"F","true":"T"}}'
    assert canonical({False: "F", "False": "F"}) == '{"False":"F","false":"F"}'
    assert json.loads(to_json({False: 1, "False": 2, 3: 4})) == {"false": 1, "False": 2, "3": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny: Any) -> Path:
    """A folder with a study of two runs in `s`; its rows have JSON's true and false as labels."""
    home = tmp_path_factory.mktemp("study")
    conf, data = write(home)
    names = SHAPES["words"]["labels"]
    for path in (data / "words").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**row, "label": bool(names.index(row["label"]))} if "label" in row else row for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = f"{{column: label, values: {{false: {names[0]}, true: {names[1]}}}}}"
    text = json.dumps({k: v for k, v in SHAPES["words"].items() if k != "label"})
    (conf / "task" / "words.yaml").write_text(f"{text[:-1]}, label: {values}}}")
    cfg = config(*options(data, tiny("bert")), "+method=pet", "split.k=2", config_dir=conf)
    assert set(cfg["task"]["label"]["values"]) == {False, True}
    run_trial(cfg, home / "s", threads=1)
    return home


def options(data: Path, model: Path) -> list[str]:
    """Overrides of a training of one update on the task "words"."""
    small = ["hp.max_steps=1", "hp.eval_ratio=1.0", "hp.batch_size=4", "logger=none"]
    return ["task=words", f"data.dir={data / 'words'}", "model=local", f"model_args.path={model}", *small]


@pytest.fixture
def folder(place: Workplace, made: Path) -> Path:
    """A copy of that study in the working directory."""
    shutil.copytree(made, place.folder, dirs_exist_ok=True)
    old_meta(place.folder / "s", lambda cfg: cfg["data"].update(dir=str(place.folder / "data" / "words")))
    return study_of(place.folder / "s")


def study_of(sweep: Path) -> Path:
    """The one study of a sweep's folder."""
    (found,) = [p for p in sweep.iterdir() if not p.name.startswith(".")]
    return found


def test_a_study_of_boolean_labels_can_be_read_also_from_an_old_record(folder: Path) -> None:
    def as_before(cfg: dict[str, Any]) -> None:
        values = cfg["task"]["label"]["values"]
        cfg["task"]["label"]["values"] = {str(key == "true"): label for key, label in values.items()}

    now = read_setup(final.choose(folder).cfg)
    old_meta(folder, as_before)
    then = read_setup(final.choose(folder).cfg)
    assert (
        now.data.labeled.sha256 == then.data.labeled.sha256 == final.choose(folder).runs[0]["rows"]["labeled"]["sha256"]
    )


def test_runs_of_several_k_are_not_mixed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fold 0 of 2 is not fold 0 of 3, and K is no part of a study's key."""
    for path in folder.rglob("result.json"):
        record = json.loads(path.read_bytes())
        rewrite(path, {**record, "k_total": 2 + record["k"]})
    with pytest.raises(ConfigError, match=r"several K.* add split\.k=2 or split\.k=3"):
        final.choose(folder)
    assert {r["k_total"] for r in final.choose(folder, k=3).runs} == {3}
    for argv, message in ((["split.k=4"], "no finished runs, split.k=4"), (["split.k=0"], "split.k=0: expected")):
        with pytest.raises(SystemExit):
            final.main([str(folder), *argv])
        assert message in capsys.readouterr().err


def test_the_first_of_more_splits_are_those_of_a_smaller_k(folder: Path) -> None:
    assert [r["k"] for r in final.choose(folder).runs] == [0, 1]
    assert [r["k"] for r in final.choose(folder, k=1).runs] == [0]


def test_other_test_rows_are_refused_as_other_labelled_rows_are(place: Workplace, folder: Path) -> None:
    path = place.folder / "data" / "words" / "test.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(ConfigError, match="the test rows are not those of the study any more"):
        final.retrain(folder, "max", 1, place.folder / "m")


def test_a_relative_path_of_a_model_is_found_from_the_study(
    place: Workplace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place.models("bert"), place.folder / "tiny-bert")
    old_meta(folder, lambda cfg: cfg["model_args"].update(path="tiny-bert"))
    (place.folder / "else").mkdir()
    monkeypatch.chdir(place.folder / "else")
    assert final.choose(folder).cfg["model_args"]["path"] == str(place.folder / "tiny-bert")
    old_meta(folder, lambda cfg: cfg["model_args"].update(path="gone/tiny-bert"))
    with pytest.raises(ConfigError, match=r"model_args\.path='gone/tiny-bert' is relative to the folder where"):
        final.choose(folder)


def test_a_seed_that_diverges_is_named_with_the_scores_so_far(
    place: Workplace, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Lab.train

    def train(self: Lab, k: int, rep: int, *args: Any) -> Any:
        if rep == 1:
            raise FloatingPointError("the loss is nan at update 3")
        return real(self, k, rep, *args)

    monkeypatch.setattr(Lab, "train", train)
    with pytest.raises(SystemExit) as end:
        final.main([str(folder), f"final.out={place.folder / 'm'}"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("error: ") and "seed 2 of 3 failed" in said
    assert "the loss is nan at update 3" in said and "accuracy " in said and "final.seeds=1" in said


MINE = '"""Mine."""\nfrom fewnlu.methods.pet import Method as Pet\n\n\nclass Method(Pet):\n    name = "mypet"\n'


def test_a_method_of_the_users_own_is_retrained_and_labels_rows(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line names its module each time; a study's records can't."""
    monkeypatch.syspath_prepend(str(place.folder))
    (place.folder / "mine_method.py").write_text(MINE)
    conf, data = write(place.folder)
    (conf / "method").mkdir()
    pet = (ROOT / "conf/method/pet.yaml").read_text()
    (conf / "method/mypet.yaml").write_text(pet.replace("name: pet", "name: mypet"))
    own = ["+method=mypet", "split.k=1", "trust=[mine_method]"]
    run_trial(config(*options(data, place.models("bert")), *own, config_dir=conf), place.folder / "s", threads=1)
    folder = study_of(place.folder / "s")
    out, rows = place.folder / "m", data / "words" / "test.jsonl"

    def ends(main: Any, *argv: object) -> tuple[Any, str]:
        plugins.trust([])
        code: Any = 0
        try:
            main([str(a) for a in argv])
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err

    code, said = ends(final.main, folder, f"final.out={out}", "final.seeds=1")
    assert code == 2 and "trust=[mymodule]" in said
    code, said = ends(final.main, folder, "trust=[a/b]")
    assert code == 2 and "expected a list of module names" in said
    code, said = ends(final.main, folder, f"final.out={out}", "final.seeds=1", "trust=[mine_method]")
    assert code == 0, said
    code, said = ends(predict.main, out, rows, "-o", place.folder / "r.csv")
    assert code == 2 and "--trust MODULE" in said
    code, said = ends(predict.main, out, rows, "-o", place.folder / "r.csv", "--trust", "mine_method")
    assert code == 0 and "6 rows labelled" in said, said
    (place.folder / "mine_method.py").write_text(MINE + "\n# another line\n")
    code, said = ends(final.main, folder, f"final.out={out}2", "final.seeds=1", "trust=[mine_method]")
    assert code == 2 and "the lines of method=mypet are not those of the study" in said
    plugins.trust([])


def test_predict_ends_quietly_where_nobody_reads_on(place: Workplace, folder: Path) -> None:
    final.retrain(folder, "max", 1, place.folder / "m")
    rows = place.folder / "data" / "words" / "test.jsonl"
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "fewnlu.predict", "m", str(rows), "-o", "-"],
        cwd=place.folder, stdout=written, stderr=subprocess.PIPE, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(written)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr, done.stderr
