"""Tasks that are asked in words and answered by one of a few given answers (`kind: choice`): the Dutch benchmark.

A row offers the task's labels, or (`options`) its own texts under the labels that have one: a row with three options
has three answers, never a fourth. Nothing in the YAML is instantiated; every error names the key or the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from fewnlu.errors import ConfigError, DataError, choices
from fewnlu.tasks.drawing import limit
from fewnlu.tasks.readers import raw_rows
from fewnlu.tasks.sources import RowSet
from fewnlu.tasks.task import Row, Source, Task, raw_key, read_source
from fewnlu.tasks.values import known_keys, mapping, names, text

KIND = "choice"
KEYS = (
    *("name", "kind", "description", "licence", "labels", "words", "fields", "options", "label", "id", "shorten"),
    *("prompt", "prompt_texts", "stub", "metrics", "select", "max_length", "source"),
)
METRICS = ("accuracy", "weighted_f1", "macro_f1", "mcc")
SPECIAL = ("labels", "options")  # what a prompt may name beside its fields


@dataclass(frozen=True, slots=True)
class ChoiceTask:
    """A checked task.

    Attributes:
        labels: answers in the order in which they are named in the prompt; score columns follow it.
        words: label -> what the model writes for it and reads in demonstrations; the label itself where left out.
        fields: name in the prompt -> column of the data.
        options: label -> column of the row's own answer text; empty where rows offer the labels themselves.
        prompt: what is asked; ``{labels}`` names the row's answers, ``{options}`` lists them with their letters.
        prompt_texts: the same where the option's text is the answer (decode.choices=texts); None: not offered.
        stub: lead-in that models without a chat template get behind the prompt.
        shorten: the field that is cut where a prompt is too long; None: such a prompt is refused.
        max_length: most tokens of a prompt.
    """

    name: str
    labels: tuple[str, ...]
    words: Mapping[str, str]
    fields: Mapping[str, str]
    options: Mapping[str, str]
    label_column: str
    label_values: Mapping[str, str]
    id: str | None
    prompt: str
    prompt_texts: str | None
    stub: str
    shorten: str | None
    metrics: tuple[str, ...]
    select: tuple[str, ...]
    max_length: int
    source: Source
    positive: None = None
    several: bool = False  # as in `Task`: nothing is read at masks

    def label_id(self, label: str) -> int:
        """Index of a label."""
        return self.labels.index(label)

    def gold(self, row: Row) -> int:
        """Score column of a row's label."""
        return self.label_id(str(row.label))

    def offered(self, row: Row) -> tuple[str, ...]:
        """Labels that the row offers."""
        own = row.meta.get("options")
        return self.labels if own is None else tuple(own)


def is_choice(cfg: Mapping[str, Any]) -> bool:
    """Whether the `task` part of a configuration is of this kind."""
    return cfg.get("kind") == KIND


def choice_from_config(cfg: Mapping[str, Any]) -> ChoiceTask:
    """Check the `task` part of a configuration.

    Raises:
        ConfigError: naming the key, what is there, and what was expected.
    """
    known_keys(cfg, KEYS, "task")
    labels = names(cfg.get("labels"), "task.labels")
    if len(labels) < 2:
        raise ConfigError(f"task.labels: {list(labels)} has fewer than two labels")
    fields = _columns(cfg.get("fields"), "task.fields")
    for name in SPECIAL:
        if name in fields:
            raise ConfigError(f"task.fields: '{name}' stands for the answers in a prompt; name the field otherwise")
    options = _columns(cfg.get("options") or {}, "task.options", empty=True)
    known_keys(options, labels, "task.options")
    words = _columns(cfg.get("words") or {}, "task.words", empty=True)
    known_keys(words, labels, "task.words")
    shown = [words.get(label, label) for label in labels]
    if len(set(shown)) < len(shown):
        raise ConfigError(f"task.words: {shown} names one answer twice")
    column, values = _label(cfg.get("label", "label"), labels)
    prompt = _template(cfg.get("prompt"), "task.prompt", fields, bool(options))
    texts = cfg.get("prompt_texts")
    if texts is not None:
        texts = _template(texts, "task.prompt_texts", fields, bool(options))
    if texts is not None and not options:
        raise ConfigError("task.prompt_texts: this task has no options whose texts could be the answers")
    stub = cfg.get("stub") or ""
    if stub:
        _template(stub, "task.stub", fields, False)
    shorten = cfg.get("shorten")
    if shorten is not None and shorten not in fields:
        raise ConfigError(f"task.shorten: {shorten!r} is no field; {choices(shorten, fields)}")
    metrics = names(cfg.get("metrics", list(METRICS)), "task.metrics")
    known_keys(dict.fromkeys(metrics), METRICS, "task.metrics")
    select = names(cfg.get("select", [metrics[0]]), "task.select")
    known_keys(dict.fromkeys(select), metrics, "task.select")
    length = cfg.get("max_length")
    if not isinstance(length, int) or isinstance(length, bool) or length < 8:
        raise ConfigError(f"task.max_length: {length!r} is no whole number of at least 8 (tokens)")
    row_id = cfg.get("id")
    return ChoiceTask(
        name=text(cfg.get("name"), "task.name"),
        labels=labels,
        words=MappingProxyType(words),
        fields=MappingProxyType(fields),
        options=MappingProxyType(options),
        label_column=column,
        label_values=MappingProxyType(values),
        id=None if row_id is None else text(row_id, "task.id"),
        prompt=prompt,
        prompt_texts=texts,
        stub=stub,
        shorten=shorten,
        metrics=metrics,
        select=select,
        max_length=length,
        source=read_source(cfg.get("source"), labels),
    )


