"""The agent's side of `store_server`: keeps the process running and speaks to it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from .model import GangKey, OpenStore, StoreFailed, StoreOpened

log = structlog.get_logger(__name__)

_OPEN_ATTEMPTS = 10
_RETRY_S = 0.3


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A store that was asked for, and who may come to it."""

    action: OpenStore
    uid: int | None
    peers: tuple[str, ...]


class StoreHost:
    """Opens and closes TCPStores. `start` and `tick` from a thread that lives as long as it."""

    def __init__(self, answer: Callable[[StoreOpened | StoreFailed], None]) -> None:
        self._answer = answer
        self._process: subprocess.Popen[str] | None = None
        self._wanted: dict[str, _Wanted] = {}
        self._attempts: dict[str, int] = {}
        self._open: set[str] = set()
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, when it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; it is ready for commands at once (torch is imported meanwhile)."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gangline_worker.agent.store_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")},
            text=True,
            start_new_session=True,
        )
        threading.Thread(
            target=self._read, args=(self._process,), name="store-answers", daemon=True
        ).start()

    def tick(self) -> None:
        """Start it again when it died; stores that were asked for are opened again."""
        process = self._process
        if process is None or process.poll() is None:
            return
        log.error("store_server.died", status=process.returncode, stores=len(self._wanted))
        self.start()
        with self._lock:
            for key in self._wanted:
                self._send_open(key)

    def open(self, action: OpenStore, uid: int | None, peers: Sequence[str]) -> None:
        """Ask for a gang's store; the answer comes by the callback, from another thread.

        `uid`: whose connections of this machine get through, None: everybody's, and nobody asks;
        `peers`: the addresses that others come from.
        """
        key = f"{action.gang.job_id}/{action.gang.attempt}"
        with self._lock:
            self._wanted[key] = _Wanted(action, uid, tuple(peers))
            self._attempts[key] = 0
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
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()

    def _send_open(self, key: str) -> None:
        wanted = self._wanted[key]
        self._send(
            open=key,
            address=wanted.action.address,
            port=wanted.action.port,
            uid=wanted.uid,
            peers=wanted.peers,
        )

    def _send(self, **command: object) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):  # it died: `tick` starts it and asks again
                process.stdin.write(json.dumps(command) + "\n")
                process.stdin.flush()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            answer = json.loads(line)
            if "opened" in answer:
                self._opened(answer["opened"])
            elif "failed" in answer:
                self._failed(answer["failed"], answer["error"])

    def _opened(self, key: str) -> None:
        with self._lock:
            wanted = self._wanted.get(key)
            if wanted is None or key in self._open:
                return
            self._open.add(key)
        self._answer(StoreOpened(wanted.action.gang))

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
        where = f"{wanted.action.address}:{wanted.action.port}"
        message = f"the rendezvous {where} cannot be opened: {error}"
        self._answer(StoreFailed(wanted.action.gang, message))

    def _retry(self, key: str) -> None:
        with self._lock:
            if key in self._wanted:
                self._send_open(key)
