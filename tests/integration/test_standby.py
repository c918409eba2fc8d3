"""Standbys: interpreters that wait with torch imported, and become ranks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline_worker.agent.isolation.sandbox import (
    Confinement,
    Mounts,
    begin_sandbox,
    finish_sandbox,
)
from gangline_worker.agent.runtime.launcher import become_subreaper
from gangline_worker.agent.warm.standby import gpu_files
from gangline_worker.agent.warm.standby_host import StandbyPool
from support.harnesses.node import alive
from support.harnesses.warm_ranks import PROBE, Ranks, write
from support.waiting import until

LOOKS = """
    import os, resource, sys
    torch = sys.modules.get("torch")
    print(torch is not None, os.getpid(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if torch is not None:
        print("cuda", torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())
    sys.exit(3)
"""


@contextmanager
def pool_of_one(folder: Path) -> Iterator[StandbyPool]:
    become_subreaper()
    pool = StandbyPool(folder, 1)
    pool.start()
    try:
        until(ticked(pool, lambda: len(pool.ready) == 1), "no standby became ready")
        yield pool
    finally:
        pool.stop()


def ticked(pool: StandbyPool, condition: Callable[[], bool]) -> Callable[[], bool]:
    def found() -> bool:
        pool.tick()
        return condition()

    return found


def test_a_standby_becomes_what_a_fresh_interpreter_is_and_another_takes_its_place(
    tmp_path: Path,
) -> None:
    write(tmp_path, {"job/__init__.py": "", "job/main.py": PROBE, "look.py": LOOKS})
    with pool_of_one(tmp_path) as pool:
        ranks = Ranks(tmp_path, pool)
        (standby,) = pool.ready
        assert gpu_files(Path(f"/proc/{standby}")) == set()

        # What needs a fresh interpreter leaves it waiting.
        ranks.start(0, ["python", "look.py"], PYTHONPATH="/nowhere")
        assert ranks.end(0).code == 3
        assert ranks.lines[0][0].startswith("False ")
        assert pool.ready == (standby,)

        command = ["python", "-m", "job.main", "-x", "1"]
        assert ranks.start(1, command, COLOUR="green") == standby
        ranks.start(2, command, warm=False, COLOUR="green")
        warm, cold = ranks.probed(1), ranks.probed(2)
        assert warm.pop("warm")
        assert not cold.pop("warm")
        assert warm == cold
        assert warm["parent"] == os.getpid()

        # No process waits now; then one does again, and never two.
        ranks.start(3, ["python", "look.py"])
        assert ranks.end(3).code == 3
        assert ranks.lines[3][0].startswith("False ")
        until(ticked(pool, lambda: len(pool.pids) == 1))
        (second,) = pool.pids
        assert second != standby
        pool.tick()
        assert pool.pids == (second,)
        os.kill(second, signal.SIGKILL)
        until(ticked(pool, lambda: pool.pids == ()), "a dead one was counted")


def may_make_namespaces() -> bool:
    """Whether the system lets this user, as its own tool finds out."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "--pid", "--ipc", "--fork", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_make_namespaces(), reason="this user may make no namespaces here")
def test_a_rank_with_a_room_is_born_there_and_its_standby_ends(tmp_path: Path) -> None:
    write(tmp_path, {"look.py": LOOKS})
    sandbox = finish_sandbox(begin_sandbox(Mounts((), (tmp_path,), 1 << 20, 1 << 20)))
    with pool_of_one(tmp_path) as pool:
        ranks = Ranks(tmp_path, pool)
        (standby,) = pool.ready
        confinement = Confinement(("limit NOFILE 200", "lock"), sandbox.handle)
        pid = ranks.start(0, ["python", "look.py"], confinement=confinement)
        try:
            assert ranks.end(0).code == 3
        finally:
            sandbox.close()
        warm, within, files = ranks.lines[0][0].split()
        assert (warm, files) == ("True", "200")
        # Nor did anything that was imported ask for GPUs: no fork could use them then.
        assert ranks.lines[0][1] == "cuda False False"
        assert int(within) != pid != standby
        until(ticked(pool, lambda: standby not in pool.pids))
        assert not alive(standby)
