"""A sweep killed at random moments and inside writes, repeated until whole, equals an undisturbed one, byte for byte.

Ten kills with fixed seeds here; two hundred, and one at each write, by `python -m benchmarks.crash`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import sys
from pathlib import Path
from benchmarks.crash import Crash, kill_at_event, kill_inside_write
crash = Crash(Path(sys.argv[1]))
crash.random_kills(10, seed=1)
assert "interrupted" in crash.states, crash.states
sweep = crash.fresh().sweep
place = crash.fresh()
for kill in (kill_at_event(sweep, 9), kill_inside_write(7), kill_at_event(sweep, 33)):  # all others: the script's
    assert place.run(kill) == -9
    crash.check(place, whole=False)
crash.finish(place)
# two sweeps started at once in one folder both end whole
place = crash.fresh()
both = [place.start(), place.start()]
import os
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in both] == [0, 0]
crash.check(place, whole=True)
print("all equal")
"""


def test_a_killed_sweep_given_again_equals_an_undisturbed_one(tmp_path):
    """Faults I087, I091, I103, I110: also after SIGTERM, SIGUSR1 and SIGUSR2; and two sweeps at once in one folder."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "FEWNLU_QUIET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("all equal")
