"""Work in a child process: it has a copy of all that its parent has, and takes no turn from it.

Threads share one interpreter lock: work of a second in a thread makes every other thread slower
for that second. A fork copies page tables (10 ms for each GB), and its work runs on another core,
at a lower priority. The child must not touch what other threads of its parent own: clients of the
bus, locks, logs. It is for pure work on frozen values.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Callable
from typing import NoReturn

_NICE = 10
_CHUNK = 1 << 16
_LENGTH = 8
_LONGER_S = 1.0
_DONE, _FAILED = b"+", b"-"


class TookTooLong(Exception):
    """The work was not done in its time, and was ended."""


class WorkFailed(Exception):
    """The work raised (the message is the name of its exception), or its process ended."""


def apart(work: Callable[[], bytes], within_s: float) -> bytes:
    """The result of `work`, done in a child process. May be called from any thread.

    Raises TookTooLong after `within_s`, and WorkFailed.
    """
    reading, writing = os.pipe()
    until_s = time.monotonic() + within_s
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        raise WorkFailed(f"no process could be started ({error.strerror})") from None
    if pid == 0:
        _work(work, writing, within_s)
    os.close(writing)
    try:
        answer = read_answer(reading, until_s)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if answer[:1] == _DONE:
        return answer[1:]
    raise WorkFailed(answer[1:].decode(errors="replace"))


def _work(work: Callable[[], bytes], writing: int, within_s: float) -> NoReturn:
    try:
        # It ends by itself if its parent does, and later than the parent's wait.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, within_s + _LONGER_S)
        os.closerange(3, writing)  # else the parent's connections stay open until the child ends
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        gc.disable()  # a collection would touch, and by that copy, every page
        os.nice(_NICE)
        try:
            answer = _DONE + work()
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            answer = _FAILED + type(error).__name__.encode()
        left = memoryview(len(answer).to_bytes(_LENGTH) + answer)
        while left:
            left = left[os.write(writing, left) :]
    finally:
        os._exit(0)


def read_answer(reading: int, until_s: float) -> bytes:
    """The child's answer. Raises TookTooLong and WorkFailed.

    It reads the length, not until the end of the pipe: other children may hold the pipe open.
    """
    answer = bytearray()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TookTooLong("it took too long and was ended")
        part = os.read(reading, _CHUNK)
        answer += part
        if len(answer) >= _LENGTH and len(answer) == _LENGTH + int.from_bytes(answer[:_LENGTH]):
            return bytes(answer[_LENGTH:])
        if not part:
            raise WorkFailed("the process ended")
