"""The patterns of a task file: a template and what is read at its masks.

Three kinds of answer (`Pattern.answer`): ``words`` fixed label words of one piece at one mask; ``choices`` texts of
any length, fixed or of the row (``{field}`` in a verbalizer, or ``verbalizer: candidates``), at ``[MASK*]``; ``span`` a
free text at ``[MASK*]`` that is compared with one of the row's fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fewnlu.errors import ConfigError, choices
from fewnlu.tasks.values import known_keys, mapping, text

KINDS = ("masked", "causal")
CANDIDATES = "candidates"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A template and its verbalizer (label -> one or more words); "PVP" in the literature.

    Attributes:
        verbalizer: words may hold ``{field}``; empty where the row brings its candidates or the answer is a span.
        span: template of the text that a free span is compared with; "" otherwise.
        kinds: models that the pattern is meant for.
        section: of the task file: ``patterns``, or ``ptuning`` for templates with trainable slots.
    """

    id: int
    template: str
    verbalizer: Mapping[str, tuple[str, ...]]
    span: str = ""
    kinds: tuple[str, ...] = KINDS
    section: str = "patterns"

    @property
    def where(self) -> str:
        """The key that the pattern stands under."""
        return f"task.{self.section}.{self.id}"

    @property
    def answer(self) -> str:
        """``words``, ``choices`` or ``span``; ``none`` for the plain input of a classifier."""
        if "[MASK" not in self.template:
            return "none"
        if self.span:
            return "span"
        return "choices" if "[MASK*]" in self.template or not self.verbalizer else "words"


def read_patterns(
    cfg: Any, labels: tuple[str, ...], fields: Mapping[str, str], where: str = "task.patterns", slots: bool = False
) -> Mapping[int, Pattern]:
    """Check the patterns of a task file.

    Args:
        labels: class names; empty where each row brings its candidates.
        slots: P-tuning's templates, which need trainable slots ``[P1]``; ordinary ones must not have any.

    Raises:
        ConfigError: naming the key.
    """
    found: dict[int, Pattern] = {}
    for key, one in mapping(cfg, where).items():
        if isinstance(key, bool) or not re.fullmatch(r"\d+", str(key)):
            raise ConfigError(f"{where}.{key}: a pattern id is a whole number such as 0")
        here = f"{where}.{key}"
        known_keys(mapping(one, here), ["template", "verbalizer", "span", "kinds"], here)
        template = text(one.get("template"), f"{here}.template")
        _check_template(template, fields, f"{here}.template", slots)
        kinds = tuple(one.get("kinds", KINDS))
        for kind in kinds:
            if kind not in KINDS:
                raise ConfigError(f"{here}.kinds: {kind!r} is no kind of model; {choices(kind, KINDS)}")
        words, span = _answer(one, template, labels, fields, here)
        section = where.removeprefix("task.")
        found[int(key)] = Pattern(int(key), template, MappingProxyType(words), span, kinds, section)
    return MappingProxyType(found)


def check_names(template: str, fields: Iterable[str], where: str) -> None:
    """Refuse unknown field names; the grammar itself belongs to prompts.template, which stands above this room."""
    plain = template.replace("{{", "").replace("}}", "")
    for name in re.findall(r"\{\s*([^{}|~]*?)\s*[|~}]", plain):
        if name not in fields:
            raise ConfigError(f"{where}: unknown field {{{name}}}; {choices(name, fields)}")


def _check_template(template: str, fields: Mapping[str, str], where: str, slots: bool) -> None:
    check_names(template, fields, where)
    if "[MASK]" not in template and "[MASK*]" not in template:
        raise ConfigError(f"{where}: {template!r} has no [MASK], so no label word could be read")
    if (n := len(re.findall(r"\[MASK\*?\]", template))) > 1:
        raise ConfigError(
            f"{where}: {template!r} has {n} masks, and one is read; write [MASK*] once where words have several pieces"
        )
    has_slots = re.search(r"\[P\d+\]", template) is not None
    if slots and not has_slots:
        raise ConfigError(f"{where}: {template!r} has no trainable slots; write [P1] or more where they go")
    if has_slots and not slots:
        raise ConfigError(f"{where}: {template!r} has trainable slots, for P-tuning: put it in task.ptuning")


def _answer(
    one: Mapping[str, Any], template: str, labels: tuple[str, ...], fields: Mapping[str, str], here: str
) -> tuple[dict[str, tuple[str, ...]], str]:
    several = "[MASK*]" in template
    if "span" in one:
        if "verbalizer" in one:
            raise ConfigError(f"{here}: span and verbalizer exclude each other; leave one out")
        span = text(one["span"], f"{here}.span")
        check_names(span, fields, f"{here}.span")
        if "{" not in span:
            raise ConfigError(f"{here}.span: {span!r} names no field; expected e.g. '{{candidate}}'")
        if not several:
            raise ConfigError(f"{here}.template: {template!r} needs [MASK*], since a span is of any length")
        return {}, span
    cfg = one.get("verbalizer")
    if not labels or cfg == CANDIDATES:
        if labels or cfg != CANDIDATES:
            raise ConfigError(
                f"{here}.verbalizer: {cfg!r}; 'verbalizer: candidates' goes with 'labels: candidates', and words with "
                "a list of labels"
            )
        if not several:
            raise ConfigError(f"{here}.template: {template!r} needs [MASK*], since candidates are of any length")
        return {}, ""
    words = _verbalizer(cfg, labels, f"{here}.verbalizer")
    for label, texts in words.items():
        for word in texts:
            check_names(word, fields, f"{here}.verbalizer.{label}")
            if "{" in word and not several:
                raise ConfigError(
                    f"{here}.template: {template!r} needs [MASK*], since '{word}' of label '{label}' is of any length"
                )
    return words, ""


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
