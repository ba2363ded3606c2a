"""Running a model's lower or upper layers alone, for any architecture that keeps them in one ModuleList.

The model's own forward runs in both cases, so that it builds masks, positions and final norms itself: below
the cut it is stopped when the last lower layer answers; above the cut the lower layers answer with the kept
states at once. No module is moved, so indices, types and hooks of the layers stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class _Reached(Exception):
    """Ends a forward at the cut and carries the states."""

    def __init__(self, states: Tensor) -> None:
        super().__init__("reached the cut")
        self.states = states


def find_layers(model: Any) -> nn.ModuleList | None:
    """The ModuleList that holds the model's layers one by one, or None (ALBERT shares one among all)."""
    count = model.config.num_hidden_layers
    if model.config.model_type == "albert":
        return None
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and isinstance(module[0], nn.Module):
            return module
    return None


def lower_states(layers: nn.ModuleList, n: int, run: Callable[[], Any]) -> Tensor:
    """What leaves layer n−1, that is enters layer n (or the final norm), while `run()` runs the model."""

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        raise _Reached(output[0] if isinstance(output, tuple) else output)

    handle = layers[n - 1].register_forward_hook(stop)
    try:
        run()
    except _Reached as reached:
        return reached.states
    finally:
        handle.remove()
    raise RuntimeError("the model's forward did not pass through its layers")


@contextmanager
def upper_only(layers: nn.ModuleList, n: int, states: Tensor, as_tuple: bool) -> Iterator[None]:
    """While open, the bottom n layers answer with `states` [R, T, H] without computing anything.

    Args:
        as_tuple: the family's layers answer with a tuple whose first item are the states.
    """
    bottom, answer = list(layers)[:n], (states,) if as_tuple else states
    for layer in bottom:
        layer.forward = lambda *args, **kwargs: answer
    try:
        yield
    finally:
        for layer in bottom:
            del layer.forward


def answers_tuple(layers: nn.ModuleList, n: int, run: Callable[[], Any]) -> bool:
    """Whether layer n−1 answers with a tuple, seen by running the model."""
    found: list[bool] = []
    handle = layers[n - 1].register_forward_hook(lambda module, args, output: found.append(isinstance(output, tuple)))
    try:
        run()
    finally:
        handle.remove()
    return found[-1]


def trace_lower(
    model: Any, layers: nn.ModuleList, n: int, run: Callable[[], Any]
) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """What the states entering layer n are made by: modules that completed before, parameters that were read.

    Found by running the model and following the gradient's graph instead of by name: embeddings are called
    and built differently everywhere (projections, norms, position tables), and one that is missed makes kept
    states wrong. Every parameter must require its gradient.
    """
    seen: list[nn.Module] = []
    handles = [
        m.register_forward_hook(lambda module, args, output: seen.append(module)) for m in model.base_model.modules()
    ]
    try:
        with torch.enable_grad():
            states = lower_states(layers, n, run)
    finally:
        for handle in handles:
            handle.remove()
    modules = {id(m): m for m in [*seen, *(m for layer in list(layers)[:n] for m in layer.modules())]}
    parameters = {id(p): p for p in _leaves(states)}
    for layer in list(layers)[:n]:
        parameters.update({id(p): p for p in layer.parameters()})
    return list(modules.values()), list(parameters.values())


def _leaves(tensor: Tensor) -> Iterator[nn.Parameter]:
    pending, known = [tensor.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if isinstance(variable := getattr(node, "variable", None), nn.Parameter):
            yield variable
        pending.extend(parent for parent, _ in node.next_functions)
