"""The agent's side of `store_server`: keeps the process running and speaks to it.

It is forked by the agent's zygote, which has torch imported already, and is started as a program
of its own where there is none, or none that comes in time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from gangline_worker.agent.decide.effects import OpenStore
from gangline_worker.agent.decide.inputs import StoreFailed, StoreOpened
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.connections import End
from gangline_worker.agent.host.forked import Forked
from gangline_worker.agent.warm.zygote_host import ZygoteHost

from .proxy import clients_of

log = structlog.get_logger(__name__)

_OPEN_ATTEMPTS = 10
_RETRY_S = 0.3
_ASKED_AT_ONCE = 32
_ZYGOTE_S = 30.0
"""So long after the agent's start the process waits for a zygote to fork it."""
_MODULE = f"{__package__}.store_server"


@dataclass(frozen=True, slots=True)
class WantedStore:
    """A store that was asked for, and who may come to it."""

    key: str
    effect: OpenStore
    uid: int | None
    peers: tuple[str, ...]
    ranks: int = 1024  # where a handover of an earlier version does not say


@dataclass(frozen=True, slots=True)
class KeptStores:
    """The process and its channel's descriptor, if it runs, and the stores that were asked for."""

    pid: int | None
    channel: int | None
    wanted: tuple[WantedStore, ...]


def admit_unasked(_gang: GangKey, _theirs: End, _own: End) -> bool:
    """Connections from addresses of the gang's nodes are admitted where no agent can be asked."""
    return True


