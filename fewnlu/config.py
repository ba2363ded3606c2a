"""The schema that every composed config is held against, before any model is read.

Hydra itself refuses an unknown key without a plus; this module refuses the ones added by ``+`` or ``++`` that nobody
reads, wrong types and values out of range, and says what would be right. Imports neither torch nor lightning.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fewnlu.errors import ConfigError, choices
from fewnlu.trainer_flags import check_trainer


def conf_dir() -> Path:
    """Folder of the shipped YAML files: inside the package when installed from a wheel, else beside it."""
    here = Path(__file__).resolve().parent
    return here / "conf" if (here / "conf").is_dir() else here.parent / "conf"


def _range(low: float, high: float = math.inf, *, open_low: bool = False) -> dict[str, Any]:
    return {"range": (low, high, open_low)}


@dataclass
class Hp:
    """A point h of the search space H; the types make h canonical (spec 1.1)."""

    pattern: int | None = field(default=None, metadata=_range(0))
    lr: float = field(default=5e-5, metadata=_range(0, 1, open_low=True))
    max_steps: int = field(default=30, metadata=_range(0))
    eval_ratio: float = field(default=0.2, metadata=_range(0, 1, open_low=True))
    batch_size: int = field(default=8, metadata=_range(1))
    warmup_ratio: float = field(default=0.0, metadata=_range(0, 1))
    weight_decay: float = field(default=0.01, metadata=_range(0))
    patience: int = field(default=6, metadata=_range(1))
    head: Literal["lstm", "mlp", "raw"] = "lstm"
    lr_emb: float | None = field(default=None, metadata=_range(0, 1, open_low=True))
    mask_alpha: float = field(default=0.105, metadata=_range(0, 1, open_low=True))


@dataclass
class Seed:
    """Seeds of the labelled rows, the K splits and the training; never part of h."""

    data: int = field(default=42, metadata=_range(0))
    split: int = field(default=42, metadata=_range(0))
    train: int = field(default=42, metadata=_range(0))


@dataclass
class Data:
    """Which rows are read; the same for every task."""

    dir: str | None = None
    n_labeled: int | None = field(default=None, metadata=_range(2))
    per_class: int | None = field(default=None, metadata=_range(1))
    limit_test: int | None = field(default=None, metadata=_range(1))


@dataclass
class Reading:
    """How answers of several masks are read (`fewnlu.prompts.readers.Reading`)."""

    fill: Literal["most_confident_first", "left_to_right", "parallel"] = "most_confident_first"
    length: Literal["sum", "mean"] = "sum"
    hinge: Literal["example", "batch"] = "example"


@dataclass
class Wsc:
    """How many masks a free span gets (`fewnlu.prompts.readers.span`)."""

    masks: Literal["labelled", "paper"] = "labelled"


@dataclass
class Aux:
    """The auxiliary language-model loss (`fewnlu.methods.mlm`)."""

    mlm_weight: float = field(default=0.0, metadata=_range(0))
    mlm_ratio: float = field(default=0.15, metadata=_range(0, 1, open_low=True))
    pool: int | None = field(default=None, metadata=_range(1))


@dataclass
class ModelArgs:
    """What varies about a model beside its choice."""

    name: str | None = None
    path: str | None = None
    revision: str | None = None
    kind: Literal["masked", "causal"] | None = None
    freeze_layers: int | None = field(default=None, metadata=_range(0))
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    adapter: Literal["none", "lora"] = "none"
    adapter_rank: int = field(default=16, metadata=_range(1))


@dataclass
class Runtime:
    """How it is run; nothing here changes a result beyond float noise."""

    threads: int | None = field(default=None, metadata=_range(1))
    eval_batch: int = field(default=32, metadata=_range(1))
    micro_batch: int | None = field(default=None, metadata=_range(1))
    checkpointing: bool = False
    cache_gb: float = field(default=2.0, metadata=_range(0))
    share: list[Any] = field(default_factory=list)
    fail_fast: bool = False


@dataclass
class Search:
    """The grid H: how many of the task's patterns, and values per `hp` key."""

    patterns: int | None = field(default=None, metadata=_range(0))
    space: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Any] = field(default_factory=dict)


