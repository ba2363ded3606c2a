"""Files that a reader sees whole or not at all, and who is writing them: processes named by host and id."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

from fewnlu.errors import FewnluError
from fewnlu.processes import is_running


class DiskFull(FewnluError):
    """No room for a record: nothing more can be kept, so nothing more is computed."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none: a temporary neighbour, then a rename.

    Raises:
        DiskFull: no space left; what was there before is untouched.
    """
    temp = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise FewnluError(f"{path}: a folder stands where this file belongs; move it away")
        handle, temp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{_host()}-{os.getpid()}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else the rename may reach the disk before the bytes do
        os.chmod(temp, 0o644)
        os.replace(temp, path)
    except BaseException as err:
        if temp is not None and os.path.exists(temp):
            os.unlink(temp)
        if is_disk_full(err):
            raise DiskFull(
                f"{path.parent}: no space left on the disk ({getattr(err, 'strerror', err)}); all finished runs are "
                "kept. Free some space, then give the same command again"
            ) from err
        raise


def is_disk_full(err: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that a disk or a quota is full."""
    while err is not None:
        if isinstance(err, DiskFull) or (isinstance(err, OSError) and err.errno in (errno.ENOSPC, errno.EDQUOT)):
            return True
        err = err.__cause__ or err.__context__
    return False


def sweep_out(folder: Path) -> None:
    """Remove temporary files that killed processes of this host left in a folder."""
    for temp in folder.glob(".*"):
        match = re.fullmatch(r"\..+\.(?P<host>[^.]*)-(?P<pid>\d+)\.[^.]*", temp.name)
        if match and match["host"] == _host() and not is_running(int(match["pid"])) and temp.is_file():
            temp.unlink(missing_ok=True)


def me() -> dict[str, Any]:
    """This process: host, pid and when it began, and the cluster's job id where there is one."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")
    return {"host": _host(), "pid": os.getpid(), "born": _born(os.getpid()), "job": job}


def is_alive(who: dict[str, Any]) -> bool | None:
    """Whether that process still runs; None where it cannot be seen from here (another host)."""
    if who.get("host") != _host():
        return None
    try:
        pid = int(who["pid"])
    except (KeyError, TypeError, ValueError):
        return False
    return is_running(pid) and _born(pid) == who.get("born")


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where there is none or it is not whole."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())


def _born(pid: int) -> str | None:
    """Start of a process in clock ticks since boot, so that a reused id is not taken for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None
