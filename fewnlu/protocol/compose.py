"""Compose one config with Hydra and refuse what cannot be run, with the choices, before anything is written.

Hydra's own messages advise ``+key`` for a misspelt key, which would then be ignored; these do not.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fewnlu import config as schema
from fewnlu import plugins, trainer_flags
from fewnlu.errors import ConfigError, choices
from fewnlu.protocol import safety

CONFIG_NAME = "train"
IN_DEFAULTS = ("task", "model", "split", "paradigm", "search", "trainer", "logger")  # chosen without a plus


@dataclass
class Composed:
    """One composed config: `cfg` as plain resolved values without hydra, `hydra` the hydra node."""

    cfg: dict[str, Any]
    hydra: DictConfig


def parse(loader: Any, overrides: list[str]) -> list[Any]:
    """Hydra's parsed overrides.

    Raises:
        ConfigError: an override that Hydra's grammar does not take.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    except HydraException as err:
        text = " ".join(str(err).split("\nSee https")[0].split())
        raise ConfigError(
            f"{text}\nQuote values with braces or commas twice: 'key=\"{{text}}, it was\"'; choose patterns "
            "by id: hp.pattern=0"
        ) from None


def of_home(overrides: list[str]) -> list[str]:
    """The overrides, a ~ before a folder written in full: shells leave it there, and Hydra has no place for it."""
    found = (re.fullmatch(r"(\+*(?:data\.dir|model_args\.path)=)(~(?:/.*)?)", text) for text in overrides)
    return [m[1] + os.path.expanduser(m[2]) if m else text for m, text in zip(found, overrides, strict=True)]


def of_swept_groups(overrides: list[str]) -> list[str]:
    """The overrides of a sweep, options of swept groups written as a sweep over one value.

    Hydra composes a sweep's own config without what is swept. There, ``paradigm=ipet,noisy_student paradigm.reps=2``
    would set an option of the default paradigm, which has none; as ``paradigm.reps=choice(2)`` it reaches the jobs
    alone. An experiment may sweep any group.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException:
        return overrides  # the check says it better
    swept = {ov.key_or_group for ov in parsed if ov.is_sweep_override()}
    groups = {*IN_DEFAULTS, "method", "decode"} - {"trainer"}
    if not any(ov.key_or_group == "experiment" for ov in parsed):
        groups &= swept
    out = []
    for ov, text in zip(parsed, overrides, strict=True):
        key, _, value = text.partition("=")
        one = ov.key_or_group.split(".")[0] in groups and "." in ov.key_or_group and not ov.is_delete()
        out.append(f"{key}=choice({value})" if one and value.strip() and not ov.is_sweep_override() else text)
    return out


def options(loader: Any, group: str) -> list[str]:
    """Names that a config group offers (empty: no such group)."""
    from hydra.core.object_type import ObjectType

    return sorted(loader.get_group_options(group, results_filter=ObjectType.CONFIG))


def compose(loader: Any, overrides: list[str], *, config_name: str = CONFIG_NAME) -> Composed:
    """Compose, check and resolve one config (no sweep values among the overrides).

    Args:
        loader: Hydra's config loader, which knows the search path.
        overrides: as on the command line.

    Raises:
        ConfigError: whatever keeps this config from being run.
    """
    parsed = parse(loader, overrides)
    groups = []
    for ov in parsed:
        if _own(ov) and options(loader, ov.key_or_group):
            _check_choice(loader, ov)
            groups.append(ov.input_line)
        elif not _own(ov) and options(loader, ov.key_or_group):
            groups.append(ov.input_line)
    base = _load(loader, groups, config_name)
    safety.check_files(loader, base.hydra.runtime.choices)
    plain_base = _plain(base)
    if "method" not in plain_base:
        raise ConfigError(f"no method chosen: add +method=NAME; {choices('', options(loader, 'method'))}")
    for ov in parsed:
        if _own(ov) and not options(loader, ov.key_or_group):
            _check_key(base, ov)
        elif ov.key_or_group.startswith("hydra."):
            _check_hydra_key(base, ov)
    full = _load(loader, overrides, config_name)
    cfg = _plain(full)
    safety.check_plain(cfg)
    safety.check_hydra(full.hydra)
    safety.check_secrets(cfg, full.hydra)
    schema.check(cfg, plain_base)
    _check_methods(loader, cfg)
    if cfg["trust"] and not any(ov.key_or_group == "trust" for ov in parsed):
        raise ConfigError(f"trust={cfg['trust']}: only the command line may name modules to import, never a file")
    plugins.trust(cfg["trust"] or [])
    absolute_paths(cfg, Path.cwd())
    return Composed(cfg, full.hydra)


def absolute_paths(cfg: dict[str, Any], root: Path) -> None:
    """Write data.dir and model_args.path of a config in full, so that they hold in any folder; ~ is the user's home."""
    if cfg["data"]["dir"]:
        cfg["data"]["dir"] = str((root / Path(cfg["data"]["dir"]).expanduser()).resolve())
    if cfg["model_args"]["path"]:  # a link's name stays: the model goes by it
        cfg["model_args"]["path"] = os.path.abspath(root / Path(cfg["model_args"]["path"]).expanduser())


