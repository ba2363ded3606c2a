"""A worker of joblib's that holds a model goes on to the next job."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from fewnlu.protocol.machine import stay

HELD: list[Any] = []


def grow(stays: bool) -> int:
    """A job that keeps 400 MB, and lasts longer than joblib waits between two looks at the memory."""
    if stays:
        stay()
    HELD.append(bytearray(os.urandom(1)) * 400_000_000)
    time.sleep(1.2)
    return os.getpid()


@pytest.mark.filterwarnings("ignore:A worker stopped")
@pytest.mark.parametrize("stays", [True, False])
def test_a_worker_that_has_grown_is_kept(stays: bool) -> None:
    if not stays:
        pytest.importorskip("psutil", reason="joblib looks at memory through psutil, which is not installed")
    try:
        pids = Parallel(n_jobs=2)(delayed(grow)(stays) for _ in range(5))
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)
    assert (len(set(pids)) == 2) is stays, "joblib may have got a setting for this: see fewnlu.protocol.machine.stay"