def load_choice_rows(task: ChoiceTask, data: Mapping[str, Any], which: str) -> RowSet | None:
    """One set of rows in source order; None where the task has no such set. ``test`` honours `data.limit_test`.

    Raises:
        DataError: a row that can't be used; names file and line.
    """
    found = raw_rows(cast(Task, task), data, which)
    if found is None:
        return None
    raw, origin, expected = found
    rows: list[Row] = []
    places: dict[str, str] = {}
    for place, number, item in raw:
        row = _row(task, item, place, number)
        if row.id in places:
            raise DataError(f"{place}: id {row.id!r} is there already ({places[row.id]}); ids must be unique")
        places[row.id] = place
        rows.append(row)
    if not rows:
        raise DataError(f"{origin}: no rows; expected one JSON object a line")
    if expected and len(rows) != sum(expected.values()):
        raise DataError(f"{origin}: {len(rows)} rows, expected {sum(expected.values())}; other rows are another task")
    notes = []
    if task.options:
        sizes = [len(task.offered(row)) for row in rows]
        fewer = sum(n < len(task.labels) for n in sizes)
        if fewer:
            notes.append(f"{which}: {fewer} rows offer fewer than {len(task.labels)} options")
    kept = limit(rows, data.get("limit_test")) if which == "test" else rows
    return RowSet.of(kept, origin, notes)


def _row(task: ChoiceTask, item: Mapping[str, Any], place: str, number: int) -> Row:
    fields = {}
    for name, column in task.fields.items():
        value = item.get(column)
        if not isinstance(value, str) or not value.strip():
            what = "is missing" if value is None else f"is {value!r}, not text"
            raise DataError(f"{place}: field '{column}' {what}; it has {', '.join(map(str, item))}")
        fields[name] = value
    meta: dict[str, Any] = {}
    if task.options:
        own = {label: item.get(column) for label, column in task.options.items()}
        meta["options"] = {label: str(value) for label, value in own.items() if value is not None and str(value) != ""}
        if len(meta["options"]) < 2:
            raise DataError(f"{place}: {len(meta['options'])} options, expected two or more ({', '.join(own)})")
    value = item.get(task.label_column)
    if value is None:
        raise DataError(f"{place}: label '{task.label_column}' is missing; {choices('', task.labels)}")
    key = raw_key(value)
    label = task.label_values.get(key, key)
    offered = tuple(meta["options"]) if task.options else task.labels
    if label not in offered:
        raise DataError(f"{place}: label {value!r} is none of the row's answers; {choices(key, offered)}")
    if task.options:  # so that a row set's hash holds them
        meta |= {"candidates": tuple(meta["options"].values()), "answers": (meta["options"][label],)}
    row_id = str(number) if task.id is None or item.get(task.id) is None else str(item[task.id])
    return Row(row_id, fields, label, row_id, meta)


def _columns(cfg: Any, where: str, empty: bool = False) -> dict[str, str]:
    return {text(k, where): text(v, f"{where}.{k}") for k, v in mapping(cfg, where, empty=empty).items()}


def _label(cfg: Any, labels: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    if not isinstance(cfg, Mapping):
        return text(cfg, "task.label"), {}
    known_keys(cfg, ["column", "values"], "task.label")
    values = {}
    for raw, label in mapping(cfg.get("values") or {}, "task.label.values", empty=True).items():
        if label not in labels:
            raise ConfigError(f"task.label.values.{raw_key(raw)}: {label!r} is no label; {choices(label, labels)}")
        values[raw_key(raw)] = label
    return text(cfg.get("column", "label"), "task.label.column"), values


PLACE = re.compile(r"\{(\w+)\}")


def _template(value: Any, where: str, fields: Mapping[str, str], options: bool) -> str:
    template = text(value, where)
    known = (*fields, "labels", *(["options"] if options else []))
    for name in PLACE.findall(template):
        if name not in known:
            raise ConfigError(f"{where}: unknown field {{{name}}}; {choices(name, known)}")
    return template
