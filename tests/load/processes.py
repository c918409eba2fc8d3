"""Processes of the load, each with settings as JSON, orders on stdin and its account at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

END = "end"
ACCOUNT_S = 120.0


class LoadProcess:
    """`python -m MODULE SETTINGS`. It ends at the order `end`, and writes its account then."""

    def __init__(self, module: str, settings: DataclassInstance) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(asdict(settings))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def order(self, text: str) -> None:
        """A line of its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Its account."""
        self.order(END)
        found: dict[str, Any] = json.loads(self._process.communicate(timeout=ACCOUNT_S)[0])
        return found

    def kill(self) -> None:
        """If it has not ended."""
        self._process.kill()
        self._process.wait()
