"""Check a whole command before anything is written: each choice composed, each task's rows read, each split drawn."""

from __future__ import annotations

import os
from typing import Any

from fewnlu.config import conf_dir
from fewnlu.errors import ConfigError
from fewnlu.protocol.compose import CONFIG_NAME, compose, parse
from fewnlu.protocol.grid import expand, points
from fewnlu.protocol.model import weights_sha
from fewnlu.protocol.setup import read_setup

OURS = "hydra_plugins.fewnlu_sweeper.FewnluSweeper"


def config_loader(config_dir: str | None = None) -> Any:
    """Hydra's config loader over conf/ and, before it, a user's own folder.

    Raises:
        ConfigError: `--config-dir` is no folder.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.utils import setup_globals

    setup_globals()
    path = create_config_search_path(str(conf_dir()))
    if config_dir is not None:
        folder = os.path.abspath(config_dir)
        if not os.path.isdir(folder):
            raise ConfigError(f"--config-dir {config_dir}: no such folder")
        path.prepend(provider="command-line", path=f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(config_search_path=path)


def check_command(overrides: list[str], *, multirun: bool, config_dir: str | None = None) -> set[str] | None:
    """Raise unless the command can be run.

    Args:
        overrides: of the command line.
        multirun: whether `-m` was given.

    Returns:
        names of the studies that the command belongs to; None where another sweeper decides that as it goes.

    Raises:
        ConfigError, DataError: the first thing found that cannot be run.
    """
    loader = config_loader(config_dir)
    if not multirun:
        for ov in parse(loader, overrides):
            if ov.is_sweep_override():
                raise ConfigError(f"{ov.input_line}: several values need a sweep; add -m")
        composed = compose(loader, overrides)
        return {_study_name(composed.cfg)}
    first = [o.input_line if not o.is_sweep_override() else _first(o) for o in parse(loader, overrides)]
    composed = compose(loader, first)
    sweeper = composed.hydra.sweeper
    if sweeper.get("_target_") != OURS:
        # How another sweeper combines its values is its own affair; each value must be one that can be run.
        read_setup(composed.cfg)
        for i, ov in enumerate(parse(loader, overrides)):
            if ov.is_sweep_override() and ov.is_discrete_sweep():
                for text in ov.sweep_string_iterator():
                    value = f"{ov.get_key_element()}={text}"
                    read_setup(compose(loader, [*first[:i], value, *first[i + 1 :]]).cfg)
        return None
    params = {k: str(v) for k, v in (sweeper.get("params") or {}).items()}
    plan = expand(loader, overrides, params)
    names = set()
    for one in plan.composed:
        h = points(one.cfg)[0]
        names.add(_study_name({**one.cfg, "hp": {**one.cfg["hp"], **h}}))
    return names


def _first(ov: Any) -> str:
    if not ov.is_discrete_sweep():
        return f"{ov.get_key_element()}={ov.value().start}"
    return f"{ov.get_key_element()}={next(iter(ov.sweep_string_iterator()))}"


def _study_name(cfg: dict[str, Any]) -> str:
    return read_setup(cfg).study(weights_sha(cfg))[1]


__all__ = ["CONFIG_NAME", "check_command", "config_loader"]
