"""A process of `fewnlu.methods.distributed`: one device's part of a training. All ranks hold equal weights."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import queue
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.strategies import DDPStrategy
from torch import distributed

from fewnlu.determinism import seed_all
from fewnlu.methods.distributed import IGNORED, JOB, MEETING, RESULT, Job, save
from fewnlu.methods.looks import Measure
from fewnlu.methods.memory import give_back, out_of_memory, peaks, reset_peaks
from fewnlu.methods.method import Diverged, FewShotMethod
from fewnlu.methods.training import train

FOR_EVER = datetime.timedelta(days=7)  # whoever waits for a process that failed is ended by the caller


class _Voice:
    """Tells the calling process what happens; stands for the bar there, and for a logger's other end."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def say(self, **message: Any) -> None:
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()

    def step(self, done: int, note: str = "") -> None:
        self.say(step=done, note=note)


class _Mute:
    def step(self, done: int, note: str = "") -> None:
        pass


class _Relay(Logger):
    """Hands metrics to the loggers of the calling process."""

    name, version = "relay", ""

    def __init__(self, voice: _Voice) -> None:
        super().__init__()
        self.voice = voice

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.voice.say(metrics={k: float(v) for k, v in metrics.items()}, step=step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Strategy(DDPStrategy):
    """DDP whose processes find one another through a file, so that no port can be taken by somebody else."""

    def __init__(self, meeting: Path, world: int) -> None:
        # A method may leave parameters unused (P-tuning's slots on a row without any, a head that only scores). All
        # ranks read the same file, so there is nothing to send around before the first update, nor are there buffers
        # that training changes.
        super().__init__(find_unused_parameters=True, init_sync=False, broadcast_buffers=False)
        self.meeting, self.world = meeting, world

    def setup_distributed(self) -> None:
        self.set_world_ranks()
        if distributed.is_initialized():  # by an earlier training of these processes
            return
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the machine's name resolves to
        # Not by its URL: torch would look for a folder with a space in it under "%20".
        store = distributed.FileStore(str(self.meeting), self.world)
        store.set_timeout(FOR_EVER)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if self.root_device.type == "cuda" else "gloo",
            store=store,
            rank=self.global_rank,
            world_size=self.world,
            timeout=FOR_EVER,
        )


class _Shared(Measure):
    """Each rank scores its share of the dev rows; rank 0 judges, so that all ranks stop at the same update."""

    def __call__(self, module: FewShotMethod) -> tuple[float, np.ndarray]:
        rank, world = distributed.get_rank(), distributed.get_world_size()
        whole, parts = self.rows, [np.zeros((0, 0)) for _ in range(world)]
        self.rows = whole[rank::world]
        try:
            mine = self.scores(module) if self.rows else np.zeros((0, 0))
        finally:
            self.rows = whole
        distributed.all_gather_object(parts, mine)
        values = np.full((len(whole), max(part.shape[1] for part in parts)), -np.inf)
        for i, part in enumerate(parts):
            values[i::world, : part.shape[1]] = part
        score = [float(self.dev_score(values, whole)) if rank == 0 else 0.0]
        distributed.broadcast_object_list(score, src=0)
        return score[0], values


def _work(folder: Path, meeting: Path, rank: int, world: int, voice: _Voice) -> None:
    # The caller wrote this file a moment ago, into a folder of its own; mapped, frozen weights are in memory once.
    job: Job = torch.load(folder / JOB, mmap=True, weights_only=False)
    torch.set_num_threads(job.threads)
    # Draws of the ranks (dropout) differ, and depend on nothing but the run's seed and the rank.
    seed_all(int(hashlib.sha256(f"{job.data.stream.seed} {rank}".encode()).hexdigest()[:8], 16))
    job.data.rank = rank
    dtypes = _dtypes(job.method)
    flags = {**job.flags, "strategy": _Strategy(meeting, world), "use_distributed_sampler": False}
    measure = _Shared(job.measure.table, job.measure.rows, job.measure.dev_score, job.measure.eval_batch)
    first = rank == 0
    found = train(
        job.method,
        job.data,
        job.rules,
        measure,
        voice if first else _Mute(),
        flags=flags,
        loggers=[_Relay(voice)] if first and job.logged else [],
        total=job.total,
        keeps=first,
    )
    if found.diverged is not None and not isinstance(found.diverged, Diverged):
        raise found.diverged  # of this process alone: the others know nothing of it
    if not first:
        return
    now = _dtypes(job.method)
    result = {
        "rules": [asdict(rule) for rule in found.rules],
        "steps": found.steps,
        "weights": {step: _on_cpu(state) for step, state in found.weights.items()},
        "dev_scores": {step: torch.from_numpy(values) for step, values in found.dev_scores.items()},
        "diverged": str(found.diverged) if found.diverged else None,
        "last": None if found.rules or found.diverged else _on_cpu(job.method.snapshot()),
        "device": str(job.method.device),
        "dtype": now.pop() if len(now) == 1 and now != dtypes else None,  # trainer.precision=bf16-true
        "most_rows": measure.table.most_rows,
    }
    save(result, folder / RESULT)


def _dtypes(method: FewShotMethod) -> set[torch.dtype]:
    return {p.dtype for p in method.parameters()}


def _on_cpu(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in state.items()}


def _follow(jobs: queue.Queue[str], folder: Path) -> None:
    """Take jobs from standard input; where it ends, the caller has."""
    for line in sys.stdin:
        jobs.put(line.rstrip("\n"))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Train what standard input names, until it ends."""
    folder, rank, world = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    voice = _Voice(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what anybody prints is not for the caller
    for one in IGNORED:
        signal.signal(one, signal.SIG_IGN)
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_follow, args=(jobs, folder), daemon=True).start()
    while True:
        job = Path(jobs.get())
        try:
            reset_peaks()
            _work(job, folder / MEETING, rank, world, voice)
            give_back()
            voice.say(done=peaks())
        except BaseException as err:
            voice.say(
                error={
                    "name": type(err).__name__,
                    "text": str(err.args[1]) if isinstance(err, OSError) and len(err.args) > 1 else str(err),
                    "number": getattr(err, "errno", None),
                    "file": None if (file := getattr(err, "filename", None)) is None else str(file),
                    "memory": out_of_memory(err),
                    "trace": traceback.format_exc(),
                }
            )
