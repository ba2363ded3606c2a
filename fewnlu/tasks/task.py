"""A task as data: one YAML file read into a checked `Task`. Nothing in it is instantiated or executed.

Every error is found here, before a model or a row is read, and names the key (`task.patterns.3.verbalizer`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fewnlu.errors import ConfigError, choices

SETS = ("labeled", "test", "unlabeled")
KEYS = (
    *(
        "name",
        "description",
        "licence",
        "labels",
        "fields",
        "label",
        "id",
        "unit",
        "metrics",
        "select",
        "positive",
    ),
    *("max_length", "source", "grid", "patterns", "cls"),
)
CLS_ID = -1  # id of the pseudo-pattern that a plain classifier reads
METRICS = ("accuracy", "macro_f1", "f1_binary", "mcc")


@dataclass(frozen=True, slots=True)
class Row:
    """One example. A split never separates rows of equal `unit`; `label` is None where it is unknown."""

    id: str
    fields: Mapping[str, str]
    label: str | None
    unit: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A template and its verbalizer (label -> one or more words); "PVP" in the literature."""

    id: int
    template: str
    verbalizer: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set on the Hugging Face hub at a pinned revision; `splits` maps our sets to its splits."""

    path: str
    name: str | None
    revision: str
    splits: Mapping[str, str | None]
    label_names: tuple[str, ...] | None
    counts: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows may come from: files below `data.dir`, rows inside the package, or the hub."""

    files: Mapping[str, str | None]
    packaged: str | None
    hub: Hub | None
    counts: Mapping[str, Mapping[str, int]]  # expected rows per label of `files` and of packaged rows


@dataclass(frozen=True, slots=True)
class Task:
    """A checked task.

    Attributes:
        labels: class names in index order; every score column and class id follows this order.
        fields: template field -> column of the data.
        label_values: raw value as written by `raw_key` -> label; empty where the data holds label names.
        id: column of the row id (dotted for nested values); None: the line number.
        unit: template over "id", fields and columns; rows with equal units stay together.
        select: metrics whose unweighted mean is the one number that selects.
        grid: ids of the patterns that belong to the search space; the others may be chosen explicitly.
        positive: the label that `f1_binary` counts.
        cls: what a plain classifier reads, a template without mask (`‖` between two texts); None: method=cls can't run.
    """

    name: str
    labels: tuple[str, ...]
    fields: Mapping[str, str]
    label_column: str
    label_values: Mapping[str, str]
    id: str | None
    unit: str
    metrics: tuple[str, ...]
    select: tuple[str, ...]
    positive: str | None
    max_length: int
    source: Source
    patterns: Mapping[int, Pattern]
    grid: tuple[int, ...]
    cls: Pattern | None = None

    def pattern(self, pattern_id: int) -> Pattern:
        """The pattern of that id; ConfigError names the ids there are."""
        if pattern_id not in self.patterns:
            raise ConfigError(
                f"pattern {pattern_id!r}: task '{self.name}' has none of that id; "
                f"{choices(pattern_id, sorted(self.patterns))}"
            )
        return self.patterns[pattern_id]

    def label_id(self, label: str) -> int:
        """Index of a label name; the same in every split whatever labels occur there."""
        return self.labels.index(label)


