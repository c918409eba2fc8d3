"""Model FLOP utilization (MFU): FLOP/s that the model needs over the dense peak of its devices.

The peak is that of the data sheet. Only where none is known is a matrix product measured, which
stays below it, so that utilization looks higher: a `Peak` says so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from gangline_schemas.gpus import Precision, peak_flops

_FIRST_S, _AGAIN_S = 0.3, 0.05  # of probing, at each start
_PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


@dataclass(frozen=True, slots=True)
class Peak:
    """FLOP/s of one device, and whether they were measured for want of a data sheet."""

    flops: float
    measured: bool


def mfu(flops: float, seconds: float, *, dtype: torch.dtype | None = None) -> dict[str, float]:
    """The metric `mfu` of one step, to report with its others.

    ```python
    report({"loss": loss} | mfu(6 * parameters * tokens, step_s), step)
    ```

    `flops` are those that the model needs for the step's whole batch, of all ranks: forward and
    backward, without recomputation. `seconds` is the step's time, `dtype` that of the matrix
    products; None: bfloat16 on a GPU, else float32. All ranks count as this rank's device. If no
    data sheet's peak is known, one is measured at the first call, and `mfu_peak_measured` is 1.
    Raises ValueError if `seconds` is not above 0.
    """
    if not seconds > 0:
        raise ValueError(f"mfu: the step took {seconds} s; give the seconds that it really took")
    peak = _own_peak(dtype)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    found = {"mfu": flops / (seconds * ranks * peak.flops)}
    return found | {"mfu_peak_measured": 1.0} if peak.measured else found


@functools.cache
def _own_peak(dtype: torch.dtype | None) -> Peak:
    """That of this rank's device."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    return peak_of(device, dtype or (torch.bfloat16 if gpu else torch.float32))


def peak_of(device: torch.device, dtype: torch.dtype) -> Peak:
    """The base of MFU for matrix work in `dtype`.

    float32 counts as TF32 where torch may use it (`torch.set_float32_matmul_precision`).
    """
    if device.type == "cuda":
        precision = _PRECISIONS.get(dtype)
        if precision == "fp32" and torch.get_float32_matmul_precision() != "highest":
            precision = "tf32"
        name = torch.cuda.get_device_name(device)
        known = None if precision is None else peak_flops(name, precision)
        if known is not None:
            return Peak(known, measured=False)
    return Peak(_peak_of_this_host(device, dtype), measured=True)


def measured_peak(device: torch.device, dtype: torch.dtype, budget_s: float) -> float:
    """FLOP/s of square matrix products on one device, with as many threads as training has."""
    size = 8192 if device.type == "cuda" else 512
    drawn = torch.Generator(device).manual_seed(0)  # the run's own numbers are not drawn from
    a = torch.randn(size, size, device=device, generator=drawn).to(dtype)
    b = torch.randn(size, size, device=device, generator=drawn).to(dtype)
    best, ends = 0.0, time.perf_counter() + budget_s
    for attempt in range(1000):
        _synchronize(device)
        started = time.perf_counter()
        torch.mm(a, b)
        _synchronize(device)
        taken = time.perf_counter() - started
        if attempt:  # the first one sets things up
            best = max(best, 2.0 * size**3 / taken)
        if time.perf_counter() > ends and attempt > 1:
            break
    return best


def _cache_file() -> Path:
    """Where peaks are kept. Raises RuntimeError for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named).expanduser() / "gangline" / "peak-flops.json"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_of_this_host(device: torch.device, dtype: torch.dtype) -> float:
    """The best peak ever measured here, in FLOP/s per device.

    A probe on a busy machine gives too little. So each start probes for a moment, and the best is
    stored in the user's cache folder, which outlives a job's attempts. Without a home folder this
    start's probe counts alone.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    key = f"{platform.node()}/{name}/{dtype}/{torch.get_num_threads()}".replace("torch.", "")
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        known = {str(k): float(v) for k, v in json.loads(_cache_file().read_text()).items()}
    before = known.get(key, 0.0)
    seen = measured_peak(device, dtype, _AGAIN_S if before else _FIRST_S)
    if seen <= before:
        return before
    known[key] = seen
    with contextlib.suppress(OSError, RuntimeError):
        cache = _cache_file()
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(known))
        partial.replace(cache)
    return known[key]
