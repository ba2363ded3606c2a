"""The template language: a plain string in a task's YAML, parsed into parts.

``{field}`` inserts a field, ``{field~}`` one that may be shortened, ``{field|nopunct|lcfirst~}`` a filtered
one; ``[MASK]`` is one mask, ``[MASK*]`` as many as the longest answer needs, ``[P3]`` three trainable slots,
``‖`` (or ``[SEP]``) the boundary of sequence A and B. White space is literal, except at a sequence's ends.
``{{`` and ``}}`` are literal braces.
(Spec, section 4.1; its part boundary is written as one space here.)
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fewnlu.errors import ConfigError, choices


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text, white space as written."""

    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """A text field of the row."""

    name: str
    filters: tuple[str, ...] = ()
    shorten: bool = False

    def render(self, fields: Mapping[str, str]) -> str:
        """The field's text after its filters, left to right."""
        value = fields[self.name]
        for name in self.filters:
            value = FILTERS[name](value)
        return value


@dataclass(frozen=True, slots=True)
class Mask:
    """`[MASK]`, or `[MASK*]`: as many masks as the longest answer needs."""

    multi: bool = False


@dataclass(frozen=True, slots=True)
class Slots:
    """`[P3]`: trainable slots."""

    n: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """`‖` or `[SEP]`: where sequence A ends and B begins."""

    pass


Part = Text | Field | Mask | Slots | Boundary


def _nopunct(text: str) -> str:
    return text.rstrip(string.punctuation + string.whitespace)


def _lcfirst(text: str) -> str:
    return text[:1].lower() + text[1:]


FILTERS: Mapping[str, Callable[[str], str]] = {"nopunct": _nopunct, "lcfirst": _lcfirst}

_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|\[MASK\*?\]|\[P\d+\]|\[SEP\]|‖|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template; `where` is the key that errors name."""

    source: str
    parts: tuple[Part, ...]
    where: str

    @property
    def n_masks(self) -> int:
        """Declared masks; a ``[MASK*]`` counts as one."""
        return sum(isinstance(p, Mask) for p in self.parts)

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(p for p in self.parts if isinstance(p, Field))

    @property
    def first_mask(self) -> int:
        """Index of the first mask in `parts`."""
        return next(i for i, p in enumerate(self.parts) if isinstance(p, Mask))


def parse(
    source: str, where: str = "template", fields: Iterable[str] | None = None, need_mask: bool = True
) -> Template:
    """Parse a template.

    Args:
        where: key named by errors, e.g. ``task.patterns.3.template``.
        fields: known field names, checked if given.
        need_mask: refuse a template without a mask.

    Raises:
        ConfigError: lone brace, unknown field or filter, second boundary, no mask.
    """
    parts: list[Part] = []
    at = 0
    for match in _TOKEN.finditer(source):
        _add_text(parts, source[at : match.start()])
        token, at = match.group(), match.end()
        if token in ("{{", "}}"):
            _add_text(parts, token[0])
        elif token in ("{", "}"):
            raise ConfigError(
                f"{where}: lone '{token}' at character {match.start()} of {source!r}; write "
                f"'{token * 2}' for a literal brace"
            )
        elif token[0] == "{":
            parts.append(_field(token, where, None if fields is None else list(fields)))
        elif token.startswith("[MASK"):
            parts.append(Mask(multi="*" in token))
        elif token.startswith("[P"):
            if int(token[2:-1]) < 1:
                raise ConfigError(f"{where}: {token} has no slots; write [P1] or more")
            parts.append(Slots(int(token[2:-1])))
        else:
            parts.append(Boundary())
    _add_text(parts, source[at:])
    parts = _strip_boundary(parts)
    if sum(isinstance(p, Boundary) for p in parts) > 1:
        raise ConfigError(f"{where}: {source!r} has a second boundary ‖; a model reads at most two sequences")
    if need_mask and not any(isinstance(p, Mask) for p in parts):
        raise ConfigError(f"{where}: {source!r} has no [MASK], so no label word could be read")
    return Template(source, tuple(parts), where)


def causal_obstacle(template: Template | str) -> str:
    """Why a causal model cannot use the template; empty if it can.

    A causal model reads only what precedes the mask: a field behind it would be lost silently.
    """
    template = parse(template) if isinstance(template, str) else template
    before, after = template.parts[: template.first_mask], template.parts[template.first_mask + 1 :]
    lost = [p.name for p in after if isinstance(p, Field)]
    if lost:
        return f"{{{lost[0]}}} stands after the mask, where a causal model cannot read it"
    if any(isinstance(p, Mask) for p in after):
        return "it has more than one mask"
    if not any(isinstance(p, Field) for p in before):
        return "no field stands before the mask"
    return ""


def usable_by_causal(template: Template | str) -> bool:
    """Whether a causal model sees every field of the template before its mask."""
    return not causal_obstacle(template)


def _field(token: str, where: str, known: list[str] | None) -> Field:
    body = token[1:-1].strip()
    shorten = body.endswith("~")
    name, *filters = (p.strip() for p in body.removesuffix("~").split("|"))
    if not name or (known is not None and name not in known):
        raise ConfigError(f"{where}: unknown field {{{name}}}; {choices(name, known or [])}")
    for one in filters:
        if one not in FILTERS:
            raise ConfigError(f"{where}: unknown filter '{one}' in {token}; {choices(one, FILTERS)}")
    return Field(name, tuple(filters), shorten)


def _add_text(parts: list[Part], text: str) -> None:
    if text and parts and isinstance(parts[-1], Text):
        parts[-1] = Text(parts[-1].text + text)
    elif text:
        parts.append(Text(text))


def _strip_boundary(parts: list[Part]) -> list[Part]:
    result: list[Part] = []
    for i, part in enumerate(parts):
        if isinstance(part, Text):
            text = part.text
            if i == 0 or isinstance(parts[i - 1], Boundary):
                text = text.lstrip()
            if i + 1 == len(parts) or isinstance(parts[i + 1], Boundary):
                text = text.rstrip()
            if text:
                result.append(Text(text))
        else:
            result.append(part)
    return result
