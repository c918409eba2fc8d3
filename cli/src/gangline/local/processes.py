"""The process supervisor of the embedded platform.

One thread owns all children: it starts them (they die with it, PR_SET_PDEATHSIG), waits on their
pidfds, starts again what crashed, and stops them in reverse order. Readiness is asked in other
threads. Each turn of its loop:

1. see which children have ended, and decide when they start again;
2. take in the answers of readiness checks;
3. start what is due and whose dependencies are ready (or, when stopping, stop what nothing
   depends on any more);
4. ask for readiness where it is time to;
5. bound the log files;
6. sleep until the next deadline, exit or wake-up.
"""

import logging
import math
import os
import select
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gangline.local.children import Children
from gangline.local.leftovers import DataDirLock, end_strays
from gangline.local.log_file import MAX_BYTES
from gangline.local.process_model import (
    BackOff,
    Patience,
    ProcessSpec,
    ProcessStatus,
    SupervisorError,
)

_log = logging.getLogger(__name__)


class Supervisor:
    """Runs processes for one data directory, alone.

    Use it as a context manager: entering takes the directory's lock and ends what a killed
    predecessor left (SupervisorError when another supervisor is at work); leaving stops all.
    Logs are `<data_dir>/logs/NAME.log`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        back_off: BackOff | None = None,
        log_max_bytes: int = MAX_BYTES,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self._lock = DataDirLock(self.data_dir)
        self._changed = threading.Condition()
        self._children = Children(
            self.data_dir, back_off or BackOff(), log_max_bytes, self._changed, self._wake
        )
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1

    def __enter__(self) -> Self:
        """As `claim`."""
        self.claim()
        return self

    def __exit__(self, *_: object) -> None:
        """As `stop`."""
        self.stop()

    def claim(self) -> None:
        """Take the data directory and end leftovers; start the supervising thread."""
        self._lock.acquire()
        for pid in end_strays(self.data_dir):
            self._children.note("leftover", "stray", pid, "ended what an earlier run had left")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._children.open()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Add processes and start each as soon as what it depends on is ready; returns at once.

        May be called again with more. Raises SupervisorError when a name is taken or a
        dependency is unknown or cyclic.
        """
        with self._changed:
            self._check_alive()
            self._children.add(specs)
        self._wake()

    def status(self) -> list[ProcessStatus]:
        """Return a row for each process, in the order they were added."""
        with self._changed:
            if self._failure is not None:
                raise SupervisorError("the supervisor has failed") from self._failure
            return self._children.status()

    def wait_ready(self, timeout_s: float, names: Sequence[str] | None = None) -> None:
        """Return once the named processes (default: all) are ready at the same time.

        Raises SupervisorError with the tail of the log when one ended for good, crashes again and
        again, or when no further one became ready for `timeout_s` seconds. So on a busy machine
        all may come up later.
        """
        patience = Patience(timeout_s)
        with self._changed:
            while True:
                wanted = self._children.named(names)
                self._check_alive()
                pending = [child for child in wanted if not child.ready]
                if not pending:
                    return
                for child in wanted:
                    if not child.ready and self._children.is_hopeless(child):
                        raise SupervisorError(self._children.explain(child, "did not come up"))
                left_s = patience.left_s(len(pending), time.monotonic())
                if not self._changed.wait(left_s) and left_s <= 0:
                    late = next((c for c in pending if not self._children.awaited(c)), pending[0])
                    raise SupervisorError(
                        self._children.explain(late, f"was not ready within {timeout_s:.0f} s")
                    )

    def stop(self) -> None:
        """Stop all processes, dependents first, and free the data directory; may be repeated.

        SIGTERM, the spec's grace, SIGKILL. Interrupted (a second Ctrl-C), it kills at once.
        """
        thread = self._thread
        if thread is None:
            self._lock.release()
            return
        with self._changed:
            self._children.is_stopping = True
        self._wake()
        try:
            thread.join()
        except KeyboardInterrupt:
            self._children.kill_at_once = True
            self._wake()
            thread.join()
        self._thread = None
        self._children.close()
        end_strays(self.data_dir)
        os.close(self._wake_fd)
        self._wake_fd = -1
        self._lock.release()

    # The supervising thread

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    sleep_s = self._children.turn(time.monotonic())
                    descriptors = [c.pidfd for c in self._children if c.pidfd >= 0]
                    is_done = self._children.is_stopping and not descriptors
                if is_done:
                    return
                self._sleep(descriptors, sleep_s)
        except BaseException as error:  # noqa: BLE001  (no child may outlive its supervisor)
            _log.exception("the supervisor has failed; its processes are killed")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
                for child in self._children:
                    child.kill()

    def _sleep(self, descriptors: list[int], sleep_s: float) -> None:
        poller = select.poll()
        for descriptor in [self._wake_fd, *descriptors]:
            poller.register(descriptor, select.POLLIN)
        if any(fd == self._wake_fd for fd, _ in poller.poll(math.ceil(sleep_s * 1000))):
            os.eventfd_read(self._wake_fd)

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise SupervisorError(f"the supervisor has failed: {self._failure}")
        if self._thread is None or self._children.is_stopping:
            raise SupervisorError("the supervisor is not running")
