"""ADAPET: PET with dense supervision over the whole vocabulary (Tam et al. 2021; spec 3.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewnlu.methods.method import Context
from fewnlu.methods.pet import Method as Pet
from fewnlu.prompts.encoding import Encoded, collate
from fewnlu.prompts.readers.texts import Texts, texts_of
from fewnlu.prompts.readers.tokens import log_probs, states_at


class Method(Pet):
    """Predicts as PET does; trains with L = L_D + L_M, or (1 − b)·L_D + b·L_M for `method.balance` = b.

    *Decoupled label loss* L_D. p is the softmax over the full vocabulary, not over labels. Of each row: the mean of
    BCE(p(token of label y at its place), y is right) over the tokens of all labels, those left out that a right and a
    wrong answer share at the same place. A free span has its one right text.

    *Label-conditioned masked LM* L_M. A label is drawn for each row, its text written into the mask slot (the text of
    the drawn label, also where rows have their own choices), and g says whether it is the right one. With u ~ U(0, 1),
    n = max(int(u·α·length), 2) − 1 tokens of the text or of the label are masked, α = hp.mask_alpha; of each row: the
    mean of BCE(p(x_i | masked text), g). Special tokens are not masked (in the released toolkit they are).

    *Causal models* see only what precedes a token, so a label at the end conditions nothing. There the drawn label's
    text is put in front of the row's text, nothing is masked, and p(x_i | label, x_<i) is read at n tokens of the text:
    the next-token form of the same question, does this text go with this label?

    Both terms are means over rows of means within a row. So neither depends on how a batch is cut into micro-batches
    (the toolkit divides L_M alone by the accumulation factor), and draws are made row by row from a generator of their
    own, seeded by the run.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.alpha, self.balance = float(context.hp["mask_alpha"]), context.options.get("balance")
        self.draws = torch.Generator().manual_seed(torch.initial_seed() % 2**63)
        self.special = set(self.backbone.tokenizer.all_special_ids) - {self.backbone.tokenizer.unk_token_id}

    def loss(self, batch: dict[str, Any]) -> Tensor:
        texts = texts_of(self.reader, batch)
        label, text = self.label_loss(batch, texts), self.text_loss(batch, texts)
        b = self.balance
        return label + text if b is None else (1 - b) * label + b * text

    def skip(self, share: Any) -> None:
        super().skip(share)
        batch = share.batch()
        texts = texts_of(self.reader, batch)
        for one in range(len(share)):
            self._conditioned(batch, texts, self._draw_text(texts, one))

    def label_loss(self, batch: dict[str, Any], texts: Texts) -> Tensor:
        """L_D of a batch."""
        values = binary(texts.log_probs(self.lm, batch), texts.right.unsqueeze(1))
        kept = (texts.real & ~texts.contested(self.backbone.is_causal)) * texts.weight.unsqueeze(1)
        zeros = torch.zeros(len(batch["gold"]), device=values.device)
        total = zeros.index_add(0, texts.row, (values * kept).sum(1))
        return (total / zeros.index_add(0, texts.row, kept.sum(1)).clamp(min=1e-9)).mean()

    def text_loss(self, batch: dict[str, Any], texts: Texts) -> Tensor:
        """L_M of a batch, under fresh draws."""
        rows, targets, right = [], [], []
        for one in range(len(batch["gold"])):
            chosen = self._draw_text(texts, one)
            encoded, target = self._conditioned(batch, texts, chosen)
            rows.append(encoded)
            targets.append(target)
            right.append(bool(texts.right[chosen]))
        device = batch["input_ids"].device
        written = {k: v.to(device) for k, v in collate(rows, self.backbone.tokenizer.pad_token_id).items()}
        row = torch.tensor([r for r, t in enumerate(targets) for _ in t], device=device, dtype=torch.long)
        wanted = torch.tensor([i for t in targets for i in t], device=device, dtype=torch.long)
        places = torch.tensor([p for e in rows for p in e.read], device=device, dtype=torch.long)
        states = states_at(self.lm, written, row, places)
        values = log_probs(self.lm, states, torch.arange(len(row), device=device), wanted)
        values = binary(values, torch.tensor(right, device=device)[row])
        counts = torch.tensor([max(1, len(t)) for t in targets], device=device)
        return (torch.zeros(len(rows), device=device).index_add(0, row, values) / counts).mean()

    def _draw_text(self, texts: Texts, row: int) -> int:
        """Index of a text of the row: a label uniformly, then one of its words."""
        own = (texts.row == row).nonzero()[:, 0].tolist()
        columns = sorted({int(texts.column[i]) for i in own})
        column = columns[self._below(len(columns))]
        words = [i for i in own if int(texts.column[i]) == column]
        return words[self._below(len(words)) if len(words) > 1 else 0]

    def _below(self, n: int) -> int:
        return int(torch.randint(n, (1,), generator=self.draws))

    def _conditioned(self, batch: dict[str, Any], texts: Texts, chosen: int) -> tuple[Encoded, list[int]]:
        """The row's sequence with the chosen label's text in it, `read` at the places to predict, and their tokens."""
        tokenizer, sequence = self.backbone.tokenizer, int(texts.sequence[chosen])
        length = int(batch["attention_mask"][sequence].sum())
        ids = batch["input_ids"][sequence, :length].tolist()
        label = [i for i in texts.target[chosen].tolist() if i >= 0 and i != tokenizer.pad_token_id]
        if self.backbone.is_causal:
            text = ids[: int(batch["read"][sequence, 0]) + 1]
            start = next((i for i, one in enumerate(text) if one not in self.special), len(text))
            text = text[: max(start + 1, self.task.max_length - len(label))]
            whole = text[:start] + label + text[start:]
            free = [i for i in range(start + len(label), len(whole)) if i > 0 and whole[i] not in self.special]
            picked = self._pick(free, len(text))
            return Encoded("", whole, None, [i - 1 for i in picked]), [whole[i] for i in picked]
        kinds = batch.get("token_type_ids")
        types = None if kinds is None else kinds[sequence, :length].tolist()
        slots = [i for i, one in enumerate(ids) if one == tokenizer.mask_token_id]
        surplus = set(slots[len(label) :])
        for slot, one in zip(slots, label, strict=False):
            ids[slot] = one
        keep = [i for i in range(length) if i not in surplus]
        ids, types = [ids[i] for i in keep], None if types is None else [types[i] for i in keep]
        picked = self._pick([i for i, one in enumerate(ids) if one not in self.special], len(ids))
        target = [ids[i] for i in picked]
        for i in picked:
            ids[i] = tokenizer.mask_token_id
        return Encoded("", ids, types, picked), target

    def _pick(self, free: list[int], length: int) -> list[int]:
        u = float(torch.rand(1, generator=self.draws))
        n = max(int(u * self.alpha * length), 2) - 1
        order = torch.randperm(len(free), generator=self.draws).tolist()
        return sorted(free[i] for i in order[:n])


def binary(log_p: Tensor, right: Tensor) -> Tensor:
    """BCE(p, right) of log-probabilities: −log p where right, −log(1 − p) elsewhere; finite up to p = 1 − 1e-7."""
    below = log_p.clamp(max=-1e-7)
    other = torch.where(below > -0.693, torch.log(-torch.expm1(below.clamp(min=-1))), torch.log1p(-torch.exp(below)))
    return -torch.where(right, log_p, other)
