import copy
import re
from pathlib import Path

import pytest

from fewnlu.errors import ConfigError
from fewnlu.prompts.template import Slots, parse
from fewnlu.tasks.task import Task, task_from_config

CONF = Path(__file__).parents[2] / "conf" / "task"
SHIPPED = sorted(path.stem for path in CONF.glob("*.yaml") if "\nkind: choice\n" not in path.read_text("utf-8"))

MINIMAL = {
    "name": "toy",
    "labels": ["neg", "pos"],
    "fields": {"text": "text"},
    "metrics": ["accuracy"],
    "max_length": 64,
    "source": {"files": {"labeled": "a.jsonl", "test": None}},
    "patterns": {0: {"template": "{text~} It was [MASK].", "verbalizer": {"neg": ["bad"], "pos": ["good", "fine"]}}},
}


def shipped(name: str) -> Task:
    from omegaconf import OmegaConf

    return task_from_config(OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=True))


def changed(path: str, value: object) -> dict:
    cfg = copy.deepcopy(MINIMAL)
    *folders, last = path.split(".")
    at = cfg
    for key in folders:
        at = at[int(key) if key.isdigit() else key]
    if value is KeyError:
        del at[last]
    else:
        at[last] = value
    return cfg


def test_defaults():
    task = task_from_config(MINIMAL)
    assert task.label_column == "label" and task.id is None and task.unit == "{id}"
    assert task.select == ("accuracy",) and task.grid == (0,)
    assert task.patterns[0].verbalizer["pos"] == ("good", "fine")
    assert task.label_id("pos") == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_task_is_valid(name):
    task = shipped(name)
    assert task.name == name and set(task.grid) <= set(task.patterns)
    for pattern in (*task.patterns.values(), *task.ptuning.values()):
        template = parse(pattern.template, f"task.patterns.{pattern.id}", fields=task.fields)
        assert template.n_masks == 1 and any(f.shorten for f in template.fields)
        used = {f.name for f in template.fields} | set(re.findall(r"\w+", pattern.span))
        assert used == set(task.fields)  # no pattern forgets a field
    for n, pattern in task.ptuning.items():
        assert sum(p.n for p in parse(pattern.template).parts if isinstance(p, Slots)) >= min(n, 1)


def test_grids_have_the_sizes_of_the_paper():
    assert {n: len(shipped(n).grid) for n in ("boolq", "rte", "cb", "wic")} == {
        "boolq": 6,
        "rte": 6,
        "cb": 6,
        "wic": 3,
    }


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("patterns.0.verbalizer", {"neg": ["bad"]}, "no words for label 'pos'"),
        ("patterns.0.verbalizer", {"neg": ["bad"], "pos": []}, "verbalizer.pos"),
        ("patterns.0.verbalizer", {"neg": ["bad"], "pos": ["bad"]}, "both 'neg' and 'pos'"),
        ("patterns.0.verbalizer", {"neg": ["bad"], "pos": ["good", "good"]}, "twice"),
        ("patterns.0.verbalizer", ["bad", "good"], "no mapping of labels"),
        ("patterns.0.verbalizer", {"neg": ["bad"], "pos": ["good"], "neu": ["so"]}, "unknown label 'neu'"),
        ("patterns.0.verbalizer", {"neg": [False], "pos": [True]}, "in quotes"),
        ("patterns.0.verbalizer", {"neg": ["bad"], "pos": [" good"]}, "white space"),
    ],
)
def test_i074_broken_verbalizers_are_refused(path, value, says):
    with pytest.raises(ConfigError) as error:
        task_from_config(changed(path, value))
    assert says in str(error.value) and "task.patterns.0.verbalizer" in str(error.value)


def test_i018_binary_f1_on_three_labels_is_refused_naming_task_and_metric():
    cfg = changed("labels", ["neg", "pos", "neu"]) | {"metrics": ["f1_binary"]}
    with pytest.raises(ConfigError, match=r"f1_binary.*'toy'"):
        task_from_config(cfg)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("name", KeyError, "task.name"),
        ("labels", ["neg"], "fewer than two"),
        ("labels", ["neg", "neg"], "twice"),
        ("labels", [True, False], "in quotes"),
        ("metrics", ["acuracy"], "did you mean 'accuracy'?"),
        ("metrics", ["f1_binary"], "task.positive"),
        ("positive", "good", "task.positive"),
        ("select", ["macro_f1"], "task.select"),
        ("max_length", "64", "task.max_length"),
        ("max_length", True, "task.max_length"),
        ("max_lenght", 64, "did you mean 'max_length'?"),
        ("label", {"column": "y", "values": {True: "yes"}}, "task.label.values.true"),
        ("patterns", {}, "task.patterns"),
        ("patterns", {"x": {}}, "whole number"),
        ("patterns.0.template", "{txt} [MASK]", "did you mean 'text'?"),
        ("patterns.0.template", "{text}", "no [MASK]"),
        ("patterns.0.words", {}, "unknown key 'words'"),
        ("patterns.0.template", "{text} [P2] [MASK]", "task.ptuning"),
        ("patterns.0.kinds", ["encoder"], "task.patterns.0.kinds"),
        ("patterns.0.span", "{text}", "span and verbalizer exclude each other"),
        ("patterns.0.verbalizer", "candidates", "'labels: candidates'"),
        ("patterns.0.verbalizer", {"neg": ["bad"], "pos": ["{text}"]}, "needs [MASK*]"),
        ("patterns.0.verbalizer", {"neg": ["bad"], "pos": ["{txt}"]}, "unknown field {txt}"),
        ("ptuning", {1: MINIMAL["patterns"][0]}, "task.ptuning.1.template"),
        ("layout", "copaa", "did you mean 'copa'?"),
        ("metrics", ["em"], "task.group"),
        ("unit", "{", "task.unit: '{' is no template"),
        ("unit", "{id}}", "task.unit"),
        ("unit", "id", "as in '{id}'"),
        ("group", "{}", "task.group"),
        ("metrics", ["answer_em"], "labels: candidates"),
        ("grid", [1], "no pattern 1"),
        ("grid", [0, 0], "twice"),
        ("source", {}, "task.source"),
        ("source.files", {"train": "x"}, "unknown key 'train'"),
        ("source.counts", {"test": {"good": 3}}, "task.source.counts.test"),
        ("source.hub", {"path": "x"}, "task.source.hub.splits"),
    ],
)
def test_errors_name_the_key(path, value, says):
    with pytest.raises(ConfigError) as error:
        task_from_config(changed(path, value))
    assert says in str(error.value)


def test_pattern_keys_may_be_text():
    assert 3 in task_from_config(changed("patterns", {"3": MINIMAL["patterns"][0]})).patterns


def test_unknown_pattern_lists_those_there_are():
    with pytest.raises(ConfigError, match="choose one of: 0"):
        task_from_config(MINIMAL).pattern(4)


def test_importing_tasks_and_templates_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, fewnlu.tasks.task, fewnlu.tasks.sources, fewnlu.tasks.metrics, fewnlu.prompts.template;"
        "heavy = ('torch', 'transformers', 'datasets', 'pandas', 'scipy', 'sklearn', 'numpy');"
        "print([m for m in heavy if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
