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
from fewnlu.tasks.layouts import LAYOUTS
from fewnlu.tasks.patterns import CANDIDATES, Pattern, check_names, read_patterns
from fewnlu.tasks.values import known_keys as _known_keys
from fewnlu.tasks.values import mapping as _mapping
from fewnlu.tasks.values import names as _names
from fewnlu.tasks.values import text as _text

SETS = ("labeled", "test", "unlabeled")
KEYS = (
    *("name", "description", "licence", "labels", "layout", "fields", "label", "id", "unit", "group"),
    *("metrics", "select", "positive", "max_length", "source", "grid", "patterns", "ptuning", "cls"),
)
CLS_ID = -1  # id of the pseudo-pattern that a plain classifier reads
CLASS_METRICS = ("accuracy", "macro_f1", "weighted_f1", "f1_binary", "mcc", "f1a")  # read off a confusion matrix
METRICS = (*CLASS_METRICS, "em", "answer_em", "answer_f1")
OF_CANDIDATES = ("accuracy", "answer_em", "answer_f1")  # what can be said where each row has its own candidates


@dataclass(frozen=True, slots=True)
class Row:
    """One example. A split never separates rows of equal `unit`; `label` is None where it is unknown.

    `meta` may hold ``group`` (rows that a metric scores together), ``candidates`` and ``right`` (the row's own answers
    and the indices of the right ones), ``answers`` (all gold texts), ``copy`` (made from another row).
    """

    id: str
    fields: Mapping[str, str]
    label: str | None
    unit: str
    meta: Mapping[str, Any] = field(default_factory=dict)


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
        labels: class names in index order; every score column and class id follows this order. Empty where each
            row brings its own candidates.
        layout: how an item of the file becomes rows (`fewnlu.tasks.layouts`).
        fields: template field -> column of the data.
        label_values: raw value as written by `raw_key` -> label; empty where the data holds label names.
        id: column of the row id (dotted for nested values) or a template over columns; None: the line number.
        unit: template over "id", fields and columns; rows with equal units stay together. ``{field|text}`` stands for
            the words of a field, whatever their case, punctuation and spacing.
        group: template of what a metric scores together (MultiRC's exact match: passage and question).
        select: metrics whose unweighted mean is the one number that selects.
        grid: ids of the patterns that belong to the search space; the others may be chosen explicitly.
        positive: the label that `f1_binary` and `f1a` count, and that says a span is meant.
        ptuning: templates with trainable slots, by their number of slots.
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
    layout: str | None = None
    group: str | None = None
    ptuning: Mapping[int, Pattern] = field(default_factory=dict)

    @property
    def several(self) -> bool:
        """Whether any pattern reads more than one mask, so that the `reading` settings matter."""
        return any(p.answer != "words" for p in self.patterns.values())

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

    def gold(self, row: Row) -> int:
        """Score column of a row's label, -1 where it has none (no label, or no candidate is right)."""
        if row.label is None:
            return -1
        return self.label_id(row.label) if self.labels else row.meta["right"][0]

    def column_names(self, row: Row) -> tuple[str, ...]:
        """What the score columns of a row stand for: the labels, or the row's candidates."""
        return self.labels or tuple(row.meta["candidates"])


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
    own = cfg.get("labels") == CANDIDATES
    labels = () if own else _names(cfg.get("labels"), "task.labels")
    if len(labels) < 2 and not own:
        raise ConfigError(f"task.labels: {list(labels)} has fewer than two labels")
    fields = {
        _text(k, "task.fields"): _text(v, f"task.fields.{k}")
        for k, v in _mapping(cfg.get("fields"), "task.fields").items()
    }
    column, values = _label(cfg.get("label", "label"), labels)
    layout = cfg.get("layout")
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"task.layout: unknown layout {layout!r}; {choices(layout, LAYOUTS)}")
    metrics = _metrics(cfg.get("metrics"), "task.metrics", METRICS)
    group = None if cfg.get("group") is None else _key(cfg["group"], "task.group")
    _check_metrics(name, metrics, labels, group)
    select = _metrics(cfg.get("select", list(metrics)), "task.select", metrics)
    positive = cfg.get("positive")
    if positive is not None and positive not in labels:
        raise ConfigError(f"task.positive: {positive!r} is no label; {choices(positive, labels)}")
    for metric in ("f1_binary", "f1a"):
        if metric in metrics and positive is None:
            raise ConfigError(f"task.positive: {metric} needs the label it counts; {choices('', labels)}")
    length = cfg.get("max_length")
    if not isinstance(length, int) or isinstance(length, bool) or length < 8:
        raise ConfigError(f"task.max_length: {length!r} is no whole number of at least 8 (tokens)")
    patterns = read_patterns(cfg.get("patterns"), labels, fields)
    slots = cfg.get("ptuning")
    ptuning = {} if slots is None else read_patterns(slots, labels, fields, "task.ptuning", slots=True)
    if any(p.span for p in (*patterns.values(), *ptuning.values())) and (len(labels) != 2 or positive is None):
        raise ConfigError(
            "task.positive: patterns with a span need two labels and the one of them that says the span is meant; "
            f"{choices('', labels)}"
        )
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
        unit=_key(cfg.get("unit", "{id}"), "task.unit"),
        metrics=metrics,
        select=select,
        positive=positive,
        max_length=length,
        source=read_source(cfg.get("source"), labels),
        patterns=patterns,
        grid=tuple(grid),
        cls=_cls(cfg.get("cls"), fields),
        layout=layout,
        group=group,
        ptuning=ptuning,
    )


def _check_metrics(name: str, metrics: tuple[str, ...], labels: tuple[str, ...], group: str | None) -> None:
    for metric in metrics:
        if not labels and metric not in OF_CANDIDATES:
            raise ConfigError(
                f"task.metrics: {metric} counts classes, but each row of task '{name}' has its own candidates; "
                f"{choices(metric, OF_CANDIDATES)}"
            )
        if labels and metric.startswith("answer_"):
            raise ConfigError(f"task.metrics: {metric} compares answer texts, which needs 'labels: candidates'")
        if metric in ("f1_binary", "f1a") and len(labels) != 2:
            raise ConfigError(
                f"task.metrics: {metric} needs two labels, task '{name}' has {len(labels)} "
                f"({', '.join(labels)}); use macro_f1"
            )
        if metric == "em" and group is None:
            raise ConfigError("task.group: em needs what counts as one question, e.g. '{idx}-{q}'")


def _key(cfg: Any, where: str) -> str:
    """A template of a row's key, such as '{idx}-{q}'."""
    template = _text(cfg, where)
    rest, places = re.subn(r"\{[^{}]+\}", "", template)
    if not places or "{" in rest or "}" in rest:
        raise ConfigError(
            f"{where}: {template!r} is no template; expected a field, column or id in braces, as in '{{id}}'"
        )
    return template


def _cls(cfg: Any, fields: Mapping[str, str]) -> Pattern | None:
    if cfg is None:
        return None
    template = _text(cfg, "task.cls")
    check_names(template, fields, "task.cls")
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


def read_source(cfg: Any, labels: tuple[str, ...]) -> Source:
    """The checked `task.source` part."""
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
        _known_keys(_mapping(per_label, f"{where}.{name}"), (*labels, "rows"), f"{where}.{name}")
    return MappingProxyType({k: dict(v) for k, v in counts.items()})


def _metrics(cfg: Any, where: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = _names(cfg, where)
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: unknown metric '{name}'; {choices(name, known)}")
    return names
