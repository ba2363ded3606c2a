"""Checks of single values of a task file; each error names the key and what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewnlu.errors import ConfigError, choices


def known_keys(cfg: Mapping[Any, Any], known: Any, where: str) -> None:
    """Refuse a key that nobody reads."""
    for key in cfg:
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'; {choices(key, known)}")


def mapping(value: Any, where: str, empty: bool = False) -> Mapping[Any, Any]:
    """A mapping with at least one entry (`empty`: or none)."""
    if not isinstance(value, Mapping) or not (value or empty):
        raise ConfigError(f"{where}: {value!r} is no mapping with at least one entry")
    return value


def text(value: Any, where: str) -> str:
    """A text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {value!r} is no text (put it in quotes if YAML reads it as something else)")
    return value


def names(value: Any, where: str) -> tuple[str, ...]:
    """A list of different texts."""
    if not isinstance(value, (list, tuple)) or not value:
        raise ConfigError(f"{where}: {value!r} is no list with at least one name")
    found = tuple(text(v, where) for v in value)
    if len(set(found)) != len(found):
        raise ConfigError(f"{where}: {list(found)} names one twice")
    return found
