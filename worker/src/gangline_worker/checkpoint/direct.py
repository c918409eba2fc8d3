"""Writing past the page cache: the disk reads the memory itself.

A plain write copies each byte once more, and a large one is slowed down by the kernel's limits on
dirty pages; both cost the training that runs beside it. Later reads come from the disk, not from a
cached page that was never written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import PAGESIZE

import numpy as np

WORTH_IT_BYTES = 1 << 20  # below, a plain write is as quick


@contextmanager
def past_page_cache(target: int, data: memoryview) -> Iterator[None]:
    """Within it, writes of whole pages of `data` to a new file go past the page cache.

    Not where that is impossible (memory that does not begin with a page or that the disk may not
    read, a file system without direct writes) or not worth it: they are plain ones then.
    """
    flags = fcntl.fcntl(target, fcntl.F_GETFL)
    if len(data) >= WORTH_IT_BYTES and not np.frombuffer(data, np.uint8).ctypes.data % PAGESIZE:
        try:
            fcntl.fcntl(target, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.pwrite(target, data[:PAGESIZE], 0)  # some say so only now; it is overwritten
        except OSError:  # not here; if the disk is full, the next write will say so
            fcntl.fcntl(target, fcntl.F_SETFL, flags)
    try:
        yield
    finally:
        fcntl.fcntl(target, fcntl.F_SETFL, flags)
