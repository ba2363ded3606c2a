"""Memory that runs out: how it is recognised, and what is given back before less is tried."""

from __future__ import annotations

import gc
import sys

# torch raises a class of its own on accelerators only; on a CPU and in cuBLAS it is a RuntimeError with words.
_WORDS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "alloc_failed",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the CPU or an accelerator."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    named = type(error).__name__ == "OutOfMemoryError"  # torch's, told without importing it
    return named or (isinstance(error, RuntimeError) and any(words in text for words in _WORDS))


def give_back() -> None:
    """Let go of what nobody holds any more, on the accelerator too."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