def _check_methods(loader: Any, cfg: dict[str, Any]) -> None:
    """Refuse a search.methods of a method that there is not: nobody would read it."""
    known = options(loader, "method")
    for name in cfg["search"].get("methods") or {}:
        if name in known or name == cfg["method"].get("name"):
            continue
        files = [loader.repository.load_config(f"method/{one}") for one in known]
        names = [str(file.config.get("name")) for file in files if file is not None]
        if name not in names:
            raise ConfigError(f"search.methods.{name}: no such method; {choices(name, names)}")


def _own(ov: Any) -> bool:
    key = ov.key_or_group
    return not (key == "hydra" or key.startswith(("hydra.", "hydra/")))


def _check_choice(loader: Any, ov: Any) -> None:
    known = options(loader, ov.key_or_group)
    if ov.is_delete():
        raise ConfigError(f"{ov.input_line}: a group can't be removed; {choices('', known)}")
    value = ov.value()
    if value is None and ov.key_or_group in (*IN_DEFAULTS, "method"):
        instead = "use logger=none" if ov.key_or_group == "logger" else choices("", known)
        raise ConfigError(f"{ov.input_line}: a group can't be empty; {instead}")
    values = value if isinstance(value, list) else [value]
    for one in values:
        if one is not None and str(one) not in known:
            raise ConfigError(f"{ov.key_or_group}={one}: no such {ov.key_or_group}; {choices(one, known)}")
    if ov.key_or_group == "method" and not ov.is_add() and not ov.is_force_add():
        raise ConfigError(f"method={value}: the method is not in the defaults list; write +method={value}")
    if ov.is_add() and ov.key_or_group in IN_DEFAULTS:
        raise ConfigError(f"{ov.input_line}: {ov.key_or_group} is in the defaults list; write it without the plus")


def _check_key(base: DictConfig, ov: Any) -> None:
    key = ov.key_or_group
    if ov.is_delete():
        raise ConfigError(f"~{key}: keys can't be removed; set a value, for example {key}=null")
    parts = key.split(".")
    if key in schema.SECTIONS and isinstance(ov.value(), dict):
        raise ConfigError(f"{ov.input_line}: set the keys one by one, as in {key}.NAME=VALUE")
    if parts[0] in schema.FREE and len(parts) > 1 and not (ov.is_add() or ov.is_force_add()):
        _check_free(base, parts, ov)
    node: Any = base
    for i, part in enumerate(parts):
        known = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if part not in known and not part.isdigit():
            where = ".".join(parts[:i])
            if parts[0] in schema.FREE and i > 0:
                return  # task and trainer have validators of their own
            if i == 0:
                known = [k for k in known if k != "hydra"] + ["method"]
            full = f"{where}.{part}" if where else part
            raise ConfigError(f"unknown key '{full}' in '{ov.input_line}': {choices(part, sorted(set(known)))}")
        if part.isdigit() and OmegaConf.is_dict(node):
            raise ConfigError(
                f"{ov.input_line}: keys that are numbers can't be reached by dots; write "
                f"'{'.'.join(parts[:i])}={{{part}: {{NAME: VALUE}}}}'"
            )
        node = node._get_node(part) if OmegaConf.is_dict(node) else None
        if node is None or not OmegaConf.is_dict(node):
            return


