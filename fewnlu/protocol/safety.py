"""What a config must not bring along: classes to instantiate, settings of Hydra hidden in a task's file, keys, tokens.

Hydra instantiates whatever a `_target_` names and configures logging with whatever a factory names (faults I120). Here
YAML files describe; they choose code by name only, and only code that fewnlu, an installed plugin or the command line
offers (see `fewnlu.plugins`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fewnlu.errors import ConfigError

# Groups whose files describe one thing; only launcher and experiment files may set anything outside themselves.
CLOSED = ("task", "model", "method", "split", "paradigm", "search", "decode", "trainer", "logger")
BROUGHT = ("split", "search", "paradigm", "decode")  # what a method may choose along with itself
INSTANTIATING = {"_target_", "_args_", "_partial_", "_convert_", "_recursive_", "()", "_instantiator"}
TARGETS = re.compile(
    r"(hydra\._internal\.core_plugins\.\w+\.\w+|hydra_plugins\.[\w.]+|hydra\.experimental\.callbacks\.\w+"
    r"|optuna\.samplers\.\w+|fewnlu\.protocol\.callback\.SummaryCallback)"
)
NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*")
SECRET_NAME = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.I)


def check_plain(cfg: Mapping[str, Any]) -> None:
    """Refuse `_target_` and its like anywhere in a resolved config, and names that are no part of a folder's name.

    Raises:
        ConfigError: names the key.
    """
    for group in ("task", "method", "split", "paradigm"):
        part = cfg.get(group)
        name = part.get("name") if isinstance(part, Mapping) else None
        if isinstance(name, str) and name and not NAME.fullmatch(name):
            raise ConfigError(
                f"{group}.name={name!r}: records lie in folders of this name; use letters, digits, '_', '+', '-' and "
                "'.', no dot first"
            )
    for path, key, value in _walk(cfg):
        if key in INSTANTIATING:
            raise ConfigError(
                f"{path}={value!r}: a config instantiates nothing, and '{key}' is refused everywhere; "
                "a part of your own is named by 'name' and offered with 'trust=[mymodule]' on the command line"
            )


def check_hydra(node: DictConfig) -> None:
    """Refuse classes in hydra's own section other than those of Hydra, its plugins and fewnlu.

    Raises:
        ConfigError: names the key.
    """
    plain = OmegaConf.to_container(node, resolve=False)
    assert isinstance(plain, dict)
    for path, key, value in _walk(plain, "hydra"):
        if key == "_target_" and not TARGETS.fullmatch(str(value)):
            raise ConfigError(f"{path}={value!r}: only launchers, sweepers and callbacks of Hydra and fewnlu are run")
        if key == "custom_search_space" and value is not None:  # the Optuna sweeper calls what it names
            raise ConfigError(
                f"{path}={value!r}: a config calls nothing; give the space as in hp.lr=interval(1e-5,1e-3)"
            )
        if key == "()" or (key == "class" and not str(value).startswith(("logging.", "colorlog."))):
            raise ConfigError(f"{path}={value!r}: only handlers of Python's logging are run")


def check_files(loader: Any, chosen: Mapping[str, Any]) -> None:
    """Refuse files of tasks and the like that reach outside themselves: a package header, or foreign defaults.

    Args:
        loader: Hydra's config loader.
        chosen: group -> name.

    Raises:
        ConfigError: names the file.
    """
    todo = [f"{group}/{chosen[group]}" for group in CLOSED if chosen.get(group)]
    seen: set[str] = loader.__dict__.setdefault("_fewnlu_checked", set())
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        found = loader.repository.load_config(name)
        if found is None:
            continue
        group = name.split("/")[0]
        package = found.header.get("package")
        if package not in (None, group, "_group_"):
            raise ConfigError(
                f"{name}.yaml: '# @package {package}' would set keys outside {group}; only files of launcher and "
                "experiment may"
            )
        for entry in found.defaults_list or []:
            if entry.is_self():
                continue
            # A method may choose other groups (zeroshot brings split=none): files of the same kind, checked as chosen.
            own = str(getattr(entry, "group", "") or "").lstrip("/")
            if getattr(entry, "override", False) and own in BROUGHT and entry.package == f"_global_.{own}":
                continue
            text = getattr(entry, "path", None)
            if text is None or "/" in text or entry.package:
                raise ConfigError(
                    f"{name}.yaml: 'defaults: {entry}' reaches outside {group}; name files of {group} only"
                )
            todo.append(f"{group}/{text}")
        seen.add(name)


def check_secrets(cfg: Mapping[str, Any], node: DictConfig | None = None) -> None:
    """Refuse a config that holds a key or token of the environment: it would reach records, logs and job scripts.

    Raises:
        ConfigError: names the key, never the value.
    """
    secrets = {v: n for n, v in os.environ.items() if SECRET_NAME.search(n) and len(v) >= 8}
    if not secrets:
        return
    shown: dict[str, Any] = {"": dict(cfg)}
    if node is not None:
        for part in ("launcher", "job", "sweep", "run", "overrides"):
            plain = OmegaConf.to_container(node[part], resolve=False)
            shown[f"hydra.{part}"] = plain if isinstance(plain, dict) else {}
    for place, values in shown.items():
        for path, _, value in _walk(values, place):
            for secret, name in secrets.items():
                if isinstance(value, str) and secret in value:
                    raise ConfigError(
                        f"{path} holds the value of ${name}, which would be written to records and logs; leave it out: "
                        "libraries read it from the environment"
                    )


def _walk(values: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    items = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        where = f"{path}.{key}" if path else str(key)
        yield where, str(key), value
        yield from _walk(value, where)
