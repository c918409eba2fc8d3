"""Ranks that meet and agree as the trainer's do, as real processes, and the store they meet at."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline_worker.training.world import World

DEADLINE_S = 150.0
TIMEOUT_S = 200.0
"""Of the ranks, longer than a test waits: what ends earlier was not ended by it."""
EXIT_LOST, EXIT_DIFFERS = 3, 4
_PR_SET_PDEATHSIG = 1
_LAUNCHER = multiprocessing.get_context("forkserver")  # torch is imported once, not once a rank
_LAUNCHER.set_forkserver_preload(["gangline_worker.training.__main__"])


def _host(answer: Connection) -> None:
    from torch.distributed import TCPStore

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    answer.send(store.port)
    signal.pause()


@contextmanager
def store_process() -> Iterator[tuple[BaseProcess, int]]:
    """A process that hosts a rendezvous store, as an agent's does, and its port."""
    ours, theirs = _LAUNCHER.Pipe()
    process = _LAUNCHER.Process(target=_host, args=(theirs,))
    process.start()
    try:
        assert ours.poll(DEADLINE_S)
        yield process, ours.recv()
    finally:
        process.kill()
        process.join()


def rank_main(env: Mapping[str, str], work: str, channel: Connection) -> None:
    """Meet the others, say so, and do the work on request."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(env)
    from gangline_worker.training.world import join_world

    try:
        world = join_world(TIMEOUT_S)
        channel.send(world.rank)
        assert channel.poll(DEADLINE_S)
        channel.recv()
        code = WORK[work](world)
    except RuntimeError as error:
        print(f"rank {env['RANK']}: {error}", flush=True)
        code = EXIT_LOST
    os._exit(code)


def _rounds(world: World, count: int = 20) -> int:
    from gangline_worker.training.agreement import StepNews, all_same, exchange

    for step in range(count):
        news = StepNews(loss=step + world.rank, data_wait_s=0.0)
        if exchange(news, world.control).loss != step + (world.size - 1) / 2:
            return EXIT_DIFFERS
    if all_same(world.control, world.rank) or not all_same(world.control, world.size):
        return EXIT_DIFFERS
    return 0


def _dies(world: World) -> int:
    """Rank `DIES` ends between two exchanges of the others, which continue for ever."""
    while True:
        _rounds(world, count=3)
        if os.environ["DIES"] == str(world.rank):
            os._exit(9)


def _attempt(world: World) -> int:
    """Agree on the next free attempt and leave; rank 0 sees one more than the others."""
    from gangline_worker.checkpoint.public import identity

    os.environ.pop("GANGLINE_ATTEMPT", None)
    return identity(Path(os.environ["FOLDERS"]) / os.environ["RANK"]).attempt


WORK = {"rounds": _rounds, "dies": _dies, "attempt": _attempt}


class Ranks:
    """So many of them at one store; without `hosted` rank 0 hosts it, as torch does by itself."""

    def __init__(
        self, ranks: int, port: int, work: str, *, hosted: bool = True, **env: object
    ) -> None:
        self._channels: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank in range(ranks):
            own = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "CUDA_VISIBLE_DEVICES": "",
                "TORCHELASTIC_USE_AGENT_STORE": hosted,
                **env,
            }
            ours, theirs = _LAUNCHER.Pipe()
            named = {name: str(value) for name, value in own.items()}
            process = _LAUNCHER.Process(target=rank_main, args=(named, work, theirs))
            process.start()
            theirs.close()
            self._channels.append(ours)
            self.processes.append(process)

    def met(self) -> None:
        """Until all of them have."""
        for rank, channel in enumerate(self._channels):
            assert channel.poll(DEADLINE_S), f"rank {rank} never met the others"
            assert channel.recv() == rank

    def go(self) -> None:
        """Let them work."""
        for channel in self._channels:
            channel.send(None)

    def codes(self) -> list[int | None]:
        """Their exit codes, which all come in time; what is left is killed."""
        ends = time.monotonic() + DEADLINE_S
        for process in self.processes:
            process.join(max(0.1, ends - time.monotonic()))
        found = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
            process.join()
        return found
