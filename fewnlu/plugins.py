"""Where methods, split strategies, paradigms and readers come from: one lookup for all of them.

A part is a class with a fixed name in a file of its own: `Method` in fewnlu/methods/pet.py. It is found by its name
(the class's `name`, else the file's) in fewnlu itself, in what installed packages offer under the entry point group
``fewnlu.plugins``, and in modules that the *command line* names with ``trust=[mypkg]``. A YAML file can name a part but
never bring one along: nothing is imported because a config says so.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fewnlu.errors import ConfigError, choices

GROUP = "fewnlu.plugins"
# kind -> (room of fewnlu and folder of a plugin package, class, what it is called in messages)
KINDS = {
    "method": ("methods", "Method"),
    "split": ("splits", "Strategy"),
    "paradigm": ("paradigms", "Paradigm"),
    "reader": ("readers", "Reader"),
}
_trusted: list[str] = []


def trust(modules: list[str]) -> None:
    """Let parts come from these modules or packages; only called with what the command line names.

    Raises:
        ConfigError: one of them is not there.
    """
    _trusted[:] = modules
    if str(Path.cwd()) not in sys.path and modules:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; a console script does not
    for name in modules:
        try:
            there = importlib.util.find_spec(str(name)) is not None
        except (ImportError, ValueError):
            there = False
        if not there:
            raise ConfigError(f"trust=[{name}]: no such module; start the command where it lies, or install it")


def find(kind: str, name: str) -> Any:
    """The class of a part.

    Args:
        kind: a key of `KINDS`.
        name: as in the part's YAML file.

    Raises:
        ConfigError: no such part, or a plugin that cannot be imported.
    """
    own = _builtin(kind)
    if name in own:
        return getattr(importlib.import_module(own[name]), KINDS[kind][1])
    foreign = _foreign(kind)
    if name in foreign:
        return foreign[name]
    raise ConfigError(
        f"{kind}.name={name}: {choices(name, [*own, *foreign])}\n"
        f"One of your own is found in a module named on the command line: 'trust=[mymodule]'"
    )


def source_of(kind: str, name: str) -> Path | None:
    """File of a part that is not fewnlu's own, None for one that is: what it computes may change with that file."""
    if name in _builtin(kind):
        return None
    return Path(str(sys.modules[find(kind, name).__module__].__file__))


@cache
def _builtin(kind: str) -> dict[str, str]:
    """Name -> module of fewnlu, read off the files without importing them (some import torch)."""
    room, cls = KINDS[kind]
    found = {}
    spec = importlib.util.find_spec(f"fewnlu.{room}")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for file in sorted(Path(folder).glob("*.py")):
            text = file.read_text(encoding="utf-8")
            if body := re.search(rf"^class {cls}\b.*?(?=^\S|\Z)", text, re.M | re.S):
                named = re.search(r'^    name(?:: str)? = "(\w+)"', body[0], re.M)
                found[named[1] if named else file.stem] = f"fewnlu.{room}.{file.stem}"
    return found


def _foreign(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            module = point.load()
        except Exception as err:
            raise ConfigError(f"plugin '{point.name}' ({point.value}) cannot be imported: {err}") from err
        found.update(_parts(module, kind))
    for name in _trusted:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as err:
            if err.name is None or not name.startswith(err.name):
                raise ConfigError(f"trust=[{name}]: it imports '{err.name}', which is not installed") from err
            raise ConfigError(
                f"trust=[{name}]: no such module in {Path.cwd()} or on PYTHONPATH; give a module's name, not a path"
            ) from None
        except Exception as err:
            raise ConfigError(f"trust=[{name}]: cannot be imported: {type(err).__name__}: {err}") from err
        found.update(_parts(module, kind))
    return found


def _parts(module: ModuleType, kind: str) -> dict[str, Any]:
    """Parts of a module or package: in itself, in its files, and in its folder named as fewnlu's room."""
    room, cls = KINDS[kind]
    modules = [module]
    for package in (module.__name__, f"{module.__name__}.{room}"):
        if not hasattr(module, "__path__") or importlib.util.find_spec(package) is None:
            continue
        paths = importlib.import_module(package).__path__
        modules += [importlib.import_module(m.name) for m in pkgutil.iter_modules(paths, f"{package}.") if not m.ispkg]
    found = {}
    for one in modules:
        part = getattr(one, cls, None)
        if isinstance(part, type) and part.__module__ == one.__name__:
            found[str(getattr(part, "name", None) or one.__name__.rsplit(".", 1)[-1])] = part
    return found
