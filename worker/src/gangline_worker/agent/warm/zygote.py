"""The process that has torch imported already, and forks ranks from itself: a warm start.

`python -m gangline_worker.agent.warm.zygote FD`: FD is the socket of requests (`rank`).

A rank is forked twice, so that its parent ends and the agent, a subreaper, becomes its parent: the
agent collects its status and its death is the rank's (PDEATHSIG).

Fork is safe here because this process has one thread, which is checked before each fork. It sees
no GPU (`NO_GPUS`) and does not ask CUDA's driver for any, whose answer leaves a thread. A rank with
GPUs is refused; one without trains on the CPU.
"""

from __future__ import annotations

import os
from functools import partial

from gangline_worker.agent.isolation.sandbox import turn_to

from . import warm_up
from .fresh import run
from .rank import WarmRequest, answer, become, begin, receive, refusal
from .rank_end import run_and_end

NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
"""Variables that it is started with."""


def main() -> None:
    """Serve until the agent goes."""
    control, agent = begin()
    warm_up.import_modules()
    warm_up.take_a_step()
    loaded = warm_up.settle()
    answer(control, ready=True)
    while True:
        received = receive(control)
        if received is None:
            return
        request, descriptors = received
        refused = gpu_refusal(request) or refusal(request, loaded)
        if refused is None:
            try:
                pid = fork_twice(descriptors[3] if len(descriptors) > 3 else None)
            except OSError as error:
                refused = f"it cannot fork: {error}"
            else:
                if pid == 0:
                    control.close()
                    become(request, descriptors, agent)
                    run_and_end(partial(run, request.arguments))
                answer(control, pid=pid)
        if refused is not None:
            answer(control, refused=refused)
        for descriptor in descriptors:
            os.close(descriptor)


def gpu_refusal(request: WarmRequest) -> str | None:
    """Why a fork of this process cannot be a rank for it; None when it can."""
    if request.environment.get("CUDA_VISIBLE_DEVICES"):
        return "it is given GPUs, which a forked process cannot use"
    return None


def fork_twice(sandbox: int | None) -> int:
    """0 in the rank, its pid in this process, once the agent is its parent. Born in `sandbox`.

    Raises OSError, in this process, when the rank does not start.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb", 0) as writer:
        child = os.fork()
        if child == 0:
            try:
                if sandbox is not None:
                    turn_to(sandbox)
                pid = os.fork()
                if pid == 0:
                    return 0
                os.write(writing, pid.to_bytes(4, "big"))
            except OSError:
                os._exit(1)
            os._exit(0)
        writer.close()
        os.waitpid(child, 0)
        pid = int.from_bytes(reader.read(4), "big")
    if pid == 0:
        raise ChildProcessError("the process between could not")
    return pid


if __name__ == "__main__":
    main()
