"""Assumptions about a GPU model: the speed of its memory, and the share of its peak.

Speeds are those of NVIDIA's data sheets. With the shares, estimates match published runs at the
median: see docs/guides/plan-layouts.md.
"""

from __future__ import annotations

from gangline_schemas.gpus import covered

_MEMORY_GB_S = {
    "a100-40gb": 1555, "a100-80gb": 2039, "a800-40gb": 1555, "a800-80gb": 2039, "a30": 933,
    "a40": 696, "b200": 8000, "b300": 8000, "gb200": 8000, "gb300": 8000, "gh200-96gb": 4000,
    "gh200-144gb": 4900, "h100-80gb": 3350, "h100-94gb": 3900, "h200": 4800,
    "h800": 3350, "l4": 300, "l40": 864, "l40s": 864, "rtx-3090": 936, "rtx-4090": 1008,
    "rtx-5090": 1792, "rtx-6000-ada": 960, "rtx-a6000": 768,
}  # fmt: skip
_AMPERE_KERNELS, _KERNELS = 0.6, 0.5


def memory_gb_s(gpu: str) -> float | None:
    """GB/s of the memory of a GPU model, by any of its exact spellings; None if not known."""
    return _MEMORY_GB_S.get(covered(gpu)[0])


def kernels(gpu: str) -> float:
    """The share of the peak at which matrices and attention compute.

    An H100 reaches less of its peak than an A100. Later models are assumed to be like an H100.
    """
    return _AMPERE_KERNELS if covered(gpu)[0].startswith(("a100", "a800")) else _KERNELS
