"""Causal models of transformers: each prompt is read once, and many answers grow from its kept keys and values.

All open paths of a row share the row's cache: a path is a set of slots behind the prompt, and a mask lets it see the
prompt and its own ancestors alone. So nothing of the prompt is copied per path, and paths of all rows make one batch.
Prompts are padded on the right, so that positions are those of the unpadded row (fault I039).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewnlu.decoding.backend import Backend, Forest, Path
from fewnlu.decoding.constraint import Vocabulary
from fewnlu.errors import ConfigError

_MAX_QUERIES = 512  # paths, padding included, of one forward pass
# Tokens from which a forward pass is as quick per token as a larger one, and the share of padding that is worth a pass.
_ENOUGH, _PADDING = 8192, 1 / 8
_ENOUGH_CPU, _PADDING_CPU = 64, 1 / 32
_FEW = 2048  # from so many tokens on the whole output matrix is multiplied


class TransformersBackend(Backend):
    """A `fewnlu.backbones.Backbone` of kind causal.

    Raises:
        ConfigError: a masked model, or one whose attention can't be told which path sees what.
    """

    def __init__(self, backbone: Any) -> None:
        if not backbone.is_causal:
            raise ConfigError("decode needs a causal language model, this one is masked; or take +method=pet")
        self.backbone = backbone
        self.tokenizer = backbone.tokenizer
        self.vocabulary = Vocabulary.of_tokenizer(self.tokenizer, backbone.vocab_size)
        self.max_length = _max_length(backbone.model.config)
        self._kept: tuple[tuple[int, ...], list[tuple[Tensor, Tensor]]] | None = None
        known = inspect.signature(backbone.model.base_model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"  # renamed within transformers 5
        self._probe()

    def encode(self, text: str) -> list[int]:
        return encode(self.tokenizer, text)

    @torch.inference_mode()
    def open(self, prompts: Sequence[Sequence[int]], prefix: Sequence[int] = ()) -> TransformersForest:
        return TransformersForest(self, prompts, self._read_prefix(tuple(prefix)), len(prefix))

    def base(self, cache: Any, **inputs: Any) -> Tensor:
        """Final states [R, T, H]; the cache grows."""
        self.backbone.eval()
        return self.backbone.model.base_model(**{self._cache_name: cache}, use_cache=True, **inputs)[0]

    def _read_prefix(self, prefix: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
        if not prefix:
            return []
        if self._kept is None or self._kept[0] != prefix:
            cache = _new_cache()
            ids = torch.tensor([prefix], device=self.backbone.device)
            self.base(cache, input_ids=ids, attention_mask=torch.ones_like(ids))
            self._kept = prefix, [(layer.keys, layer.values) for layer in cache.layers]
        return self._kept[1]

    def _probe(self) -> None:
        """Paths side by side must score as each alone: tried on a few tokens, not believed from a list."""
        n = min(self.backbone.vocab_size, self.backbone.n_tokens)
        a, b, c, d = (i % n for i in (5, 6, 7, 8))
        tokens = np.arange(min(n, 50))
        try:
            forest = self.open([[a, b, c], [b, c]], prefix=())
            forest.evaluate([(0, ()), (1, ())], tokens)
            forest.evaluate([(0, (d,)), (0, (a,)), (1, (c,))], tokens)
            got, _ = forest.evaluate([(1, (c, a)), (0, (a, b))], tokens)
            want = np.concatenate(
                [self.open([ids]).evaluate([(0, ())], tokens)[0] for ids in ([b, c, c, a], [a, b, c, a, b])]
            )
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"{_TELL}: {str(error).splitlines()[0][:160]}\n{_INSTEAD}") from error
        exact = next(self.backbone.model.parameters()).dtype == torch.float32
        if not np.allclose(got, want, rtol=0, atol=1e-3 if exact else 0.25):
            raise ConfigError(f"{_TELL}\n{_INSTEAD}")


_TELL = "decode=tree: this architecture does not score paths side by side as it scores each alone"
_INSTEAD = "Use decode=outlines, which generates text by text."


class TransformersForest(Forest):
    """See `Forest`; slots of the cache: [prefix and prompt, padded | paths in the order of evaluation].

    Prompts are read in groups of like length; their caches become one only where a path goes on.
    """

    def __init__(
        self,
        backend: TransformersBackend,
        prompts: Sequence[Sequence[int]],
        prefix: list[tuple[Tensor, Tensor]],
        n_prefix: int,
    ) -> None:
        self.backend, self.backbone = backend, backend.backbone
        device = self.backbone.device
        self._rests = [list(p[n_prefix:]) for p in prompts]
        if not all(self._rests):
            raise ValueError("a prompt is empty or no longer than the prefix")
        self.lengths = np.array([len(p) for p in prompts])
        self._prefix, self._n_prefix = prefix, n_prefix
        packing = (_ENOUGH_CPU, _PADDING_CPU) if device.type == "cpu" else (_ENOUGH, _PADDING)
        self._read: list[tuple[list[int], Any]] = []  # (rows, their cache), until paths make one of them
        roots: list[Tensor | None] = [None] * len(prompts)
        for rows in groups([len(r) for r in self._rests], *packing):
            cache, states = self._read_group(rows)
            self._read.append((rows, cache))
            for row, state in zip(rows, states, strict=True):
                roots[row] = state
        self._root = torch.stack([r for r in roots if r is not None])
        self._rows = list(range(len(prompts)))  # which prompt each row of the cache belongs to
        self._cache: Any = None
        self._seen = torch.empty(0)  # [rows, slots]: the prompt's own
        self._slots: dict[Path, tuple[int, ...]] = {(row, ()): () for row in self._rows}  # slots that a path sees

    def _read_group(self, rows: Sequence[int]) -> tuple[Any, Tensor]:
        """The cache of some prompts, padded on the right, and their states at the end [rows, H]."""
        device, pad = self.backbone.device, self.backbone.tokenizer.pad_token_id
        rests = [self._rests[row] for row in rows]
        n, longest = len(rests), max(map(len, rests))
        cache = _new_cache()
        for i, (keys, values) in enumerate(self._prefix):
            cache.update(keys.expand(n, -1, -1, -1), values.expand(n, -1, -1, -1), i)
        ids = torch.tensor([r + [pad] * (longest - len(r)) for r in rests], device=device)
        lengths = torch.tensor([len(r) for r in rests], device=device)
        mask = (torch.arange(longest, device=device) < lengths[:, None]).long()
        # Without a mask the kernel skips what lies ahead of each token.
        plain = not self._n_prefix and len({len(r) for r in rests}) == 1
        seen = None if plain else torch.cat([mask.new_ones(n, self._n_prefix), mask], 1)
        states = self.backend.base(cache, input_ids=ids, attention_mask=seen)
        return cache, states[torch.arange(n, device=device), lengths - 1].clone()

    def _join(self) -> None:
        """One cache of all rows that are still wanted: only where a path goes on behind its prompt."""
        if self._cache is not None:
            return
        device = self._root.device
        longest = int(self.lengths[self._rows].max())
        place = {row: i for i, row in enumerate(self._rows)}
        joined = _new_cache()
        for i, first in enumerate(self._read[0][1].layers):
            pair = []
            for name in ("keys", "values"):
                like = getattr(first, name)
                whole = like.new_zeros(len(self._rows), like.shape[1], longest, like.shape[3])
                for rows, cache in self._read:
                    part = getattr(cache.layers[i], name)
                    for at, row in enumerate(rows):
                        if row in place:
                            n = int(self.lengths[row])
                            whole[place[row], :, :n] = part[at, :, :n]
                pair.append(whole)
            joined.update(*pair, i)
        self._cache, self._read = joined, []
        lengths = torch.from_numpy(self.lengths[self._rows]).to(device)
        self._seen = torch.arange(longest, device=device) < lengths[:, None]

    @torch.inference_mode()
    def evaluate(
        self, paths: Sequence[Path], tokens: np.ndarray, whole: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        states = torch.empty(len(paths), self._root.shape[1], dtype=self._root.dtype, device=self._root.device)
        todo: dict[int, list[int]] = {}
        for i, (row, path) in enumerate(paths):
            if path:
                todo.setdefault(row, []).append(i)
            else:
                states[i] = self._root[row]
        if gone := set(todo) - set(self._rows):
            raise ValueError(f"rows {sorted(gone)} were given up")
        while todo:
            width = min(max(map(len, todo.values())), max(1, _MAX_QUERIES // len(self._rows)))
            now = {row: of_row[:width] for row, of_row in todo.items()}
            todo = {row: of_row[width:] for row, of_row in todo.items() if len(of_row) > width}
            self._grow(paths, now, max(map(len, now.values())), states)
        return self._scores(states, tokens, whole)

    @torch.inference_mode()
    def keep(self, rows: Collection[int]) -> None:
        active = [i for i, row in enumerate(self._rows) if row in rows]
        if self._cache is None:
            self._rows = [self._rows[i] for i in active]
        elif 2 * len(active) <= len(self._rows):  # giving rows up copies the others: only where it halves the work
            chosen = torch.tensor(active, dtype=torch.long, device=self._root.device)
            self._cache.batch_select_indices(chosen)
            self._seen = self._seen[chosen]
            self._rows = [self._rows[i] for i in active]

    def _grow(self, paths: Sequence[Path], now: dict[int, list[int]], width: int, states: Tensor) -> None:
        self._join()
        rows, past = len(self._rows), self._seen.shape[1]
        ids = np.zeros((rows, width), dtype=np.int64)
        positions = np.zeros((rows, width), dtype=np.int64)
        slots = np.zeros((rows, width, past + width), dtype=bool)
        places, targets = [], []
        for at, row in enumerate(self._rows):
            for q, i in enumerate(now.get(row, ())):
                path = paths[i][1]
                own = (*self._slots[row, path[:-1]], past + q)
                self._slots[row, path] = own
                ids[at, q], positions[at, q] = path[-1], self.lengths[row] + len(path) - 1
                slots[at, q, list(own)] = True
                places.append(at * width + q)
                targets.append(i)
        device = self._root.device
        sees = torch.from_numpy(slots).to(device)
        sees[:, :, :past] |= self._seen[:, None, :]  # slots of paths are False in it: only descendants see them
        dtype = self._root.dtype
        bias = torch.zeros(sees.shape, dtype=dtype, device=device).masked_fill_(~sees, torch.finfo(dtype).min)
        found = self.backend.base(
            self._cache,
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=bias[:, None],
            position_ids=torch.from_numpy(positions).to(device),
        )
        self._seen = torch.nn.functional.pad(self._seen, (0, width))
        states[torch.tensor(targets, device=device)] = found.flatten(0, 1)[torch.tensor(places, device=device)]

    def _scores(self, states: Tensor, tokens: np.ndarray, whole: bool) -> tuple[np.ndarray, np.ndarray | None]:
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(states.device)
        if not whole and len(tokens) < _FEW:
            return self.backbone.logits(states, ids).double().cpu().numpy(), None
        parts, norms = [], []
        for some in states.split(64):
            logits = self.backbone.logits(some).float()
            norms.append(torch.logsumexp(logits, -1).double())
            parts.append(logits.index_select(-1, ids).double())
        return torch.cat(parts).cpu().numpy(), torch.cat(norms).cpu().numpy()


def groups(lengths: Sequence[int], enough: int, padding: float) -> list[list[int]]:
    """Rows of about equal length, so that little of what is read is padding.

    Args:
        lengths: of the rows.
        enough: groups of fewer tokens take another row in any case.
        padding: share of padding in what larger groups read, at most.
    """
    found: list[list[int]] = []
    real = 0
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[found[-1][0]] if found else 0
        padded = (len(found[-1]) + 1) * longest if found else 0
        if found and (longest * len(found[-1]) < enough or (1 - padding) * padded <= real + lengths[row]):
            found[-1].append(row)
            real += lengths[row]
        else:
            found.append([row])
            real = lengths[row]
    return found


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of a whole prompt with exactly one start token where the tokenizer has the habit of adding one (fault I038).

    A template may print the start token's text itself; the tokenizer must not add a second. No end token follows.
    """
    ids = list(tokenizer(single_start(tokenizer, text), add_special_tokens=True, truncation=False)["input_ids"])
    bare = tokenizer("a", add_special_tokens=True)["input_ids"]
    ends = len(bare) > 1 and bare[-1] in tokenizer.all_special_ids
    return ids[:-1] if ends and ids[-1] == bare[-1] else ids


def single_start(tokenizer: Any, text: str) -> str:
    """The text without its own start token where the tokenizer will add one."""
    start = tokenizer.bos_token or tokenizer.cls_token
    adds = start is not None and tokenizer("a", add_special_tokens=True)["input_ids"][:1] == [
        tokenizer.convert_tokens_to_ids(start)
    ]
    while adds and text.startswith(start):
        text = text[len(start) :]
    return text


def _new_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()  # without the model's config: every layer keeps all, sliding windows included


def _max_length(config: Any) -> int | None:
    bounds = [getattr(config, "max_position_embeddings", None)]
    if getattr(config, "use_sliding_window", True):
        bounds.append(getattr(config, "sliding_window", None))  # beyond it a full mask would read more than the model
    found = [b for b in bounds if isinstance(b, int) and b > 0]
    return min(found) if found else None
