"""Kill a sweep again and again, give the same command again, and compare with a sweep that nobody killed.

    python -m benchmarks.crash --kills 200            random moments, then once before and inside each write
    python -m benchmarks.crash --kills 10 --no-writes
    python -m benchmarks.crash --sigkill              SIGKILL alone at the random moments, else SIGTERM and SIGUSR too

Every attempt is a process of its own, forked from this one so that torch is imported once. After each kill every
result that is there must be one of the undisturbed sweep's, byte for byte; at the end all of them, and no other.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

COMPARED = ("result.json", "predictions.parquet")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def warm() -> None:
    """Import what a sweep imports, one thread, so that forks start at once."""
    import torch

    torch.set_num_threads(1)
    import pyarrow.parquet  # noqa: F401
    import pytorch_lightning.loggers  # noqa: F401
    import transformers.models.bert.modeling_bert
    import transformers.models.bert.tokenization_bert  # noqa: F401

    import fewnlu.protocol.check
    import fewnlu.protocol.lab
    import fewnlu.reporting.tables
    import fewnlu.train  # noqa: F401


def command(model: Path) -> list[str]:
    """A sweep of four runs in two jobs on a tiny random model."""
    return [
        *("+method=pet", "model=local", f"model_args.path={model}", "data.n_labeled=16", "data.limit_test=12"),
        *("hp.max_steps=2", "hp.eval_ratio=0.5", "hp.lr=1e-4,1e-3", "hp.pattern=0", "split.k=2", "search=none"),
        *("runtime.threads=1", "logger=csv", "-m"),
    ]


@dataclass
class Place:
    """A working directory in which one command is given again and again."""

    folder: Path
    argv: list[str]
    log: list[str] = field(default_factory=list)

    @property
    def sweep(self) -> Path:
        return self.folder / "multirun" / "main"

    def start(self, before: Callable[[], None] | None = None) -> int:
        """Fork the command; returns its process id."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            os.chdir(self.folder)
            out = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for number in (1, 2):
                os.dup2(out, number)
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            sys.argv = ["train.py", *self.argv]
            if before is not None:
                before()
            from fewnlu.train import main

            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def run(self, before: Callable[[], None] | None = None) -> int:
        """The command to its end; its exit status, negative where a signal ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.start(before), 0)[1])

    def killed_after(self, seconds: float, number: int = signal.SIGKILL) -> bool:
        """Start, send a signal after so many seconds; whether it came before the end."""
        pid = self.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert os.waitstatus_to_exitcode(status) == 0, (self.folder / "log.txt").read_text()[-3000:]
                return False
            time.sleep(0.002)
        os.kill(pid, number)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0

    def records(self) -> dict[str, str]:
        """Path below the sweep -> hash, of the files that must not differ."""
        found = [p for name in COMPARED for p in self.sweep.rglob(name)]
        return {str(p.relative_to(self.sweep)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(found)}

    def left_over(self) -> list[str]:
        """Files of a finished sweep that should be gone: temporary ones and starts without an end."""
        found = [*self.sweep.rglob(".*.json.*"), *self.sweep.rglob(".*.parquet.*"), *self.sweep.rglob("started.json")]
        return [str(p.relative_to(self.sweep)) for p in found]


def kill_at_event(sweep: Path, number: int) -> Callable[[], None]:
    """Kill this process before its n-th change of the sweep's tree (open for writing, rename, remove, new folder)."""

    def install() -> None:
        seen = 0
        here = str(sweep)

        def hook(event: str, args: tuple[object, ...]) -> None:
            nonlocal seen
            if event == "open":
                path, mode, flags = args[0], args[1], args[2]
                changes = bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)) or "w" in str(mode or "")
            elif event in {"os.rename", "os.remove", "os.mkdir"}:
                path, changes = args[0], True
            else:
                return
            if changes and isinstance(path, (str, os.PathLike)) and str(path).startswith(here):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    return install


