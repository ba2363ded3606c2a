"""Processes of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def end_unread() -> NoReturn:
    """End with status 0 where nobody reads the output on, as in ``… | head``, without a word at the last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def is_running(pid: int) -> bool:
    """Whether a process of that number is there and has not ended, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # a killed process whose parent has not looked yet is dead all the same
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return True
