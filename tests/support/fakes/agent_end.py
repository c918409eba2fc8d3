"""The agent's end of the rank protocol, over a real Unix socket, for tests of the worker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from gangline_schemas.rank_protocol import FROM_RANK, FromAgent, FromRank
from support.waiting import DEADLINE_S, until


class AgentEnd:
    """Takes in any number of ranks, and keeps what they say."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "agent.sock")
        self.said: list[FromRank] = []
        self._changed = threading.Condition()
        self._ranks: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                rank, _ = self._server.accept()
            except OSError:
                return
            self._ranks.append(rank)
            threading.Thread(target=self._listen, args=(rank,), daemon=True).start()

    def _listen(self, rank: socket.socket) -> None:
        with rank.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    self.said.append(FROM_RANK.validate_json(line))
                    self._changed.notify_all()

    def ask(self, message: FromAgent) -> None:
        """Send to every rank, once one is connected."""
        until(lambda: bool(self._ranks))
        for rank in self._ranks:
            rank.sendall(message.encode() + b"\n")

    def wait_for(self, condition: Callable[[list[FromRank]], bool]) -> list[FromRank]:
        """Until what was said fulfils the condition."""
        with self._changed:
            fulfilled = self._changed.wait_for(lambda: condition(self.said), DEADLINE_S)
            assert fulfilled, f"after {DEADLINE_S} s the ranks had said {self.said}"
            return list(self.said)

    def hang_up(self) -> None:
        """Close every line, as the end of an agent's process does."""
        self._server.close()
        while self._ranks:
            rank = self._ranks.pop()
            with contextlib.suppress(OSError):  # it has left before us
                rank.shutdown(socket.SHUT_RDWR)
            rank.close()