def raw_key(value: object) -> str:
    """How a raw label value is looked up: JSON and YAML booleans as ``true``/``false``, all else as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def task_from_config(cfg: Mapping[str, Any]) -> Task:
    """Check the `task` part of a configuration and return it as a Task.

    Raises:
        ConfigError: naming the key, what is there, and what was expected.
    """
    _known_keys(cfg, KEYS, "task")
    name = _text(cfg.get("name"), "task.name")
    labels = _names(cfg.get("labels"), "task.labels")
    if len(labels) < 2:
        raise ConfigError(f"task.labels: {list(labels)} has fewer than two labels")
    fields = {
        _text(k, "task.fields"): _text(v, f"task.fields.{k}")
        for k, v in _mapping(cfg.get("fields"), "task.fields").items()
    }
    column, values = _label(cfg.get("label", "label"), labels)
    metrics = _metrics(cfg.get("metrics"), "task.metrics", METRICS)
    select = _metrics(cfg.get("select", list(metrics)), "task.select", metrics)
    positive = cfg.get("positive")
    if positive is not None and positive not in labels:
        raise ConfigError(f"task.positive: {positive!r} is no label; {choices(positive, labels)}")
    if "f1_binary" in metrics:
        if len(labels) != 2:
            raise ConfigError(
                f"task.metrics: f1_binary needs two labels, task '{name}' has {len(labels)} "
                f"({', '.join(labels)}); use macro_f1"
            )
        if positive is None:
            raise ConfigError(f"task.positive: f1_binary needs the label it counts; {choices('', labels)}")
    length = cfg.get("max_length")
    if not isinstance(length, int) or isinstance(length, bool) or length < 8:
        raise ConfigError(f"task.max_length: {length!r} is no whole number of at least 8 (tokens)")
    patterns = _patterns(cfg.get("patterns"), labels, fields)
    grid = cfg.get("grid", sorted(patterns))
    if not isinstance(grid, (list, tuple)) or not grid:
        raise ConfigError(f"task.grid: {grid!r} is no list of pattern ids")
    for one in grid:
        if one not in patterns or isinstance(one, bool):
            raise ConfigError(f"task.grid: no pattern {one!r}; {choices(one, sorted(patterns))}")
    if len(set(grid)) != len(grid):
        raise ConfigError(f"task.grid: {list(grid)} names a pattern twice")
    row_id = cfg.get("id")
    return Task(
        name=name,
        labels=labels,
        fields=MappingProxyType(fields),
        label_column=column,
        label_values=MappingProxyType(values),
        id=None if row_id is None else _text(row_id, "task.id"),
        unit=_text(cfg.get("unit", "{id}"), "task.unit"),
        metrics=metrics,
        select=select,
        positive=positive,
        max_length=length,
        source=_source(cfg.get("source"), labels),
        patterns=MappingProxyType(patterns),
        grid=tuple(grid),
        cls=_cls(cfg.get("cls"), fields),
    )


def _cls(cfg: Any, fields: Mapping[str, str]) -> Pattern | None:
    if cfg is None:
        return None
    template = _text(cfg, "task.cls")
    _check_template(template + " [MASK]", fields, "task.cls")
    if "[MASK" in template:
        raise ConfigError(f"task.cls: {template!r} has a mask; a classifier reads the plain input, take the mask out")
    return Pattern(CLS_ID, template, MappingProxyType({}))


def _label(cfg: Any, labels: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    if not isinstance(cfg, Mapping):
        return _text(cfg, "task.label"), {}
    _known_keys(cfg, ["column", "values"], "task.label")
    values: dict[str, str] = {}
    for raw, label in _mapping(cfg.get("values", {}), "task.label.values", empty=True).items():
        if label not in labels:
            raise ConfigError(f"task.label.values.{raw_key(raw)}: {label!r} is no label; {choices(label, labels)}")
        values[raw_key(raw)] = label
    return _text(cfg.get("column", "label"), "task.label.column"), values


def _patterns(cfg: Any, labels: tuple[str, ...], fields: Mapping[str, str]) -> dict[int, Pattern]:
    found: dict[int, Pattern] = {}
    for key, one in _mapping(cfg, "task.patterns").items():
        if isinstance(key, bool) or not re.fullmatch(r"\d+", str(key)):
            raise ConfigError(f"task.patterns.{key}: a pattern id is a whole number such as 0")
        where = f"task.patterns.{key}"
        _known_keys(_mapping(one, where), ["template", "verbalizer"], where)
        template = _text(one.get("template"), f"{where}.template")
        _check_template(template, fields, f"{where}.template")
        words = _verbalizer(one.get("verbalizer"), labels, f"{where}.verbalizer")
        found[int(key)] = Pattern(int(key), template, MappingProxyType(words))
    return found


def _check_template(template: str, fields: Mapping[str, str], where: str) -> None:
    # Only names and masks: the grammar itself belongs to prompts.template, which stands above this room.
    plain = template.replace("{{", "").replace("}}", "")
    for name in re.findall(r"\{\s*([^{}|~]*?)\s*[|~}]", plain):
        if name not in fields:
            raise ConfigError(f"{where}: unknown field {{{name}}}; {choices(name, fields)}")
    if "[MASK]" not in plain and "[MASK*]" not in plain:
        raise ConfigError(f"{where}: {template!r} has no [MASK], so no label word could be read")


def _verbalizer(cfg: Any, labels: tuple[str, ...], where: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"{where}: {cfg!r} is no mapping of labels to words, e.g. {{{labels[0]}: [good]}}")
    for label in cfg:
        if label not in labels:
            raise ConfigError(f"{where}: unknown label {label!r}; {choices(label, labels)}")
    owner: dict[str, str] = {}
    result: dict[str, tuple[str, ...]] = {}
    for label in labels:
        if label not in cfg:
            raise ConfigError(f"{where}: no words for label '{label}'; every label needs at least one")
        words = cfg[label]
        words = [words] if isinstance(words, str) else words
        if not isinstance(words, (list, tuple)) or not words:
            raise ConfigError(f"{where}.{label}: {words!r} is empty or no list of words")
        for word in words:
            if not isinstance(word, str):
                raise ConfigError(
                    f"{where}.{label}: {word!r} is no text; YAML reads bare Yes and 2 as other types, "
                    "so put the word in quotes"
                )
            if not word.strip() or word != word.strip():
                raise ConfigError(f"{where}.{label}: {word!r} is blank or has white space around it")
            if word in owner:
                raise ConfigError(
                    f"{where}: '{word}' stands for both '{owner[word]}' and '{label}'"
                    if owner[word] != label
                    else f"{where}.{label}: '{word}' is there twice"
                )
            owner[word] = label
        result[label] = tuple(words)
    return result


def _source(cfg: Any, labels: tuple[str, ...]) -> Source:
    cfg = _mapping(cfg, "task.source")
    _known_keys(cfg, ["files", "packaged", "hub", "counts"], "task.source")
    files = dict(_mapping(cfg.get("files") or {}, "task.source.files", empty=True))
    _known_keys(files, SETS, "task.source.files")
    hub = None
    if cfg.get("hub") is not None:
        where = "task.source.hub"
        raw = _mapping(cfg["hub"], where)
        _known_keys(raw, ["path", "name", "revision", "splits", "label_names", "counts"], where)
        splits = dict(_mapping(raw.get("splits"), f"{where}.splits"))
        _known_keys(splits, SETS, f"{where}.splits")
        names = raw.get("label_names")
        hub = Hub(
            path=_text(raw.get("path"), f"{where}.path"),
            name=raw.get("name"),
            revision=_text(raw.get("revision"), f"{where}.revision"),
            splits=MappingProxyType(splits),
            label_names=None if names is None else _names(names, f"{where}.label_names"),
            counts=_counts(raw.get("counts"), labels, f"{where}.counts"),
        )
    packaged = cfg.get("packaged")
    if not files and packaged is None and hub is None:
        raise ConfigError("task.source: none of files, packaged and hub is set, so there are no rows")
    return Source(MappingProxyType(files), packaged, hub, _counts(cfg.get("counts"), labels, "task.source.counts"))


def _counts(cfg: Any, labels: tuple[str, ...], where: str) -> Mapping[str, Mapping[str, int]]:
    counts = _mapping(cfg or {}, where, empty=True)
    _known_keys(counts, SETS, where)
    for name, per_label in counts.items():
        _known_keys(_mapping(per_label, f"{where}.{name}"), labels, f"{where}.{name}")
    return MappingProxyType({k: dict(v) for k, v in counts.items()})


def _metrics(cfg: Any, where: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = _names(cfg, where)
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: unknown metric '{name}'; {choices(name, known)}")
    return names


def _known_keys(cfg: Mapping[Any, Any], known: Any, where: str) -> None:
    for key in cfg:
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'; {choices(key, known)}")


def _mapping(value: Any, where: str, empty: bool = False) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) or not (value or empty):
        raise ConfigError(f"{where}: {value!r} is no mapping with at least one entry")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {value!r} is no text (put it in quotes if YAML reads it as something else)")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ConfigError(f"{where}: {value!r} is no list with at least one name")
    names = tuple(_text(v, where) for v in value)
    if len(set(names)) != len(names):
        raise ConfigError(f"{where}: {list(names)} names one twice")
    return names
