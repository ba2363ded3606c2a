"""A row as a question in words: the prompt's text, its allowed answers as they may follow it, and demonstrations.

Base models get the text and its lead-in, chat models one user turn in their own template. Which it is follows the
model and can be set. The answers carry whatever white space stands between prompt and answer, so that a prompt never
ends in a lone space (fault I037): a space that the text has moves to the answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fewnlu.errors import ConfigError, DataError
from fewnlu.prompts.template import Boundary, Field, Text, causal_obstacle, parse
from fewnlu.tasks.choice import PLACE, ChoiceTask
from fewnlu.tasks.sources import normalised
from fewnlu.tasks.task import Row, Task

FORMS = ("auto", "chat", "base")
ANSWERS = ("letters", "texts")
SPACES = ("auto", "none")


@dataclass(frozen=True, slots=True)
class Question:
    """One row, ready to be asked.

    Attributes:
        prompt: the whole text, template applied.
        choices: the answers exactly as they may follow it (`separator` included).
        labels: task label of each choice; several choices may stand for one label.
        gold: task label that is right.
        demonstrations: ids of the rows shown before.
        cut: characters of the shortenable field that were left out.
    """

    id: str
    prompt: str
    choices: tuple[str, ...]
    labels: tuple[str, ...]
    gold: str
    separator: str
    demonstrations: tuple[str, ...] = ()
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a row says and what may be answered, without form: `body`, lead-in, answers and their labels."""

    body: str
    stub: str
    answers: tuple[str, ...]
    labels: tuple[str, ...]
    answer: str  # the right one


class Wording(Protocol):
    """How the rows of a task are put into words."""

    shorten: str | None

    def ask(self, row: Row) -> Asked: ...


@dataclass(frozen=True)
class ChoiceWording:
    """Rows of a `ChoiceTask`.

    Args:
        answers: 'letters' (the task's labels) or 'texts' (the row's own option texts).
    """

    task: ChoiceTask
    answers: str = "letters"

    def __post_init__(self) -> None:
        if self.answers == "texts" and self.task.prompt_texts is None and self.task.options:
            raise ConfigError(f"decode.choices=texts: task '{self.task.name}' has no task.prompt_texts")

    @property
    def shorten(self) -> str | None:
        return self.task.shorten

    def ask(self, row: Row) -> Asked:
        task: ChoiceTask = self.task
        options: dict[str, str] | None = row.meta.get("options")
        labels = task.offered(row)
        words = tuple(task.words.get(label, label) for label in labels)
        right = str(row.label)
        values = dict(row.fields) | {"labels": listed(words)}
        if options is not None:
            mark = "- {1}" if self.answers == "texts" else "{0}. {1}"
            lines = [mark.format(word, options[label].strip()) for word, label in zip(words, labels, strict=True)]
            values["options"] = "\n".join(lines)
        if options is not None and self.answers == "texts":
            body = filled(task.prompt_texts or task.prompt, values)
            # Two options with the same text are one answer; it is right where either is.
            spelt: dict[str, str] = {}
            for label in labels:
                answer = options[label].strip()
                if answer not in spelt or label == right:
                    spelt[answer] = label
            return Asked(body, filled(task.stub, values), tuple(spelt), tuple(spelt.values()), options[right].strip())
        body = filled(task.prompt, values)
        return Asked(body, filled(task.stub, values), words, labels, task.words.get(right, right))


class PatternWording:
    """Rows of a task with patterns: the text before the mask, answered by the label words.

    Raises:
        ConfigError: a pattern that a causal model can't read, or whose answers are no words.
    """

    def __init__(self, task: Task, pattern_id: int) -> None:
        self.task, self.pattern = task, task.pattern(pattern_id)
        where = f"task.patterns.{pattern_id}.template"
        template = parse(self.pattern.template, where)
        if why := causal_obstacle(template):
            raise ConfigError(f"{where}: a causal model cannot use {self.pattern.template!r}: {why}")
        if not task.labels or getattr(self.pattern, "answer", "words") != "words":
            raise ConfigError(
                f"method=zeroshot: the answers of task '{task.name}', pattern {pattern_id}, are no fixed words"
            )
        self._parts = template.parts[: template.first_mask]
        cut = [p.name for p in self._parts if isinstance(p, Field) and p.shorten]
        self.shorten = cut[0] if cut else None

    def ask(self, row: Row) -> Asked:
        body = ""
        for part in self._parts:
            if isinstance(part, Text):
                body += part.text
            elif isinstance(part, Field):
                body += part.render(row.fields)
            elif isinstance(part, Boundary):
                body += " "
        pairs = [(word, label) for label in self.task.labels for word in self.pattern.verbalizer[label]]
        right = str(row.label)
        words, labels = zip(*pairs, strict=True)
        return Asked(body, "", words, labels, self.pattern.verbalizer[right][0])