@dataclass
class Launcher:
    """What the overlays launcher=slurm and launcher=submitit_local hand on to Hydra's launcher."""

    wait: bool = True
    partition: str | None = None
    account: str | None = None
    minutes: int = field(default=240, metadata=_range(1))
    gpus: int | None = field(default=None, metadata=_range(0))
    cpus: int = field(default=2, metadata=_range(1))
    memory_gb: int | None = field(default=None, metadata=_range(1))
    parallel: int = field(default=16, metadata=_range(1))
    setup: list[Any] = field(default_factory=list)


SECTIONS: dict[str, type] = {
    "hp": Hp,
    "seed": Seed,
    "data": Data,
    "reading": Reading,
    "wsc": Wsc,
    "aux": Aux,
    "model_args": ModelArgs,
    "runtime": Runtime,
    "search": Search,
    "launcher": Launcher,
}
# Sections whose keys are those of the chosen YAML file (or of a validator of their own).
GROUPS = ("task", "model", "method", "split", "paradigm", "decode", "trainer", "logger")
# Keys of a group's file that make it what it is: another value is another file.
FIXED = {
    "model": ("name", "source", "kind"),
    "method": ("name", "reads"),
    "split": ("name",),
    "paradigm": ("name",),
    "logger": ("name",),
}
INSTEAD = {"model.kind": "model_args.kind=masked|causal"}
OPTIONAL = ("decode", "launcher")  # absent unless they are chosen
FREE = {"task", "trainer"}  # task: tasks.task_from_config; trainer: the flags of lightning's Trainer
HP_NAMES = tuple(f.name for f in dataclasses.fields(Hp))


def check(cfg: dict[str, Any], base: dict[str, Any], *, shown: str = "") -> None:
    """Refuse a config that cannot be run as it is meant.

    Args:
        cfg: the composed config without ``hydra``.
        base: the same choices of groups composed without single values: the keys that exist.
        shown: what to name as the place (the overrides), for the message.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value out of range.
    """
    known_top = [*SECTIONS, *GROUPS, "sweep", "trust"]
    for key in cfg:
        if key not in known_top:
            hint = f" Groups are chosen as +{key}=NAME only for: method, experiment." if key in {"methods"} else ""
            raise ConfigError(f"unknown key '{key}': {choices(key, known_top)}.{hint}{shown}")
    for name in (*SECTIONS, *GROUPS):
        if name in cfg and cfg[name] is None and name not in OPTIONAL:
            raise ConfigError(
                f"{name}=null: this section can't be empty; leave it out, and set single keys, as in "
                f"{name}.KEY=VALUE.{shown}"
            )
        if cfg.get(name) is not None and not isinstance(cfg[name], dict):
            raise ConfigError(
                f"{name}={cfg[name]!r}: expected a mapping; set single keys, as in {name}.KEY=VALUE.{shown}"
            )
    for name, schema in SECTIONS.items():
        _check_section(name, schema, cfg.get(name) or {}, shown)
    for name in GROUPS:
        if name not in FREE:
            _check_keys(name, cfg.get(name) or {}, base.get(name) or {}, shown)
            _check_fixed(name, cfg.get(name) or {}, base.get(name) or {}, shown)
    search = cfg.get("search") or {}
    _check_space("search.space", search.get("space") or {}, shown)
    for name, own in (search.get("methods") or {}).items():
        if own is not None and not isinstance(own, dict):
            raise ConfigError(
                f"search.methods.{name}={own!r}: expected a mapping of values per key, as in {{lr: [1.0e-5]}}.{shown}"
            )
        _check_space(f"search.methods.{name}", own or {}, shown)
    _check_logger(cfg.get("logger") or {}, shown)
    check_trainer(cfg.get("trainer") or {}, shown)
    _check_keys("launcher", cfg.get("launcher") or {}, base.get("launcher") or {}, shown)
    _check_sweep_name(cfg.get("sweep"), shown)
    check_trust(cfg.get("trust"), shown)


def _check_section(name: str, schema: type, values: dict[str, Any], shown: str) -> None:
    fields = {f.name: f for f in dataclasses.fields(schema)}
    hints = typing.get_type_hints(schema)
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"unknown key '{name}.{key}': {choices(key, fields)}.{shown}")
        check_value(f"{name}.{key}", value, hints[key], fields[key].metadata.get("range"), shown)


