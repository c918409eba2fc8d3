"""Writing past the page cache: the disk reads the memory itself, while the bytes are hashed.

A plain write copies each byte once more, and a large one is slowed down by the kernel's limits on
dirty pages; both cost the training that runs beside it. What is read back later comes from the
disk, not from a cached page that was never written.
"""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from mmap import PAGESIZE

import numpy as np
import xxhash

DIRECT_BYTES = 32 << 20  # a write; the disk has the next one while this one is waited for
WORTH_IT_BYTES = 1 << 20  # below, a plain write is as quick


def write_pages(target: int, data: memoryview, digest: xxhash.xxh3_128) -> int:
    """Write the whole pages of `data` at the start of a new file and hash them; gives how many.

    Gives 0, with nothing hashed, where that is not possible (memory that does not begin with a
    page, a file system without direct writes) or not worth it: write all of it plainly then.
    Raises OSError (no space, ...).
    """
    whole = len(data) // PAGESIZE * PAGESIZE
    if whole < WORTH_IT_BYTES or np.frombuffer(data, np.uint8).ctypes.data % PAGESIZE:
        return 0
    flags = fcntl.fcntl(target, fcntl.F_GETFL)
    try:
        fcntl.fcntl(target, fcntl.F_SETFL, flags | os.O_DIRECT)
        _write_at(target, data[:PAGESIZE], 0)
    except OSError:  # not here; if the disk is full, the plain write will say so
        fcntl.fcntl(target, fcntl.F_SETFL, flags)
        return 0
    with ThreadPoolExecutor(1, thread_name_prefix="gangline-write") as writer:
        writing = [writer.submit(int)]
        for start in range(0, whole, DIRECT_BYTES):
            part = data[start : min(whole, start + DIRECT_BYTES)]
            writing.append(writer.submit(_write_at, target, part, start))
            digest.update(part)
            writing.pop(0).result()
        writing.pop().result()
    fcntl.fcntl(target, fcntl.F_SETFL, flags)
    os.lseek(target, whole, os.SEEK_SET)
    return whole


def _write_at(target: int, data: memoryview, offset: int) -> int:
    """Write all of it at a place of the file; gives where it ends."""
    while data:
        count = os.pwrite(target, data, offset)
        data, offset = data[count:], offset + count
    return offset