@dataclass
class Asker:
    """Turns rows into questions for one model.

    Args:
        wording: of the task.
        template: (messages) -> text, the model's chat template ending in its generation prompt; None: the base form.
        leading_space: 'auto': white space between prompt and answer belongs to the answer; 'none': the prompt is left
            as it stands and answers follow without a space, as in the published benchmark.
        shots: demonstrations before each row.
        pool: rows that may be shown; never the row itself or one of equal text.
        seed: which of them are shown.
        length: (text) -> tokens; with `limit` says when the shortenable field is cut.
        limit: most tokens of a prompt.
    """

    wording: Wording
    template: Callable[[Sequence[Mapping[str, str]]], str] | None = None
    leading_space: str = "auto"
    shots: int = 0
    pool: Sequence[Row] = ()
    seed: int = 0
    length: Callable[[str], int] | None = None
    limit: int | None = None
    _order: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.shots and len(self.pool) <= self.shots:
            raise ConfigError(
                f"method.shots={self.shots}: there are {len(self.pool)} rows to show, and never the row itself"
            )
        # By a hash of seed and id: no random state, no order of reading, and n shots are among n + 1.
        self._order = sorted(self.pool, key=lambda row: hashlib.sha256(f"{self.seed}\x1f{row.id}".encode()).digest())
        self._texts = {id(row): normalised(row) for row in self._order} if self.shots else {}

    def demonstrations(self, row: Row) -> list[Row]:
        """The rows that are shown before this one."""
        own = normalised(row)
        found: list[Row] = []
        for other in self._order:
            if len(found) == self.shots:
                break
            if other.id != row.id and self._texts[id(other)] != own:
                found.append(other)
        if len(found) < self.shots:
            raise DataError(f"row {row.id}: only {len(found)} of {self.shots} demonstrations have another text")
        return found

    def ask(self, row: Row) -> Question:
        """The question of a row, shortened to the limit.

        Raises:
            DataError: a prompt that is too long and can't be shortened enough.
        """
        question = self._ask(row)
        if self.length is None or self.limit is None:
            return question
        # A token is at least a byte: where characters say that it fits, it needn't be tokenised.
        if 4 * len(question.prompt) <= self.limit or (over := self.length(question.prompt) - self.limit) <= 0:
            return question
        name = self.wording.shorten
        if name is None:
            raise DataError(
                f"row {row.id}: its prompt has {over + self.limit} tokens, the limit is {self.limit}, and the task "
                "names no field to shorten (task.shorten)"
            )
        whole = row.fields[name]
        kept = whole
        while over > 0 and kept:
            tokens = max(1, self.length(kept))
            kept = (
                kept[: min(len(kept) - 1, int(len(kept) * (1 - (over + 1) / tokens)))].rstrip() if over < tokens else ""
            )
            question = self._ask(replace(row, fields={**row.fields, name: kept}), row)
            over = self.length(question.prompt) - self.limit
        if over > 0:
            raise DataError(f"row {row.id}: its prompt is {over} tokens too long even without '{name}'")
        return replace(question, cut=len(whole) - len(kept))

    def _ask(self, row: Row, original: Row | None = None) -> Question:
        asked = self.wording.ask(row)
        shown = self.demonstrations(original or row) if self.shots else []
        examples = [self.wording.ask(one) for one in shown]
        if self.template is not None:
            messages: list[dict[str, str]] = []
            for one in examples:
                messages += [{"role": "user", "content": one.body}, {"role": "assistant", "content": one.answer}]
            prompt = self.template([*messages, {"role": "user", "content": asked.body}])
        else:
            before = "".join(f"{_joined(one.body + one.stub, one.answer)}\n\n" for one in examples)
            prompt = before + asked.body + asked.stub
        prompt, separator = parted(prompt) if self.leading_space == "auto" else (prompt, "")
        return Question(
            id=row.id,
            prompt=prompt,
            choices=tuple(separator + a for a in asked.answers),
            labels=asked.labels,
            gold=str(row.label),
            separator=separator,
            demonstrations=tuple(one.id for one in shown),
        )


def chat_template(tokenizer: Any, form: str) -> Callable[[Sequence[Mapping[str, str]]], str] | None:
    """The tokenizer's chat template as a function, or None for the base form.

    Args:
        form: 'auto' (chat where the tokenizer has a template), 'chat' or 'base'.

    Raises:
        ConfigError: the chat form of a tokenizer without a template.
    """
    has = bool(getattr(tokenizer, "chat_template", None))
    if form == "base" or (form == "auto" and not has):
        return None
    if not has:
        raise ConfigError("method.form=chat: this model's tokenizer has no chat template; use method.form=base")
    return lambda messages: str(
        tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    )


def parted(prompt: str) -> tuple[str, str]:
    """The prompt without its trailing spaces, and what separates it from its answer.

    A prompt that ends in a line break is followed at once, all others by one space: ('it was ', 'great') and
    ('it was', ' great') are one and the same question (fault I037).
    """
    bare = prompt.rstrip(" ")
    return bare, "" if not bare or bare.endswith(("\n", "\t")) else " "


def listed(words: Sequence[str]) -> str:
    """'A', 'B' of 'C'."""
    quoted = [f"'{w}'" for w in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} of {quoted[-1]}"


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its ``{places}`` filled; what fills them is text, whatever braces it has."""
    return PLACE.sub(lambda match: values[match[1]], template)


def _joined(prompt: str, answer: str) -> str:
    bare, separator = parted(prompt)
    return bare + separator + answer