def kill_inside_write(number: int) -> Callable[[], None]:
    """Kill this process in the middle of its n-th record file: half of its bytes are in the temporary file."""

    def install() -> None:
        seen = 0
        real = os.fsync

        def fsync(handle: int) -> None:
            nonlocal seen
            seen += 1
            if seen == number:
                os.truncate(handle, os.fstat(handle).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            real(handle)

        os.fsync = fsync

    return install


class Crash:
    """The undisturbed sweep, and attempts to spoil another one.

    Args:
        work: an empty folder.
        say: takes lines of the log.

    Attributes:
        states: what `report status` has told of runs after a kill.
    """

    def __init__(self, work: Path, say: Callable[[str], None] = print) -> None:
        from tests.tiny import tiny_model_dir

        self.work, self.say = work, say
        self.states: set[str] = set()
        self.argv = command(tiny_model_dir(work / "models", "bert"))
        warm()
        calm = Place(work / "calm", self.argv)
        begun = time.monotonic()
        assert calm.run() == 0, (calm.folder / "log.txt").read_text()[-3000:]
        self.seconds = time.monotonic() - begun
        self.expected = calm.records()
        assert len(self.expected) == 4 * len(COMPARED)
        say(f"undisturbed: {self.seconds:.2f} s, {len(self.expected)} files")

    def fresh(self) -> Place:
        shutil.rmtree(self.work / "killed", ignore_errors=True)
        return Place(self.work / "killed", self.argv)

    def check(self, place: Place, whole: bool) -> None:
        """What is there is right; and where the sweep is whole, all is there and nothing else."""
        found = place.records()
        results = {p: h for p, h in found.items() if p.endswith("result.json")}
        wrong = [p for p, h in results.items() if self.expected.get(p) != h]
        assert not wrong, f"differs from the undisturbed sweep: {wrong}"
        if whole:
            assert found == self.expected, sorted(set(found) ^ set(self.expected))
            assert not place.left_over(), place.left_over()

    def told(self, place: Place) -> set[str]:
        """States of the runs as `report status` tells them; nobody works on them now."""
        from fewnlu.reporting.status import read_status

        found = {run.state for run in read_status(place.sweep).runs}
        assert found <= {"done", "interrupted", "missing"}, found
        return found

    def finish(self, place: Place) -> None:
        code = place.run()
        assert code == 0, (place.folder / "log.txt").read_text()[-3000:]
        self.check(place, whole=True)

    def random_kills(self, kills: int, seed: int, signals: tuple[int, ...] = SIGNALS) -> int:
        """Kill at random moments; a sweep that gets whole in spite of it is checked and begun anew. Returns sweeps."""
        draw = random.Random(seed)
        place, done, sweeps = self.fresh(), 0, 0
        while done < kills:
            after, number = draw.uniform(0, 1.1 * self.seconds), draw.choice(signals)
            if place.killed_after(after, number):
                done += 1
                self.check(place, whole=False)
                self.states |= self.told(place)
                n = sum(p.endswith("result.json") for p in place.records())
                self.say(f"kill {done}: {signal.Signals(number).name} after {after:.2f} s, {n} of 4 runs are there")
            else:
                self.check(place, whole=True)
                sweeps += 1
                place = self.fresh()
        self.finish(place)
        return sweeps + 1

    def kills_at_writes(self, make: Callable[[int], Callable[[], None]], name: str, step: int = 1) -> int:
        """Kill once at each write of a sweep, each time on a fresh folder; returns how many there are."""
        number = 1
        while True:
            place = self.fresh()
            code = place.run(make(number))
            if code == 0:  # fewer writes than that
                self.check(place, whole=True)
                return (number - 1) // step
            assert code == -signal.SIGKILL, (place.folder / "log.txt").read_text()[-3000:]
            self.check(place, whole=False)
            self.finish(place)
            self.say(f"{name} {number}: killed, same command again: whole")
            number += step


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-writes", action="store_true")
    parser.add_argument("--sigkill", action="store_true", help="no other signal at the random moments")
    args = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fewnlu-crash-") as name:
        crash = Crash(Path(name))
        sweeps = crash.random_kills(args.kills, args.seed, SIGNALS[:1] if args.sigkill else SIGNALS)
        print(f"{args.kills} kills at random moments in {sweeps} sweeps: every result equal, none lost, none twice")
        if not args.no_writes:
            sweep = crash.fresh().sweep
            n = crash.kills_at_writes(lambda i: kill_at_event(sweep, i), "before write")
            print(f"{n} kills, one before each change of the sweep's tree: the same")
            n = crash.kills_at_writes(kill_inside_write, "inside write")
            print(f"{n} kills, one inside each file written: the same")
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
