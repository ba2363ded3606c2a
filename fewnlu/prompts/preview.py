"""A row as a pattern turns it into tokens, for reading by people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fewnlu.errors import FewnluError
from fewnlu.prompts.encoding import Encoded
from fewnlu.prompts.readers import Reading, reader_for
from fewnlu.prompts.template import parse, usable_by_causal
from fewnlu.tasks.task import Pattern, Row, Task

ENDLESS = 1_000_000


@dataclass(frozen=True)
class Preview:
    """A row under a pattern.

    Attributes:
        text: tokens joined by one space, runs of masks as [MASK]×3, trainable slots as [P1], [P2], …
        answers: what is read: "label <- words" or the candidates, the gold one marked with *.
        tokens: number of tokens; `cut` the text that was cut to fit.
    """

    text: str
    answers: tuple[str, ...]
    tokens: int
    cut: str

    def lines(self, max_length: int) -> list[str]:
        """As text."""
        head = f"{self.tokens} of {max_length} tokens"
        out = [f"  {self.text}", *(f"    {answer}" for answer in self.answers)]
        return [*out, f"    ({head}{f'; cut: {self.cut}' if self.cut else ''})"]


def preview(tokenizer: Any, kind: str, task: Task, pattern: Pattern, row: Row, labeled: Sequence[Row]) -> Preview:
    """Render one row.

    Args:
        labeled: rows among which the longest span decides the number of masks.

    Raises:
        ConfigError, DataError: the model cannot read this pattern or row.
    """
    import dataclasses

    def encoded(length: int) -> Encoded:
        reader = reader_for(tokenizer, kind, pattern, dataclasses.replace(task, max_length=length), Reading(), labeled)
        return reader.encode([row])[0]

    own, whole = encoded(task.max_length), encoded(ENDLESS)
    cut: list[str] = []
    if own.shortened:
        a, b = whole.input_ids, own.input_ids
        match = difflib.SequenceMatcher(None, a, b, autojunk=False)
        cut = [
            tokenizer.decode([t for t in a[i:j] if t >= 0]).strip()
            for tag, i, j, _, _ in match.get_opcodes()
            if tag in ("delete", "replace")
        ]
    return Preview(
        _shown(tokenizer, own), _answers(tokenizer, task, pattern, row, own), len(own.input_ids), " … ".join(cut)
    )


def _shown(tokenizer: Any, row: Encoded) -> str:
    names = [f"[P{-i}]" if i < 0 else tokenizer.convert_ids_to_tokens(i) for i in row.input_ids]
    if not row.read or row.input_ids[row.read[0]] != tokenizer.mask_token_id:
        return " ".join([*names, "→"])
    masks = len(row.read)
    run = f"{tokenizer.mask_token}×{masks}" if masks > 1 else tokenizer.mask_token
    return " ".join([*names[: row.read[0]], run, *names[row.read[-1] + 1 :]])


def _answers(tokenizer: Any, task: Task, pattern: Pattern, row: Row, own: Encoded) -> tuple[str, ...]:
    if pattern.span:
        return (f"{task.positive} if the answer is: {own.targets[0]}   (gold: {row.label})",)
    gold = task.gold(row)
    if pattern.answer == "words":
        return tuple(
            f"{'*' if y == gold else ' '} {label} <- {', '.join(pattern.verbalizer[label])}"
            for y, label in enumerate(task.labels)
        )
    right = set(row.meta.get("right", (gold,)))
    return tuple(
        f"{'*' if t.column in right else ' '} {task.column_names(row)[t.column]} <- "
        f"{' '.join(tokenizer.convert_ids_to_tokens(list(t.ids)))}"
        for t in own.targets
    )


def toy_tokenizer(task: Task, rows: Iterable[Row]) -> Any:
    """A tokenizer of words and punctuation that knows every word of the task and the rows: shows a prompt without a
    model. Its tokens are fewer than a real one's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    splitter = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = dict.fromkeys(special)
    patterns = [*task.patterns.values(), *task.ptuning.values()]
    texts = [p.template for p in patterns] + [w for p in patterns for words in p.verbalizer.values() for w in words]
    for row in rows:
        texts += [*row.fields.values(), *row.meta.get("candidates", ())]
    for text in texts:
        for word, _ in splitter.pre_tokenize_str(text):
            vocabulary |= {word: None, word[:1].lower() + word[1:]: None}
    known = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, known[name]) for name in ("[CLS]", "[SEP]")],
    )
    names: dict[str, Any] = {f"{name[1:-1].lower()}_token": name for name in special}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, name_or_path="toy (words)", **names)


def left_out(kind: str, task: Task) -> list[int]:
    """Patterns of the grid that a sweep leaves out for this kind of model."""
    return [
        i
        for i in task.grid
        if kind not in task.patterns[i].kinds
        or (kind == "causal" and not usable_by_causal(parse(task.patterns[i].template)))
    ]


def unreadable(tokenizer: Any, kind: str, task: Task, rows: Sequence[Row], labeled: Sequence[Row]) -> list[str]:
    """Patterns that a sweep would use and that this model cannot read, or rows that do not fit: one line each."""
    found = []
    wanted = [i for i in task.grid if i not in left_out(kind, task)]
    if not wanted:
        return [f"no pattern of the grid ({', '.join(map(str, task.grid))}) can be read by a {kind} model"]
    for pattern_id in wanted:
        pattern = task.patterns[pattern_id]
        try:
            reader = reader_for(tokenizer, kind, pattern, task, Reading(), labeled)
            reader.encode(rows)
        except FewnluError as error:
            found.append(f"pattern {pattern_id}: {' '.join(str(error).split())}")
    return found
