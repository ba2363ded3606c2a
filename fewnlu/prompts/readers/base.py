"""What every reader gives: encodings of rows, batches, scores and a training loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fewnlu.errors import ConfigError, choices
from fewnlu.prompts.encoding import Encoded, collate, shared
from fewnlu.tasks.task import Pattern, Row, Task

if TYPE_CHECKING:
    from torch import Tensor

FILLS = ("most_confident_first", "left_to_right", "parallel")
OPTIONS = {"fill": FILLS, "length": ("sum", "mean"), "hinge": ("example", "batch"), "masks": ("labelled", "paper")}


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings of readers of several masks; part of a study's identity.

    Attributes:
        fill: order in which masks are filled in evaluation (spec 3.2); training reads all at once.
        length: ``sum`` of the tokens' log-probabilities, or their ``mean`` (summing favours short answers).
        hinge: PET's loss per ``example``, or of the micro-batch's means (``batch``, as the released toolkit).
        masks: of a free span: the longest span among the ``labelled`` rows, or the toolkit's rule (``paper``), which
            gives away the candidate's length.
    """

    fill: str = "most_confident_first"
    length: str = "sum"
    hinge: str = "example"
    masks: str = "labelled"

    def __post_init__(self) -> None:
        for name, known in OPTIONS.items():
            value = getattr(self, name)
            if value not in known:
                key = "wsc.masks" if name == "masks" else f"reading.{name}"
                raise ConfigError(f"{key}={value!r}: {choices(value, known)}")


class Reader:
    """Base of all readers.

    Args:
        tokenizer: a fast tokenizer of transformers.
        kind: ``masked`` or ``causal``.
        pattern, task: what is read.
        reading: settings of readers of several masks.
    """

    def __init__(self, tokenizer: Any, kind: str, pattern: Pattern, task: Task, reading: Reading) -> None:
        self.tokenizer, self.kind, self.pattern, self.task, self.reading = tokenizer, kind, pattern, task, reading

    @property
    def signature(self) -> tuple[Any, ...]:
        """What encodings depend on beside template, length limit and rows."""
        return ()

    def encode(self, rows: Sequence[Row]) -> list[Encoded]:
        """One encoding per row, in their order.

        Raises:
            DataError: a row that does not fit into task.max_length.
        """
        return shared(self.tokenizer, self.kind, self.pattern, self.task.max_length)(rows)

    def trains_on(self, gold: int) -> bool:
        """Whether a row of this gold column can be trained on."""
        return gold >= 0

    def notes(self, gold: Sequence[int]) -> list[str]:
        """What a reader of the record should know about train rows with these gold columns."""
        return []

    def collate(self, rows: Sequence[Encoded], gold: Sequence[int], pad_id: int, train: bool) -> dict[str, Any]:
        """A batch: input_ids, attention_mask [sequences, tokens], read, gold [rows], and what the reader adds."""
        import torch

        batch: dict[str, Any] = collate(rows, pad_id)
        batch["gold"] = torch.tensor(list(gold))
        return batch

    def scores(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        """Log-scores [rows, candidates]; −inf where a row has fewer."""
        raise NotImplementedError

    def loss(self, backbone: Any, batch: dict[str, Any]) -> Tensor:
        """Training loss, a mean over rows."""
        raise NotImplementedError


class Plain(Reader):
    """Encodes a template without masks for methods with a head of their own; there is nothing to read."""


def sequences_of(row: Encoded, train: bool) -> tuple[Encoded, ...]:
    """The sequences of a row that training or evaluation reads."""
    return (row.train if train else row.evaluate) or (row,)


def hidden_of(backbone: Any, batch: dict[str, Any]) -> Tensor:
    """Final states [sequences, tokens, H] of a batch."""
    return backbone.hidden(
        batch["input_ids"],
        batch["attention_mask"],
        token_type_ids=batch.get("token_type_ids"),
        prefix=batch.get("prefix"),
    )