def _check_free(base: DictConfig, parts: list[str], ov: Any) -> None:
    # Without a plus Hydra refuses a key that the file lacks, but in words that name no alternatives.
    here = [str(k) for k in base[parts[0]]]
    if parts[0] == "trainer" and parts[1] in trainer_flags.RESERVED_FLAGS:
        raise ConfigError(f"{ov.input_line}: {trainer_flags.reserved(parts[1])}")
    if parts[1] not in here:
        known = [*here, *sorted(trainer_flags.TRAINER_FLAGS - set(trainer_flags.RESERVED_FLAGS) - set(here))]
        hint = f"; a key that the file does not have is added with ++{ov.input_line}"
        raise ConfigError(
            f"unknown key '{parts[0]}.{parts[1]}' in '{ov.input_line}': "
            f"{choices(parts[1], known if parts[0] == 'trainer' else here)}"
            f"{hint if parts[0] != 'trainer' or parts[1] in known else ''}"
        )


def _check_hydra_key(base: DictConfig, ov: Any) -> None:
    """Refuse keys added to hydra's own section that nobody reads; free mappings and lists are left to Hydra."""
    node: Any = base
    for part in ov.key_or_group.split("."):
        if OmegaConf.is_dict(node) and OmegaConf.get_type(node) is not dict and part not in node:
            raise ConfigError(f"unknown key '{part}' in '{ov.input_line}': {choices(part, [str(k) for k in node])}")
        node = node._get_node(part) if OmegaConf.is_dict(node) and part in node else None
        if node is None or not OmegaConf.is_dict(node) or node._is_none():
            return


def _load(loader: Any, overrides: list[str], config_name: str) -> DictConfig:
    from hydra.errors import HydraException
    from hydra.types import RunMode

    try:
        return loader.load_configuration(config_name=config_name, overrides=list(overrides), run_mode=RunMode.RUN)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        where = f"{mark.name}:{mark.line + 1}" if mark else " ".join(overrides)
        raise ConfigError(f"{where}: no YAML: {getattr(err, 'problem', None) or err}") from None
    except RecursionError:
        raise ConfigError(
            f"{' '.join(overrides)}: a file of these holds an alias (*name) inside its own anchor (&name), or is "
            "nested without end; write the values out"
        ) from None
    except AssertionError as err:  # omegaconf, for a key below an unset mapping
        raise ConfigError(f"{' '.join(overrides)}: {err}; give the whole mapping, as in KEY={{NAME: VALUE}}") from None
    except (HydraException, OmegaConfBaseException) as err:
        cause = f" {err.__cause__}" if err.__cause__ and str(err.__cause__) not in str(err) else ""
        lines = [line.strip() for line in f"{err}{cause}".splitlines() if line.strip()]
        raise ConfigError("\n".join(line for line in lines if "append to your" not in line)) from None


def _plain(cfg: DictConfig) -> dict[str, Any]:
    from omegaconf import open_dict, read_write

    copy = cfg.copy()
    with read_write(copy), open_dict(copy):
        copy.pop("hydra", None)
    try:
        plain = OmegaConf.to_container(copy, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as err:
        raise ConfigError(" ".join(str(err).split())) from None
    assert isinstance(plain, dict)
    plain.pop("experiment", None)
    return {str(k): v for k, v in plain.items()}
