"""Seeds, and what has to be set before torch is loaded so that numbers do not depend on the number of threads.

MKL splits the inner sums of large products over its threads, so a training on two threads and one on a single thread
drift apart in the last bits, and a sweep under joblib (one thread a job) would differ from the same sweep alone. Its
mode of conditional numerical reproducibility forbids that; on the models measured here it costs nothing.
"""

from __future__ import annotations

import os
import random


def before_torch() -> None:
    """Set the environment of the numerical libraries; what the user has set stays."""
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    # With one core busy elsewhere, threads that wait by spinning slow each other down several times.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices); quietly, unlike lightning's seed_everything."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products on CUDA
