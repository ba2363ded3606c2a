"""The house keeps its rules: every YAML composes, imports run one way, files stay short, nothing names this machine."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fewnlu.protocol.check import config_loader, first_choice, sweep_params
from fewnlu.protocol.compose import compose
from fewnlu.protocol.records import digest
from fewnlu.trainer_flags import RESERVED_FLAGS, TRAINER_FLAGS

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
SOURCES = sorted([*(ROOT / "fewnlu").rglob("*.py"), *(ROOT / "hydra_plugins").rglob("*.py")])

# A room may import its own files and what stands lower; rooms of equal rank do not know each other.
RANK = {
    "errors": 0,
    "determinism": 0,
    "processes": 0,
    "trainer_flags": 1,
    "config": 2,
    "plugins": 2,
    "progress": 2,
    "tasks": 3,
    "backbones": 3,
    "decoding": 3,
    "prompts": 4,
    "splits": 5,
    "methods": 5,
    "paradigms": 6,
    "protocol": 7,
    "reporting": 8,
}
# Tests that need made-up paths of somebody's machine.
FAKES = {ROOT / "tests/reporting/test_report.py", ROOT / "tests/reporting/trees.py"}
ENTRY = 9  # train, report, … and `__main__` of a room
UPWARD = {
    ("fewnlu.protocol.callback", "fewnlu.reporting"): "Hydra calls it when a sweep ends; it imports the report then",
    ("fewnlu.methods.fit", "fewnlu.splits"): "types only: the rows and batches that it is handed",
    ("fewnlu.methods.looks", "fewnlu.splits"): "types only: the rows that it scores",
}


@pytest.fixture(scope="module")
def loader():
    return config_loader()


def _options() -> list[str]:
    return [f"{p.parent.relative_to(CONF).as_posix()}={p.stem}" for p in sorted(CONF.glob("*/**/*.yaml"))]


@pytest.mark.parametrize("option", _options())
def test_every_yaml_composes_and_is_read(loader, option):
    """Composing holds the config against the schema; then the chosen part is built as a trial would build it."""
    group, name = option.split("=")
    text = (CONF / group / f"{name}.yaml").read_text("utf-8")
    asked = "kind: choice" in text  # a task that is asked in words
    if group == "method" or "/method" in text:  # a recipe brings its method
        overrides = [f"+{option}" if group == "method" else option]
    else:
        overrides = [option, "+method=zeroshot" if asked else "+method=pet"]
    if group == "experiment" and "+method:" in text:  # one that sweeps methods
        overrides = first_choice(loader, [option], sweep_params(loader, [option])[1])
    cfg = compose(loader, overrides).cfg
    if group in {"task", "model", "method", "split", "paradigm", "logger"}:
        assert cfg[group]["name"] == name  # the file's name is the name in tables and folders
    if group == "task":
        from fewnlu.tasks.choice import choice_from_config
        from fewnlu.tasks.task import task_from_config

        assert choice_from_config(cfg["task"]).labels if asked else task_from_config(cfg["task"]).grid
        assert digest(cfg["task"])  # part of the study's key, whatever YAML makes of its keys (WiC: false and "False")
    if group == "split":
        from fewnlu.splits.strategy import build_strategy

        assert build_strategy(cfg["split"]).k >= 1
    if group == "method" and cfg["method"]["input"] != "question":  # nothing is trained there
        from fewnlu.methods.method import method_class

        assert method_class(name).__name__ == "Method"


def test_every_yaml_begins_with_a_comment():
    bare = [str(p.relative_to(ROOT)) for p in CONF.rglob("*.yaml") if not p.read_text("utf-8").startswith("#")]
    assert not bare


def test_trainer_flags_are_lightnings():
    from pytorch_lightning import Trainer

    assert set(inspect.signature(Trainer.__init__).parameters) - {"self"} == TRAINER_FLAGS
    assert set(RESERVED_FLAGS) <= TRAINER_FLAGS


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str) -> str:
    return ([*module.split("."), ""])[1]


def _rank(module: str) -> int:
    if module.endswith(".__main__") or not module.startswith("fewnlu."):
        return ENTRY  # Hydra's plugin and a room's command
    return RANK.get(_room(module), ENTRY)


def _imported(path: Path) -> list[str]:
    """Modules of fewnlu that a file imports anywhere, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative import; write it in full"
            base = str(node.module)
            # `from fewnlu.protocol import callback` imports the module fewnlu.protocol.callback
            found += [f"{base}.{alias.name}" if base.count(".") <= 1 else base for alias in node.names]
    return sorted({m for m in found if m.startswith("fewnlu.")})