def check_value(key: str, value: Any, hint: Any, bounds: tuple[float, float, bool] | None, shown: str = "") -> None:
    """Raise a ConfigError unless `value` has the type `hint` and lies within `bounds` (low, high, low is excluded)."""
    options = (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )
    if not any(_is_a(value, o) for o in options):
        raise ConfigError(f"{key}={value!r}: expected {_words(options)}.{shown}")
    if bounds and isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high, open_low = bounds
        if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
            sign = ">" if open_low else ">="
            top = f" and <= {high:g}" if math.isfinite(high) else ""
            raise ConfigError(f"{key}={value!r}: expected a number {sign} {low:g}{top}.{shown}")


def _is_a(value: Any, option: Any) -> bool:
    if option is type(None):
        return value is None
    origin = typing.get_origin(option)
    if origin is Literal:
        return value in typing.get_args(option)
    if option is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or option)


def _words(options: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    out: list[str] = []
    for o in options:
        if typing.get_origin(o) is Literal:
            out.extend(str(v) for v in typing.get_args(o))
        else:
            out.append(names.get(o, {list: "a list", dict: "a mapping"}.get(typing.get_origin(o) or o, str(o))))
    return " or ".join(out)


def _check_keys(path: str, values: dict[str, Any], base: dict[str, Any], shown: str) -> None:
    for key, value in values.items():
        if key not in base:
            raise ConfigError(f"unknown key '{path}.{key}': {choices(key, base)}.{shown}")
        if isinstance(value, dict) and isinstance(base[key], dict):
            _check_keys(f"{path}.{key}", value, base[key], shown)


def _check_fixed(name: str, values: dict[str, Any], base: dict[str, Any], shown: str) -> None:
    for key in FIXED.get(name, ()):
        if values.get(key) != base.get(key):
            instead = INSTEAD.get(f"{name}.{key}", f"{'+' if name == 'method' else ''}{name}=NAME")
            raise ConfigError(f"{name}.{key}={values.get(key)!r}: this key belongs to its file; use {instead}.{shown}")


def _check_space(where: str, space: dict[str, Any], shown: str) -> None:
    for name, values in space.items():
        if name == "pattern":
            raise ConfigError(f"{where}.pattern: choose patterns by search.patterns or hp.pattern.{shown}")
        if values == []:
            raise ConfigError(f"{where}.{name}=[]: no value to try; leave the key out or list some.{shown}")
        for value in values if isinstance(values, list) else [values]:
            try:
                canonical_hp({name: value})
            except ConfigError as err:
                raise ConfigError(str(err).replace(f"hp.{name}", f"{where}.{name}")) from None


def _check_logger(conf: dict[str, Any], shown: str) -> None:
    if conf.get("name") != "wandb":
        return
    check_value("logger.mode", conf.get("mode"), Literal["auto", "online", "offline"], None, shown)
    check_value("logger.init_timeout", conf.get("init_timeout"), float, (0, math.inf, True), shown)
    check_value("logger.project", conf.get("project"), str, None, shown)
    check_value("logger.entity", conf.get("entity"), str | None, None, shown)


SWEEP_NAME = re.compile(r"[^\W_][\w.,+=@-]{0,99}")


def _check_sweep_name(name: Any, shown: str) -> None:
    if not isinstance(name, str) or not SWEEP_NAME.fullmatch(name):
        raise ConfigError(
            f"sweep={name!r}: expected a plain folder name of letters, digits and . , + = @ _ - (no slashes or spaces, "
            f"at most 100); records go to multirun/<sweep>.{shown}"
        )


def check_trust(names: Any, shown: str = "") -> None:
    """Raise a ConfigError unless this is a list of modules' names."""
    names = [] if names is None else names
    for name in names if isinstance(names, list) else [None]:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"trust={names!r}: expected a list of module names, as in 'trust=[mymodule]'.{shown}")


def canonical_hp(values: dict[str, Any]) -> dict[str, Any]:
    """h with each value in its declared type (so that 1 and 1.0 are one point), checked, keys sorted.

    Raises:
        ConfigError: a name that is no hyper-parameter, or a value of a wrong type or out of range.
    """
    fields = {f.name: f for f in dataclasses.fields(Hp)}
    hints = typing.get_type_hints(Hp)
    out: dict[str, Any] = {}
    for name in sorted(values):
        if name not in fields:
            raise ConfigError(f"unknown key 'hp.{name}': {choices(name, fields)}.")
        value = values[name]
        is_float = float in (typing.get_args(hints[name]) or (hints[name],))
        if is_float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        check_value(f"hp.{name}", value, hints[name], fields[name].metadata.get("range"))
        out[name] = value
    return out
