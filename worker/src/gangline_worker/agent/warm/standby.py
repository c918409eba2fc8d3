"""An interpreter that has torch imported already, and becomes one rank: a warm start on GPUs.

`python -m gangline_worker.agent.warm.standby FD`: FD is the socket of requests (`rank`).
It is for nodes with GPUs, where a rank must be a process of its own from the start. It has not
touched a GPU when it becomes the rank: which ones are the rank's is read from its environment when
the driver is first called. That is looked at, not assumed: see `gpu_files`.

Only a rank with a sandbox has to be born there, so for that one it forks, once, and ends.

While it imports it gives way to the ranks that run, where the system lets it come back.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from . import warm_up
from .fresh import run
from .rank import answer, become, begin, receive, refusal
from .zygote import fork_twice

_NICER_BY = 10
_CAP_SYS_NICE = 23


def main() -> None:
    """Wait to be a rank until the agent goes; this returns when the rank's program has ended."""
    control, agent = begin()
    with _giving_way():
        warm_up.import_modules()
        loaded = warm_up.settle()
    if found := gpu_files():
        answer(control, unfit=f"what it imported has opened {', '.join(sorted(found))}")
        return
    answer(control, ready=True)
    while (received := receive(control)) is not None:
        request, descriptors = received
        refused = refusal(request, loaded)
        if refused is None:
            try:
                pid = fork_twice(descriptors[3]) if len(descriptors) > 3 else 0
            except OSError as error:
                refused = f"it cannot fork: {error}"
            else:
                if pid:
                    answer(control, pid=pid)
                    os._exit(0)
                if len(descriptors) == 3:
                    answer(control, pid=os.getpid())
                control.close()
                become(request, descriptors, agent)
                atexit.register(gc.unfreeze)  # else libraries complain of leaks at the end
                run(request.arguments)
                return
        answer(control, refused=refused)
        for descriptor in descriptors:
            os.close(descriptor)


def gpu_files(process: Path = Path("/proc/self")) -> set[str]:
    """The devices of GPUs that a process has open: none, as long as it has not called a driver."""
    found = set()
    for entry in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return {path for path in found if path.startswith("/dev/nvidia")}


@contextlib.contextmanager
def _giving_way() -> Iterator[None]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if not _may_return_to(before):
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, before + _NICER_BY)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, before)


def _may_return_to(niceness: int) -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_NICE)
    status = Path("/proc/self/status").read_text("ascii")
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    raised = limit == resource.RLIM_INFINITY or limit >= 20 - niceness
    return raised or bool(capabilities >> _CAP_SYS_NICE & 1)


if __name__ == "__main__":
    main()
