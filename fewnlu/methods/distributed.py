"""One training on several devices of this machine: a process for each, between them Lightning's DDP.

Everything but the updates stays in the calling process. The processes (`fewnlu.methods.worker`) are started at the
first such training and kept for the next ones, since importing takes seconds. A training goes to them as a file, which
each maps into memory instead of getting a copy; what comes back is in a file of tensors. Progress, metrics and errors
are lines of JSON. A process ends when its standard input does, that is with this one, however that ends.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import copyreg
import json
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fewnlu import errors
from fewnlu.methods.looks import Measure, Rule
from fewnlu.methods.memory import add_peaks, give_back
from fewnlu.methods.method import Diverged, FewShotMethod
from fewnlu.methods.training import Trained
from fewnlu.processes import is_running

JOB, RESULT, MEETING = "job.pt", "result.pt", "meeting"
# A signal to the whole group is the caller's to act upon: it goes on or ends, and the processes with it.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_BOOT = (
    f"import json, signal, sys; [signal.signal(s, signal.SIG_IGN) for s in {[int(s) for s in IGNORED]}]; "
    "sys.path[:] = json.loads(sys.argv[1]); from fewnlu.methods.worker import main; main()"
)
_team: _Team | None = None


def proxy(values: dict[Any, Any]) -> Any:
    """A read-only view, as tasks hold some; pickle knows its class by no name."""
    return types.MappingProxyType(values)


copyreg.pickle(types.MappingProxyType, lambda one: (proxy, (dict(one),)))


@dataclass
class Job:
    """A training as the processes get it.

    Attributes:
        measure: as in `fewnlu.methods.training.train`.
        flags: of Lightning's Trainer.
        threads: torch threads of each process.
        logged: whether somebody wants the metrics.
    """

    method: FewShotMethod
    data: Any
    rules: list[Rule]
    measure: Measure
    flags: dict[str, Any]
    total: int
    threads: int
    logged: bool


def train(
    method: FewShotMethod,
    data: Any,
    rules: list[Rule],
    measure: Measure,
    bar: Any,
    *,
    flags: dict[str, Any],
    loggers: list[Any],
    total: int,
) -> Trained:
    """As `fewnlu.methods.training.train`, on `data.devices` devices.

    Raises:
        MemoryError: memory ran out in one of the processes.
        RuntimeError: one of them was killed. Any other error of theirs comes as what it was there.
    """
    method.zero_grad(set_to_none=True)
    method.cpu()  # the devices' memory is the processes' now
    give_back()
    threads = max(1, torch.get_num_threads() // data.devices)
    team = _team_of(data.devices, flags, threads)
    folder = Path(tempfile.mkdtemp(dir=team.folder))
    status = "failed"
    try:
        _write(Job(method, data, rules, measure, flags, total, threads, bool(loggers)), folder / JOB)
        with warnings.catch_warnings(), contextlib.closing(team.train(folder)) as messages:
            warnings.simplefilter("ignore")
            for message in messages:
                _pass_on(message, bar, loggers)
        found = torch.load(folder / RESULT, mmap=True, weights_only=True)
        status = "success"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for logger in loggers:
            logger.finalize(status)
    method.to(device=found["device"], dtype=found["dtype"])  # where test is scored
    if found["last"] is not None:
        method.load_snapshot(found["last"])
    measure.table.most_rows = found["most_rows"]
    return Trained(
        [Rule(**{**one, "looks": [(step, score) for step, score in one["looks"]]}) for one in found["rules"]],
        found["steps"],
        found["weights"],
        {step: values.numpy() for step, values in found["dev_scores"].items()},
        Diverged(found["diverged"]) if found["diverged"] else None,
    )


def _pass_on(message: dict[str, Any], bar: Any, loggers: list[Any]) -> None:
    if "metrics" not in message:
        bar.step(message["step"], message["note"])
        return
    for logger in loggers:
        logger.log_metrics(message["metrics"], step=message["step"])
        logger.save()


def _write(job: Job, path: Path) -> None:
    try:
        save(job, path)
    except (pickle.PicklingError, AttributeError, TypeError) as err:
        raise errors.ConfigError(
            f"trainer.devices={job.data.devices}: {type(job.method).__module__}.{type(job.method).__name__}, or what "
            f"it holds, can't be sent to other processes ({err}); use trainer.devices=1"
        ) from err


def save(value: Any, path: Path) -> None:
    """torch.save, whose own file knows no OSError: a full disk would be a RuntimeError without a word of it.

    Raises:
        OSError: it can't be written; names the folder and what is asked of it.
        KeyboardInterrupt, SystemExit: as they come, which torch answers with an error that its file is incomplete.
    """
    try:
        with path.open("wb") as file:
            torch.save(value, file)
    except OSError as err:
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            err.errno,
            f"{err.strerror}: several devices hand the model over in {path.parent.parent}, which has {free / 1e6:,.0f} "
            "MB left; set TMPDIR to a folder with room for the model and its best weights",
        ) from err
    except RuntimeError as err:
        if isinstance(err.__context__, (KeyboardInterrupt, SystemExit)):
            raise err.__context__ from None
        raise


class _Team:
    """The processes, one a device.

    Args:
        key: what they were started for; a training with another key needs others.

    Attributes:
        folder: of all files that they share; the last of them, or this process, removes it.
    """

    def __init__(self, key: tuple[Any, ...], size: int, threads: int) -> None:
        self.key, self.lines = key, queue.Queue[tuple[int, str | None]]()
        self.folder = _new_folder()
        env = {k: v for k, v in os.environ.items() if k != "TORCH_FORCE_WEIGHTS_ONLY_LOAD"}  # a job is our own file
        env |= {"OMP_NUM_THREADS": str(threads), "NODE_RANK": "0"}
        env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns where it looked for unused parameters in vain
        self.processes: list[subprocess.Popen[str]] = []
        try:
            self._start(size, env)
        except BaseException:
            self.end()
            raise

    def _start(self, size: int, env: dict[str, str]) -> None:
        for rank in range(size):
            command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(self.folder), str(rank), str(size)]
            one = subprocess.Popen(
                command,
                env={**env, "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
            self.processes.append(one)
            threading.Thread(target=self._listen, args=(rank, one), daemon=True).start()

    def _listen(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.put((rank, line))
        self.lines.put((rank, None))

    def train(self, folder: Path) -> Any:
        """Give a job to all; yields what the first says until all are done."""
        try:
            for one in self.processes:
                assert one.stdin is not None
                one.stdin.write(f"{folder}\n")
                one.stdin.flush()
            todo = len(self.processes)
            while todo:
                rank, line = self.lines.get()
                message: dict[str, Any] = {"died": True} if line is None else json.loads(line)
                if "died" in message:
                    raise RuntimeError(_died(rank, len(self.processes), self.processes[rank].wait()))
                if "error" in message:
                    self._blame_the_dead()
                    raise _error(rank, len(self.processes), **message["error"])
                if "done" in message:
                    todo -= 1
                    add_peaks(message["done"])
                else:
                    yield message
        except BaseException:  # where one has failed, the others wait for it
            self.end()
            raise

    def _blame_the_dead(self) -> None:
        """Where a process was killed, the others report lost connections: say what was first."""
        time.sleep(0.3)
        for rank, one in enumerate(self.processes):
            if (code := one.poll()) is not None:
                raise RuntimeError(_died(rank, len(self.processes), code))

    def end(self) -> None:
        """Kill the processes, which hold nothing that is worth more, and wait for them."""
        global _team
        _team = None if _team is self else _team
        try:
            for one in self.processes:
                one.kill()
            for one in self.processes:
                one.wait()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def _new_folder() -> Path:
    """A folder in TMPDIR; those of callers that were killed with all their processes go, as they hold whole models."""
    place = Path(tempfile.gettempdir())
    for one in place.glob("fewnlu-team-*-*"):
        owner = one.name.split("-")[2]
        if owner.isdigit() and one.stat().st_uid == os.getuid() and not is_running(int(owner)):
            shutil.rmtree(one, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"fewnlu-team-{os.getpid()}-", dir=place))


def _team_of(size: int, flags: dict[str, Any], threads: int) -> _Team:
    global _team
    key = (size, str(flags.get("accelerator")), str(flags.get("devices")), threads, tuple(sys.path))
    if _team is not None and (_team.key != key or any(one.poll() is not None for one in _team.processes)):
        _team.end()
    if _team is None:
        _team = _Team(key, size, threads)
    return _team


@atexit.register
def dismiss() -> None:
    """End the processes that wait for another training."""
    if _team is not None:
        _team.end()


def _died(rank: int, size: int, code: int) -> str:
    if code >= 0:
        return f"process {rank + 1} of {size} ended with status {code}; what it said stands above"
    return (
        f"process {rank + 1} of {size} was killed by signal {-code} while training; where the machine's memory was "
        "used up, use fewer trainer.devices or a smaller runtime.micro_batch"
    )


def _error(
    rank: int, size: int, name: str, text: str, number: int | None, file: str | None, memory: bool, trace: str
) -> BaseException:
    """An error of a process, as nearly as possible what it was there."""
    kind: Any = MemoryError if memory else getattr(errors, name, None) or getattr(builtins, name, None)
    found: BaseException
    try:
        if not issubclass(kind, Exception):
            raise TypeError
        os_error = number is not None and issubclass(kind, OSError)
        found = kind(number, text, *([] if file is None else [file])) if os_error else kind(text)
    except TypeError:  # no class of an error, or one that takes more than a text
        found = RuntimeError(f"{name}: {text}")
    found.add_note(f"in process {rank + 1} of {size}:\n{trace}")
    return found
