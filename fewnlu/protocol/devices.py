"""Which devices this machine has, how many a training asks for, and the one that a joblib worker holds (fault I106)."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fewnlu.errors import ConfigError

_held: Any = None


def visible() -> list[str]:
    """Names of the GPUs that this process may use, without importing torch."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [d.strip() for d in named.split(",") if d.strip() not in {"", "-1"}]
    found = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(found.iterdir())))] if found.is_dir() else []


def count(flags: dict[str, Any]) -> int:
    """Devices of this machine that one training uses, by `trainer.devices`.

    Raises:
        ConfigError: no such devices, or several on several machines or on what has one.
    """
    given, accelerator = flags.get("devices", 1), flags.get("accelerator") or "auto"
    several = "fewnlu trains on one machine"
    if flags.get("num_nodes", 1) not in (1, None):
        raise ConfigError(
            f"trainer.num_nodes={flags['num_nodes']!r}: {several}; leave it out, use trainer.devices=N for several "
            "devices there, and spread the runs by a launcher (launcher=joblib, slurm)"
        )
    value = [part for part in given.split(",") if part.strip()] if isinstance(given, str) and "," in given else given
    if isinstance(value, (list, tuple)):
        names = [int(v) if str(v).strip().isdigit() else -1 for v in value]
        if not names or -1 in names or len(set(names)) < len(names) or accelerator == "cpu":
            raise ConfigError(
                f"trainer.devices={given!r}: expected different numbers of GPUs, as in trainer.devices=[0,1]"
                + ("; a CPU has none, so use a number of processes, trainer.devices=2" * (accelerator == "cpu"))
            )
        n = len(names)
    elif str(value) in ("auto", "-1") or value is None:
        n = len(visible()) if accelerator in ("auto", "gpu", "cuda") else 1
        n = max(1, n)
    elif not isinstance(value, bool) and str(value).strip().isdigit() and int(value) > 0:
        n = int(value)
    else:
        raise ConfigError(f"trainer.devices={given!r}: expected a number from 1, auto, or GPUs as in [0,1]")
    if n > 1 and accelerator in ("mps", "tpu"):
        raise ConfigError(
            f"trainer.devices={given!r}: several devices need trainer.accelerator=gpu or cpu, not {accelerator}"
        )
    return n


def resolved(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags for Lightning's Trainer: devices as it takes them, no strategy (several devices get DDP).

    Raises:
        ConfigError: see `count`.
    """
    n, given = count(flags), flags.get("devices", 1)
    named = isinstance(given, (list, tuple)) or (isinstance(given, str) and "," in given)
    parts = given.split(",") if isinstance(given, str) else given
    numbers = [int(v) for v in parts if str(v).strip()] if named else n
    return {**{k: v for k, v in flags.items() if k not in ("strategy", "num_nodes")}, "devices": numbers}


def emulates_bfloat16(flags: dict[str, Any], cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether `trainer.precision` asks for 16 bits and this machine's processor, which would train, has no bfloat16.

    Torch then emulates it, several times slower than 32 bits.
    """
    accelerator = flags.get("accelerator") or "auto"
    if not str(flags.get("precision")).startswith(("bf16", "16")) or (accelerator != "cpu" and visible()):
        return False
    if platform.machine().lower() not in ("x86_64", "amd64") or accelerator not in ("auto", "cpu"):
        return False
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    words = next((line.split() for line in text.splitlines() if line.startswith("flags")), None)
    return words is not None and not {"avx512_bf16", "amx_bf16"} & set(words)


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
    told = False
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
        if not told:
            print(f"waiting for a GPU: all {len(devices)} are held by other jobs of fewnlu", file=sys.stderr)
            told = True
        time.sleep(0.2)
