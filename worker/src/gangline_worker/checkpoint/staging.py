"""The memory that a save is copied to: of whole pages, touched, and reused for every save."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable

import torch


def staging(size_bytes: int, *, pinned: bool) -> torch.Tensor:
    """So many bytes at a page's start, all touched; pinned for copies from a GPU.

    Pages are large ones where the system has them: copying into them is faster.
    """
    if pinned:
        region = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    else:
        pages = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        region = torch.frombuffer(pages, dtype=torch.uint8)[:size_bytes]
    return region.zero_()


def move_together(region: torch.Tensor, spans: Iterable[tuple[int, int]]) -> int:
    """Move these spans of the region, which ascend, to its start; gives how many bytes they are.

    Other threads run meanwhile: the interpreter lock is not held.
    """
    first, end = region.data_ptr(), 0
    for start, stop in spans:
        if start != end:
            ctypes.memmove(first + end, first + start, stop - start)
        end += stop - start
    return end
