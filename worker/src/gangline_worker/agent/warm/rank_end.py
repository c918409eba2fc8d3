"""The end of a forked rank: what an interpreter promises for it, and no more.

To take the whole interpreter apart would touch, and by that copy, every page that the rank shares
with the zygote: 1.4 s of CPU, for which its GPUs or slots would wait.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import IO, NoReturn

_NOT_FLUSHED = 120  # the interpreter's own code for it


def run_and_end(program: Callable[[], object]) -> NoReturn:
    """Run the program, which ends with SystemExit or returns, and end this process with its code.

    In between, in turn: wait for threads that are no daemons; call what was registered for the end;
    write out what is still in the buffers of files, of the standard streams and of C.
    """
    code = 0
    try:
        program()
    except SystemExit as ended:
        code = _code(ended)
    threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 -- as multiprocessing does
    atexit._run_exitfuncs()  # noqa: SLF001
    for found in gc.get_objects():  # none of the zygote's, which are frozen
        if issubclass(type(found), io.IOBase):
            with contextlib.suppress(Exception):
                found.flush()
    if not all([_flush(sys.stdout), _flush(sys.stderr)]):
        code = _NOT_FLUSHED
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _code(ended: SystemExit) -> int:
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _flush(stream: IO[str] | None) -> bool:
    """Whether nothing of it is lost."""
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except Exception:  # noqa: BLE001 -- a program may have put anything there
        return False
    return True
