"""One job a GPU: which devices this machine has, and the one that a worker holds while it lives (fault I106)."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

_held: Any = None


def visible() -> list[str]:
    """Names of the GPUs that this process may use, without importing torch."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [d.strip() for d in named.split(",") if d.strip() not in {"", "-1"}]
    found = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(found.iterdir())))] if found.is_dir() else []


def claim() -> str | None:
    """Take a free device for the rest of this process and make it the only visible one; None without devices.

    A lock file per device belongs to the process that holds it, so a killed worker gives its device back.
    Must be called before torch looks at the devices.
    """
    global _held
    if _held is not None:
        return str(_held[0])
    devices = visible()
    if not devices:
        return None
    from filelock import FileLock, Timeout

    folder = Path(tempfile.gettempdir()) / f"fewnlu-devices-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        for device in devices:
            lock = FileLock(folder / f"{device.replace('/', '_')}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            _held = (device, lock)
            os.environ["CUDA_VISIBLE_DEVICES"] = device
            return device
        time.sleep(0.2)
