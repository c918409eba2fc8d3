"""Profiles of data: making one of 100,000 rows of 20 columns, and comparing two.

- `profile_s`: numbers, counts and categories; `profile_compare_ms`: all columns of two profiles.

These are CPU times of the thread.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
from harness import Context, Result

from gangline_registry.core.profile_difference import differences
from gangline_registry.core.profiling import profile_of
from gangline_schemas.gate_file import DriftLimits

ROWS = 100_000


def columns(random: np.random.Generator) -> dict[str, object]:
    """10 normal, 4 exponential and 2 Poisson columns, and 4 with 50 categories."""
    shares = np.arange(1, 51, dtype=float) / 1275
    made: dict[str, object] = {f"n{i}": random.normal(size=ROWS) for i in range(10)}
    made |= {f"e{i}": random.exponential(size=ROWS) for i in range(4)}
    made |= {f"z{i}": random.poisson(1.2, ROWS).astype(float) for i in range(2)}
    return made | {
        f"c{i}": [f"v{one}" for one in random.choice(50, ROWS, p=shares)] for i in range(4)
    }


def run(context: Context) -> list[Result]:
    """All of it."""
    random = np.random.default_rng(1)
    profiles, made_s, compared_ms = [], [], []
    for _ in range(context.repeats(5, 2)):
        table = columns(random)
        began = time.thread_time()
        profiles.append(profile_of(table, ROWS))  # type: ignore[arg-type]
        made_s.append(time.thread_time() - began)
    for one, other in pairwise(profiles):
        began = time.thread_time()
        assert differences(one, other, DriftLimits()) == []
        compared_ms.append((time.thread_time() - began) * 1000)
    return [
        context.median("profile_s", made_s, "s"),
        context.median("profile_compare_ms", compared_ms, "ms"),
    ]