class StoreHost:
    """Opens and closes TCPStores. `start` and `tick` from a thread that lives as long as it."""

    def __init__(
        self,
        answer: Callable[[StoreOpened | StoreFailed], None],
        zygote: ZygoteHost | None = None,
        confirms: Callable[[GangKey, End, End], bool] = admit_unasked,
    ) -> None:
        """`confirms`: whether a connection from another machine, `theirs` to ours, is a gang's."""
        self._answer = answer
        self._confirms = confirms
        self._questions = ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="store-clients")
        self._zygote = zygote
        self._cold_after_s = 0.0
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._channel: socket.socket | None = None
        self._wanted: dict[str, WantedStore] = {}
        self._attempts: dict[str, int] = {}
        self._open: set[str] = set()
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, when it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; with a zygote `tick` does, as soon as that one is ready."""
        self._cold_after_s = time.monotonic() + _ZYGOTE_S
        self._begin()

    def tick(self) -> None:
        """Start it again when it died; stores that were asked for are opened again."""
        if self._process is not None and (status := self._process.poll()) is not None:
            log.error("store_server.died", status=status, stores=len(self._wanted))
            self._process = None
        if self._process is None:
            self._begin()

    def _begin(self) -> None:
        zygote = self._zygote
        if zygote is not None and zygote.is_starting and time.monotonic() < self._cold_after_s:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            forked = None if zygote is None else zygote.fork(_MODULE, theirs)
            process = forked or _start_cold(theirs)
        log.info("store_server.started", pid=process.pid, forked=forked is not None)
        self._attend(process, ours)
        with self._lock:
            for key in self._wanted:
                self._send_open(key)

    def _attend(self, process: subprocess.Popen[bytes] | Forked, channel: socket.socket) -> None:
        with self._lock:
            self._process, self._channel = process, channel
        threading.Thread(
            target=self._read, args=(channel,), name="store-answers", daemon=True
        ).start()

    def kept(self) -> KeptStores:
        """The stores and their process, to be adopted."""
        with self._lock:
            wanted = tuple(self._wanted.values())
            if self._process is None or self._channel is None:
                return KeptStores(None, None, wanted)
            return KeptStores(self._process.pid, self._channel.fileno(), wanted)

    def adopt(self, kept: KeptStores) -> None:
        """Instead of `start`: continue with what this process had before the agent reloaded.

        Requests that were not answered then must be made again.
        """
        self._wanted = {wanted.key: wanted for wanted in kept.wanted}
        self._attempts = dict.fromkeys(self._wanted, 0)
        self._open = set(self._wanted)
        if kept.pid is None or kept.channel is None:
            self.start()
            return
        os.set_inheritable(kept.channel, False)
        self._attend(Forked(kept.pid), socket.socket(fileno=kept.channel))

    def open(self, effect: OpenStore, uid: int | None, peers: Sequence[str], ranks: int) -> None:
        """Ask for a gang's store; the answer comes by the callback, from another thread.

        `uid`: the user of this machine that is admitted, None: all users, without a check;
        `peers`: the addresses that others come from; `ranks`: of the whole gang.
        """
        key = f"{effect.gang.job_id}/{effect.gang.attempt}"
        with self._lock:
            self._wanted[key] = WantedStore(key, effect, uid, tuple(peers), ranks)
            self._attempts[key] = 0
            self._open.discard(key)
            self._send_open(key)

    def close(self, gang: GangKey) -> None:
        """Close a gang's store, if it has one."""
        key = f"{gang.job_id}/{gang.attempt}"
        with self._lock:
            self._open.discard(key)
            if self._wanted.pop(key, None) is not None:
                self._send(close=key)

    def stop(self) -> None:
        """End the process."""
        self._questions.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()

    def _send_open(self, key: str) -> None:
        wanted = self._wanted[key]
        self._send(
            open=key,
            address=wanted.effect.address,
            port=wanted.effect.port,
            uid=wanted.uid,
            peers=wanted.peers,
            clients=clients_of(wanted.ranks),
        )

    def _send(self, **command: object) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it died: `tick` starts it and asks again
                self._channel.sendall(json.dumps(command).encode() + b"\n")

    def _read(self, channel: socket.socket) -> None:
        """Heed its answers until it ends."""
        with channel, contextlib.suppress(ConnectionError), channel.makefile("rb") as lines:
            for line in lines:
                answer = json.loads(line)
                if "opened" in answer:
                    self._opened(answer["opened"])
                elif "failed" in answer:
                    self._failed(answer["failed"], answer["error"])
                elif "ask" in answer:
                    ends = [(str(address), int(port)) for address, port in answer["ends"]]
                    self._questions.submit(self._asked, answer["ask"], answer["key"], *ends)

    def _opened(self, key: str) -> None:
        with self._lock:
            wanted = self._wanted.get(key)
            if wanted is None or key in self._open:
                return
            self._open.add(key)
        self._answer(StoreOpened(wanted.effect.gang))

    def _asked(self, number: int, key: str, theirs: End, own: End) -> None:
        with self._lock:
            wanted = self._wanted.get(key)
        confirmed = wanted is not None and self._confirms(wanted.effect.gang, theirs, own)
        with self._lock:
            self._send(answer=number, confirmed=confirmed)

    def _failed(self, key: str, error: str) -> None:
        """Try again for a while: the port may still be held by what is just ending."""
        with self._lock:
            wanted = self._wanted.get(key)
            if wanted is None:
                return
            self._attempts[key] += 1
            again = self._attempts[key] < _OPEN_ATTEMPTS
            if not again:
                del self._wanted[key]
        if again:
            threading.Timer(_RETRY_S, self._retry, args=(key,)).start()
            return
        where = f"{wanted.effect.address}:{wanted.effect.port}"
        message = f"the rendezvous {where} cannot be opened: {error}"
        self._answer(StoreFailed(wanted.effect.gang, message))

    def _retry(self, key: str) -> None:
        with self._lock:
            if key in self._wanted:
                self._send_open(key)


def _start_cold(channel: socket.socket) -> subprocess.Popen[bytes]:
    """Ready for commands at once (torch is imported meanwhile)."""
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.DEVNULL,
        stdout=channel.fileno(),
        env={"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")},
        start_new_session=True,
    )
