"""Compose one config with Hydra and refuse what cannot be run, with the choices, before anything is written.

Hydra's own messages advise ``+key`` for a misspelt key, which would then be ignored; these do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fewnlu import config as schema
from fewnlu.errors import ConfigError, choices

CONFIG_NAME = "train"


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
    plain_base = _plain(base)
    if "method" not in plain_base:
        raise ConfigError(f"no method chosen: add +method=NAME; {choices('', options(loader, 'method'))}")
    for ov in parsed:
        if _own(ov) and not options(loader, ov.key_or_group):
            _check_key(base, ov)
    full = _load(loader, overrides, config_name)
    cfg = _plain(full)
    schema.check(cfg, plain_base)
    return Composed(cfg, full.hydra)


def _own(ov: Any) -> bool:
    key = ov.key_or_group
    return not (key == "hydra" or key.startswith(("hydra.", "hydra/")))


def _check_choice(loader: Any, ov: Any) -> None:
    known = options(loader, ov.key_or_group)
    value = ov.value()
    values = value if isinstance(value, list) else [value]
    for one in values:
        if one is not None and str(one) not in known and not ov.is_delete():
            raise ConfigError(f"{ov.key_or_group}={one}: no such {ov.key_or_group}; {choices(one, known)}")
    if ov.key_or_group == "method" and not ov.is_add() and not ov.is_force_add():
        raise ConfigError(f"method={value}: the method is not in the defaults list; write +method={value}")


def _check_key(base: DictConfig, ov: Any) -> None:
    key = ov.key_or_group
    if ov.is_delete():
        raise ConfigError(f"~{key}: keys can't be removed; set a value, for example {key}=null")
    parts = key.split(".")
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
        node = node._get_node(part) if OmegaConf.is_dict(node) else None
        if node is None or not OmegaConf.is_dict(node):
            return


def _load(loader: Any, overrides: list[str], config_name: str) -> DictConfig:
    from hydra.errors import HydraException
    from hydra.types import RunMode

    try:
        return loader.load_configuration(config_name=config_name, overrides=list(overrides), run_mode=RunMode.RUN)
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
    plain.pop("launcher", None)
    plain.pop("experiment", None)
    return {str(k): v for k, v in plain.items()}
