"""The reference: answers drawn by the Outlines library, as the Dutch benchmark does (its card; spec 1 and 4).

Sampling is stated in full at each call, for the library leaves it to the checkpoint's own generation_config, which is
usually greedy. Prompts are handed over as they are: a str would be wrapped in the chat template a second time.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from fewnlu.decoding.decoder import Decoder, Reading, check_choices, derive_seed, match
from fewnlu.decoding.transformers import encode, single_start
from fewnlu.errors import ConfigError

_KEPT = 64  # generators of that many label sets are kept


class OutlinesDecoder(Decoder):
    """Draws with `outlines.Generator`, one prompt reading per run.

    A batch draws from one random state, seeded by all seeds of the batch: equal batches draw equally, another batch
    size draws other (equally distributed) answers.

    Args:
        backbone: causal `fewnlu.backbones.Backbone`.
        temperature: of the sampler.

    Raises:
        ConfigError: outlines is not installed, or the model is masked.
    """

    name = "outlines"
    shares_reading = False

    def __init__(self, backbone: Any, temperature: float = 1.0) -> None:
        if not backbone.is_causal:
            raise ConfigError("decode needs a causal language model, this one is masked; or take +method=pet")
        # The library's mask kernel is compiled at the first call, for seconds and in no need (it may need a compiler).
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        try:
            import outlines
        except ImportError as error:
            raise ConfigError(
                "decode=outlines needs the package outlines: pip install 'fewnlu[dutch]', or take decode=tree"
            ) from error
        self.backbone, self.temperature = backbone, temperature
        import copy

        # A copy, because Outlines turns the padding side of the tokenizer that it gets.
        self.model = outlines.from_transformers(backbone.model, copy.deepcopy(backbone.tokenizer))
        adapter: Any = self.model.type_adapter
        adapter.has_chat_template = False
        self._generators: OrderedDict[tuple[str, ...], Any] = OrderedDict()

    def prepare(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> None:
        for own in dict.fromkeys(tuple(c) for c in choices):
            check_choices(own)
        for text in prompts[:1]:
            own_ids = encode(self.backbone.tokenizer, text)
            ids, _ = self.model.tokenizer.encode([self._text(text)])
            if ids[0].tolist() != own_ids:
                raise ConfigError(
                    "decode=outlines: this tokenizer frames prompts with more than one start token; take decode=tree"
                )

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        return [len(encode(self.backbone.tokenizer, p)) for p in prompts]

    def generator(self, choices: tuple[str, ...]) -> Any:
        """The generator of a label set, built once."""
        if choices in self._generators:
            self._generators.move_to_end(choices)
            return self._generators[choices]
        import outlines

        check_choices(choices)
        # Longest first: the library's automaton takes the leftmost alternative, so that in (ja|ja hoor) the second
        # could never be drawn. Even so outlines_core 0.2.14 drops some spellings of the longer one (see `begins`).
        ordered = sorted(choices, key=len, reverse=True)
        pattern = "(" + "|".join(re.escape(c) for c in ordered) + ")"
        found = outlines.Generator(self.model, outlines.regex(pattern))
        self._generators[choices] = found
        if len(self._generators) > _KEPT:
            self._generators.popitem(last=False)
        return found

    def read(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]], seeds: Sequence[Sequence[int]]
    ) -> list[Reading]:
        readings = [Reading([-1] * len(s)) for s in seeds]
        groups: dict[tuple[str, ...], list[int]] = {}
        for row, own in enumerate(choices):
            groups.setdefault(tuple(own), []).append(row)
        for own, rows in groups.items():
            for run in range(max((len(seeds[r]) for r in rows), default=0)):
                some = [r for r in rows if run < len(seeds[r])]
                texts = self._generate(own, [prompts[r] for r in some], [seeds[r][run] for r in some])
                for row, text in zip(some, texts, strict=True):
                    readings[row].draws[run] = match(text, own)  # −1 is counted as invalid, never dropped
                    readings[row].raw.append(text)
        return readings

    def _generate(self, choices: tuple[str, ...], prompts: list[str], seeds: list[int]) -> list[str]:
        import torch

        generator = self.generator(choices)
        longest = max(len(c.encode()) for c in choices)
        model = self.backbone.model
        model.eval()
        # The caller's random state is left as it was: draws are nobody else's business.
        devices = [self.backbone.device] if self.backbone.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(derive_seed(*seeds))
            return generator.batch(
                [self._text(p) for p in prompts],
                do_sample=True,
                temperature=self.temperature,
                top_k=0,
                top_p=1.0,
                num_beams=1,
                repetition_penalty=1.0,
                max_new_tokens=longest + 1,
                pad_token_id=self.backbone.tokenizer.pad_token_id,
                eos_token_id=self.backbone.tokenizer.eos_token_id,
            )

    def _text(self, prompt: str) -> str:
        """What the library's tokenizer turns into the same ids as ours: it adds the start token itself."""
        return single_start(self.backbone.tokenizer, prompt)


def begins(choices: Sequence[str]) -> bool:
    """Whether a choice begins another one: then the library's draws are not exact, and those of `tree` are.

    A token that ends one byte behind the shorter choice is dropped (the automaton reports a match one byte late), so
    that the longer choice comes out too seldom.
    """
    ordered = sorted(choices)
    return any(b.startswith(a) for a, b in itertools.pairwise(ordered))
