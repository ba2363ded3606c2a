"""The auxiliary language-model loss on unlabelled rows, for every method: L = L_method + w·L_MLM (spec 3.5).

w is `aux.mlm_weight`. At w = 0 the term is not computed at all, so the total is exactly the method's own loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fewnlu.errors import DataError
from fewnlu.prompts.encoding import Encoded, collate
from fewnlu.prompts.readers.tokens import log_probs, states_at


class Auxiliary:
    """Language-model loss on rows of the unlabelled pool under the same template as the labelled ones.

    Masked models: each token of text is a target with probability `ratio` (at least one per row); of the targets 80 %
    are replaced by the mask, 10 % by a random word, 10 % stay. Special tokens, padding, the template's own masks and
    trainable slots are never targets nor replaced. Causal models: the next-token loss over all tokens of a row's text.
    On every model a mean over rows of the mean over a row's targets: its scale depends neither on the architecture (the
    released toolkit sums on DeBERTa) nor on the micro-batch.

    Args:
        rows: encodings of the pool.
        tokenizer, causal: of the model.
        weight: w.
        ratio: probability of a token to be a target.
        seed: of the order of rows and of the masks; a generator of their own, so that dropout is as without this loss.

    Raises:
        DataError: no row has a token to predict.
    """

    def __init__(
        self, rows: Sequence[Encoded], tokenizer: Any, causal: bool, weight: float, ratio: float, seed: int
    ) -> None:
        self.tokenizer, self.causal, self.weight, self.ratio = tokenizer, causal, weight, ratio
        self.special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self.draws = torch.Generator().manual_seed(seed)
        self.rows = [row for row in rows if self.free(row)]
        if not self.rows:
            raise DataError(f"aux.mlm_weight={weight}: none of {len(rows)} unlabelled rows has a token to predict")
        self._stream: Iterator[Encoded] | None = None  # begun by the first draw: an iterator can't be sent

    def free(self, row: Encoded) -> list[int]:
        """Positions that may be predicted."""
        ids = row.input_ids
        return [i for i, one in enumerate(ids) if one >= 0 and one not in self.special and not (self.causal and i == 0)]

    def loss(self, lm: Any, n: int, device: Any) -> Tensor:
        """L_MLM on the next `n` rows.

        Args:
            lm: the model as the method reads it (`FewShotMethod.lm`).
        """
        rows, targets = zip(*(self.draw() for _ in range(n)), strict=True)
        batch = {k: v.to(device) for k, v in collate(rows, self.tokenizer.pad_token_id).items()}
        row = torch.tensor([r for r, t in enumerate(targets) for _ in t], device=device)
        places = torch.tensor([p for e in rows for p in e.read], device=device)
        wanted = torch.tensor([i for t in targets for i in t], device=device)
        states = states_at(lm, batch, row, places)
        values = -log_probs(lm, states, torch.arange(len(row), device=device), wanted)
        counts = torch.tensor([len(t) for t in targets], device=device)
        return (torch.zeros(n, device=device).index_add(0, row, values) / counts).mean()

    def draw(self) -> tuple[Encoded, list[int]]:
        """The next row, masked."""
        if self._stream is None:
            self._stream = self._order()
        return self.masked(next(self._stream))

    def skip(self, n: int) -> None:
        """Draw the next `n` rows for nothing, where another process trains on them."""
        for _ in range(n):
            self.draw()

    def masked(self, row: Encoded) -> tuple[Encoded, list[int]]:
        """A row as the model gets it; its `read` are the places that predict, with the tokens that they should."""
        free, ids = self.free(row), list(row.input_ids)
        if self.causal:
            return Encoded(row.row_id, ids, row.token_type_ids, [i - 1 for i in free]), [ids[i] for i in free]
        picked = [i for i, u in zip(free, self._uniform(len(free)), strict=True) if u < self.ratio]
        if not picked:
            picked = [free[int(torch.randint(len(free), (1,), generator=self.draws))]]
        target = [ids[i] for i in picked]
        words = torch.randint(len(self.tokenizer), (len(picked),), generator=self.draws).tolist()
        for i, u, word in zip(picked, self._uniform(len(picked)), words, strict=True):
            ids[i] = self.tokenizer.mask_token_id if u < 0.8 else word if u < 0.9 else ids[i]
        return Encoded(row.row_id, ids, row.token_type_ids, picked), target

    def _uniform(self, n: int) -> list[float]:
        return torch.rand(n, generator=self.draws).tolist()

    def _order(self) -> Iterator[Encoded]:
        while True:
            for i in torch.randperm(len(self.rows), generator=self.draws).tolist():
                yield self.rows[i]
