"""One flag for all jobs of a command, in whatever process or machine they run: start nothing more.

The flag is a file that jobs find by an environment variable, which workers and SLURM jobs inherit.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ENV = "FEWNLU_STOP"
_launcher = 0  # process that this worker of joblib's was launched by
_asked = ""  # the flag raised in this process, also where its file can't be written


def request(reason: str) -> None:
    """Ask all jobs of this command not to begin another run."""
    global _asked
    path = os.environ.get(ENV, "")
    if not path or path != _asked:
        print(f"stopping: {reason}", file=sys.stderr)
    _asked = path
    if path:
        try:
            Path(path).write_text(reason)
        except OSError:
            pass  # a full disk, perhaps the reason itself


def requested() -> bool:
    """Whether the jobs of this process are to stop."""
    path = os.environ.get(ENV)
    return (bool(path) and (path == _asked or os.path.exists(str(path)))) or orphaned()


def orphaned() -> bool:
    """Whether this is a worker of joblib's whose command was killed: it would train on, and in the way of the next."""
    global _launcher
    if not multiprocessing.current_process().name.startswith("Loky"):
        return False
    _launcher = _launcher or os.getppid()
    return os.getppid() != _launcher


def ends_the_job(err: BaseException) -> bool:
    """Whether an error is submitit's, raised out of its signal handler where a job may not be requeued again.

    It says that the job is over, nothing of the run that happens to be computed.
    """
    known = sys.modules.get("submitit.core.utils")
    return known is not None and isinstance(err, known.UncompletedJobError)


@contextlib.contextmanager
def scope(folder: Path, *, keep: bool = False) -> Iterator[None]:
    """Make the flag's place known to jobs that are launched inside.

    Args:
        folder: of the sweep, which all jobs see.
        keep: leave the flag behind: jobs may go on when this command has ended.
    """
    path = folder / ".hydra-jobs" / f"stop-{os.getpid()}-{os.urandom(4).hex()}"
    before = os.environ.get(ENV)
    os.environ[ENV] = str(path)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(ENV, None)
        else:
            os.environ[ENV] = before
        if not keep:
            path.unlink(missing_ok=True)
