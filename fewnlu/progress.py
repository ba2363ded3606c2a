"""Two bars on a terminal: one for the sweep, one for the run in this process; silent otherwise.

The sweep's bar counts bytes of a small file that each job appends to when a training ends, so that it works the same
for jobs in this process, in others, and on other machines that share the temporary folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from typing import Any

ENV = "FEWNLU_PROGRESS"
_live: Any = None  # the rich Progress of this process, where there is one


def is_terminal() -> bool:
    """Whether bars are shown: stderr is a terminal and FEWNLU_QUIET is not set."""
    return sys.stderr.isatty() and not os.environ.get("FEWNLU_QUIET")


def training_done() -> None:
    """Tell the sweep that one training ended (whatever its outcome)."""
    path = os.environ.get(ENV)
    if path:
        try:
            with open(path, "ab", buffering=0) as file:
                file.write(b".")
        except OSError:
            pass  # a bar is never worth a run


class SweepBar:
    """Context manager: shows trainings done and the time left while a sweep is on."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SweepBar:
        if not is_terminal():
            return self
        handle, self.path = tempfile.mkstemp(prefix="fewnlu-progress-")
        os.close(handle)
        os.environ[ENV] = self.path
        _start()
        self._task = _live.add_task("trainings", total=self.total)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def _follow(self) -> None:
        while not self._stop.wait(0.5):
            self._update()

    def _update(self) -> None:
        try:
            _live.update(self._task, completed=os.path.getsize(self.path))
        except OSError:
            pass

    def __exit__(self, *exc: object) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._update()
        _end()
        os.environ.pop(ENV, None)
        if os.path.exists(self.path):
            os.unlink(self.path)


class RunBar:
    """Context manager: the updates of one training; call `step(n, note)`."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._task: Any = None
        self._own = False

    def __enter__(self) -> RunBar:
        if is_terminal() and threading.current_thread() is threading.main_thread():
            self._own = _live is None and ENV not in os.environ
            if self._own:
                _start()
            if _live is not None:
                self._task = _live.add_task(self.title, total=self.total)
        return self

    def step(self, done: int, note: str = "") -> None:
        if self._task is not None:
            _live.update(self._task, completed=done, description=f"{self.title} {note}".rstrip())

    def __exit__(self, *exc: object) -> None:
        if self._task is not None:
            _live.remove_task(self._task)
        if self._own:
            _end()


def _start() -> None:
    global _live
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    _live = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=Console(stderr=True),
    )
    _live.start()


def _end() -> None:
    global _live
    if _live is not None:
        _live.stop()
        _live = None
