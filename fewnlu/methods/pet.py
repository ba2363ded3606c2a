"""PET: pattern-exploiting training (Schick & Schütze 2021, section 3; spec 3.2)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fewnlu.methods.method import FewShotMethod


class Method(FewShotMethod):
    """The pattern turns a row into a cloze; what is read at its masks, and the loss, are the reader's.

    One mask: class score s_y = mean over the label words of y of the LM logit, cross-entropy over {s_y} alone. Several
    masks: joint log-probabilities and a hinge loss. A free span: cross-entropy over its tokens.
    """

    def scores(self, batch: dict[str, Any]) -> Tensor:
        return self.reader.scores(self.lm, batch)

    def loss(self, batch: dict[str, Any]) -> Tensor:
        return self.reader.loss(self.lm, batch)
