"""Constrained sampling as a tree: exact draws, and certified probabilities, from one reading of each prompt.

A constrained sampler renormalises, at each step, the model's next-token distribution over the tokens that the
constraint allows. So the answers of a prompt form a tree of token paths with known probabilities at each node; a run
is one walk from its root. Two things make this fast without changing a draw: a node is evaluated once, whatever number
of runs visits it, and a path is left as soon as only one answer can come of it, for whatever tokens follow, that
answer is what the sampler ends with. With label words of different first letters the prompt's reading is all it takes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fewnlu.decoding.backend import Backend, Forest
from fewnlu.decoding.constraint import Constraint, Step
from fewnlu.decoding.decoder import Decoder, Reading, uniform
from fewnlu.errors import ConfigError

TOLERANCE = 1e-3  # a row's bounds this close are left as they are: another pass would cost more than it tells
CLOSED = 1e-9  # the same where probabilities themselves are asked for


@dataclass(slots=True)
class _Node:
    """A point of one row's tree that is not decided: `mass` is its probability, `edges` its children's, once known."""

    row: int
    path: tuple[int, ...]
    prefix: bytes
    mass: float
    step: Step | None = None
    edges: np.ndarray | None = None  # probabilities of step.tokens
    children: dict[int, _Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    """A row's tree: what reached an answer, and which nodes are open (evaluated ones are not)."""

    constraint: Constraint
    lower: np.ndarray
    root: _Node | None
    draws: list[int]
    open: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    nodes: int = 0


