"""Memory: how much was used, how running out is recognised, and what is given back before less is tried."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

# torch raises a class of its own on accelerators only; on a CPU and in cuBLAS it is a RuntimeError with words.
_WORDS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "alloc_failed",
)


_others: list[dict[str, int | None]] = []  # peaks of other processes of the same run


def reset_peaks() -> None:
    """Start counting the peaks of memory anew, so that they are those of one run (fault I088)."""
    _others.clear()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # not Linux, or not allowed: the peak is then the process's
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def add_peaks(found: dict[str, int | None]) -> None:
    """Take in what `peaks` said in another process that trained for this one."""
    _others.append(found)


def peaks() -> dict[str, int | None]:
    """peak_memory and peak_gpu_memory in bytes, of the process that took most; None where they are not known."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.max_memory_allocated() if torch is not None and torch.cuda.is_available() else None
    own = {"peak_memory": _peak(), "peak_gpu_memory": gpu}
    return {name: max((v for one in (own, *_others) if (v := one[name]) is not None), default=None) for name in own}


def _peak() -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


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