def test_imports_run_one_way():
    wrong, used = [], set()
    for path in SOURCES:
        module = _module(path)
        for target in _imported(path):
            room = f"fewnlu.{_room(target)}"
            if (module, room) in UPWARD:
                used.add((module, room))
            elif _rank(target) >= _rank(module) and _room(module) != _room(target):
                wrong.append(f"{module} imports {target}")
    assert not wrong
    assert used == set(UPWARD), "an exception that nobody needs any more"


def test_a_room_that_is_new_has_a_rank():
    rooms = {p.name for p in (ROOT / "fewnlu").iterdir() if (p / "__init__.py").is_file()}
    assert rooms <= set(RANK)


def test_no_file_is_long():
    lines = {str(p.relative_to(ROOT)): len(p.read_text("utf-8").splitlines()) for p in _tracked("*.py")}
    assert not {name: n for name, n in lines.items() if n > 400}


def test_public_names_have_docstrings():
    """Modules, and their functions and classes; methods are described by the class they belong to."""
    bare = []
    for path in SOURCES:
        tree = ast.parse(path.read_text("utf-8"))
        if tree.body and not ast.get_docstring(tree):
            bare.append(str(path.relative_to(ROOT)))
        for node in tree.body:
            is_public = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
            if is_public and not ast.get_docstring(node):
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not bare


def _tracked(*patterns: str) -> list[Path]:
    """Files of the repository; all but caches where it is no git checkout (an unpacked sdist)."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z", "--", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return [p for name in done.stdout.split("\0") if name and (p := ROOT / name).is_file()]
    folders = ("fewnlu", "hydra_plugins", "conf", "tests")
    return [p for f in folders for pattern in patterns or ("*",) for p in (ROOT / f).rglob(pattern) if p.is_file()]


def test_no_file_names_a_machine():
    """Absolute paths of somebody's home or work folder, which exist on one machine only."""
    pattern = re.compile(r"(?<![\w.}/:\"'*])/(?:home|Users|work|root|mnt|data|scratch)/[\w.-]+")
    found = []
    for path in _tracked():
        if path in FAKES or path == Path(__file__) or path.suffix in {".jsonl", ".parquet", ".safetensors", ".png"}:
            continue
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
        assert str(ROOT) not in path.read_text("utf-8", errors="replace"), path
    assert not found


def test_constraints_meet_the_requirements():
    """Every dependency and extra is pinned to one version that pyproject.toml allows."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()]
    pinned = [Requirement(line) for line in lines if line]
    versions = {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in pinned}
    assert len(versions) == len(pinned)
    assert all(re.fullmatch(r"==[\w.]+", str(r.specifier)) for r in pinned)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [r for group in project["optional-dependencies"].values() for r in group]
    for wanted in map(Requirement, [*project["dependencies"], *extras]):
        version = versions.get(canonicalize_name(wanted.name))
        assert version is not None, f"{wanted.name} is not in constraints.txt"
        assert wanted.specifier.contains(version, prereleases=True), f"{wanted}, but constraints.txt has {version}"


def test_the_wheel_has_config_data_and_plugin(tmp_path):
    """What `pip install .` puts into site-packages; built without its own environment where hatchling is there."""
    pytest.importorskip("hatchling")
    import zipfile

    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    assert {f"fewnlu/conf/{p.relative_to(CONF).as_posix()}" for p in CONF.rglob("*.yaml")} <= names
    data = (ROOT / "fewnlu" / "tasks" / "data").rglob("*.jsonl")
    assert {p.relative_to(ROOT).as_posix() for p in data} <= names
    assert "hydra_plugins/fewnlu_sweeper/__init__.py" in names
    assert "hydra_plugins/__init__.py" not in names  # a namespace that other plugins share
    assert not [n for n in names if n.startswith("tests/") or "__pycache__" in n]