class TreeDecoder(Decoder):
    """See the module.

    Args:
        backend: the model.
        temperature: of the sampler.
        node_budget: nodes of a row that are evaluated beyond those that draws visit, likeliest first, until each
            answer's probability is known; 0: only what draws visit.
        tolerance: probability of a row that may stay unassigned; bounds stay certified. Draws are exact in any case.
    """

    name = "tree"

    def __init__(
        self, backend: Backend, temperature: float = 1.0, node_budget: int = 32, tolerance: float = TOLERANCE
    ) -> None:
        if not temperature > 0:
            raise ConfigError(f"decode.temperature={temperature!r}: expected a number above 0")
        self.backend, self.temperature, self.node_budget = backend, temperature, node_budget
        self.tolerance = tolerance
        self._prefix: list[int] = []

    def prepare(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> None:
        encoded = [self.backend.encode(p) for p in prompts]
        for own in dict.fromkeys(tuple(c) for c in choices):
            self.backend.vocabulary.constraint(own)
        room = max((len(c.encode()) for own in choices for c in own), default=0)
        _check_lengths(encoded, self.backend.max_length, room)
        self._prefix = _common(encoded)

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        return [len(self.backend.encode(p)) for p in prompts]

    def read(
        self, prompts: Sequence[str], choices: Sequence[Sequence[str]], seeds: Sequence[Sequence[int]]
    ) -> list[Reading]:
        return self.walk(self.open(prompts), choices, seeds)

    def log_probs(self, prompts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[list[float]]:
        """Log-probability of each answer under the constrained sampler, every node of weight evaluated."""
        found = self.walk(self.open(prompts), choices, [[] for _ in prompts], budget=100_000, tolerance=CLOSED)
        return [[math.log(p) if p > 0 else -math.inf for p in one.probs] for one in found]

    def open(self, prompts: Sequence[str]) -> Forest:
        """The prompts read, ready to be walked."""
        ids = [self.backend.encode(p) for p in prompts]
        n = len(self._prefix)
        shared = all(len(i) > n and i[:n] == self._prefix for i in ids)
        return self.backend.open(ids, self._prefix if shared else ())

    def walk(
        self,
        forest: Forest,
        choices: Sequence[Sequence[str]],
        seeds: Sequence[Sequence[int]],
        budget: int | None = None,
        tolerance: float | None = None,
    ) -> list[Reading]:
        """Draw, then close the bounds as far as the budget goes.

        Args:
            forest: of `open`.
            choices, seeds: as in `read`.
            budget, tolerance: None: the decoder's own.
        """
        rows = [self._start(r, own, len(seeds[r])) for r, own in enumerate(choices)]
        budget = self.node_budget if budget is None else budget
        self._draw(forest, rows, seeds, budget > 0)
        self._close(forest, rows, budget, self.tolerance if tolerance is None else tolerance)
        return [self._reading(row) for row in rows]

    def _start(self, row: int, choices: Sequence[str], runs: int) -> _Row:
        constraint = self.backend.vocabulary.constraint(tuple(choices))
        lower = np.zeros(len(choices))
        only = constraint.decided(b"")
        if only is not None:
            lower[only] = 1.0
            return _Row(constraint, lower, None, [only] * runs)
        root = _Node(row, (), b"", 1.0)
        return _Row(constraint, lower, root, [-1] * runs, {(): root})

    def _draw(self, forest: Forest, rows: list[_Row], seeds: Sequence[Sequence[int]], closes: bool) -> None:
        """All runs of all rows, step by step; the open nodes of a step make one batch."""
        visits: list[tuple[_Node, list[int]]] = []
        for row, own in zip(rows, seeds, strict=True):
            if row.root is not None and len(own):
                visits.append((row.root, list(range(len(own)))))
        depth = 0
        while visits:
            self._evaluate(forest, rows, [node for node, _ in visits])
            following: list[tuple[_Node, list[int]]] = []
            for node, runs in visits:
                row, step = rows[node.row], node.step
                assert step is not None and node.edges is not None
                cumulative = np.cumsum(node.edges)
                aims = np.array([uniform(int(seeds[node.row][run]), depth) for run in runs]) * cumulative[-1]
                taken = np.minimum(np.searchsorted(cumulative, aims, side="right"), len(cumulative) - 1)
                grouped: dict[int, list[int]] = {}
                for run, edge in zip(runs, taken.tolist(), strict=True):
                    grouped.setdefault(edge, []).append(run)
                for edge, some in sorted(grouped.items()):
                    end = step.prefixes[edge]
                    answer = row.constraint.index[node.prefix] if end is None else row.constraint.decided(end)
                    if answer is None:
                        following.append((node.children[edge], some))
                        continue
                    for run in some:
                        row.draws[run] = answer
            visits, depth = following, depth + 1
            forest.keep(
                {n.row for n, _ in visits} | ({i for i, row in enumerate(rows) if row.open} if closes else set())
            )

    def _close(self, forest: Forest, rows: list[_Row], budget: int, tolerance: float) -> None:
        """Evaluate the likeliest open nodes, a few per row at a time, until the bounds close or the budget ends."""
        left = {i: budget for i, row in enumerate(rows) if row.open and budget > 0}
        heaps = {i: [(-node.mass, path) for path, node in rows[i].open.items()] for i in left}
        for heap in heaps.values():
            heapq.heapify(heap)
        while left:
            chosen: list[_Node] = []
            for i in list(left):
                gap = sum(node.mass for node in rows[i].open.values())
                if gap <= tolerance or left[i] <= 0:
                    del left[i]
                    continue
                taken = min(left[i], max(4, len(heaps[i]) // 4), len(heaps[i]))
                chosen += [rows[i].open[heapq.heappop(heaps[i])[1]] for _ in range(taken)]
                left[i] -= taken
            if not chosen:
                break
            forest.keep(set(left))
            self._evaluate(forest, rows, chosen)
            for node in chosen:
                for child in node.children.values():
                    heapq.heappush(heaps[node.row], (-child.mass, child.path))

    def _evaluate(self, forest: Forest, rows: list[_Row], nodes: Iterable[_Node]) -> None:
        fresh = [node for node in nodes if node.edges is None]
        if not fresh:
            return
        for node in fresh:
            node.step = rows[node.row].constraint.step(node.prefix)
        tokens = np.unique(np.concatenate([n.step.tokens for n in fresh if n.step is not None]))
        logits, _ = forest.evaluate([(n.row, n.path) for n in fresh], tokens)
        for node, scores in zip(fresh, logits, strict=True):
            assert node.step is not None
            own = scores[np.searchsorted(tokens, node.step.tokens)] / self.temperature
            top = own.max() if len(own) else -math.inf
            if not math.isfinite(top):
                raise FloatingPointError("no allowed token has a finite score: the model has diverged or overflowed")
            weights = np.exp(own - top)
            node.edges = weights / weights.sum()
            self._spread(rows[node.row], node)

    def _spread(self, row: _Row, node: _Node) -> None:
        """Hand a node's mass on to the answers that are decided and to its open children."""
        assert node.step is not None and node.edges is not None
        del row.open[node.path]
        row.nodes += 1
        for edge, (token, end) in enumerate(zip(node.step.tokens.tolist(), node.step.prefixes, strict=True)):
            mass = node.mass * float(node.edges[edge])
            answer = row.constraint.index[node.prefix] if end is None else row.constraint.decided(end)
            if answer is not None:
                row.lower[answer] += mass
            else:
                assert end is not None
                child = _Node(node.row, (*node.path, token), end, mass)
                node.children[edge] = child
                row.open[child.path] = child

    @staticmethod
    def _reading(row: _Row) -> Reading:
        upper = row.lower.copy()
        for node in row.open.values():
            upper[list(row.constraint.reach(node.prefix))] += node.mass
        return Reading(row.draws, row.lower.tolist(), np.minimum(upper, 1.0).tolist(), nodes=row.nodes)


def _common(encoded: list[list[int]]) -> list[int]:
    """Ids that all prompts begin with, one token of each left over; [] for fewer than two prompts."""
    if len(encoded) < 2:
        return []
    first, last = min(encoded), max(encoded)
    n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: min(n, min(map(len, encoded)) - 1)]


def _check_lengths(encoded: Sequence[Sequence[int]], bound: int | None, room: int) -> None:
    longest = max(map(len, encoded), default=0)
    if bound is not None and longest + room > bound:
        raise ConfigError(
            f"a prompt has {longest} tokens and its answer up to {room}, the model reads {bound}.\n"
            "Lower task.max_length, or method.shots."
        )
