"""A child's log: one file that both its outputs append to, rotated by size from outside."""

import os
import shutil
from pathlib import Path

MAX_BYTES = 16 * 1024 * 1024
KEPT = 2
_TAIL_BYTES = 16 * 1024


class LogFile:
    """The log of one process and its `KEPT` predecessors `NAME.log.1`, `NAME.log.2`.

    The child holds the file itself (opened to append), so its lines survive the supervisor. For
    the same reason a file that grew too large is copied and then emptied: lines written between
    the two are lost, which is the price of a bound that needs nothing from the child.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def begin(self) -> None:
        """Set the log of an earlier run aside and begin an empty one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size:
            self._shift()
            self.path.replace(self._numbered(1))

    def open_to_append(self) -> int:
        """Return a new file descriptor for a child's outputs (the caller closes it)."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def bound(self) -> None:
        """Rotate when the file is larger than its limit."""
        try:
            if self.path.stat().st_size <= self._max_bytes:
                return
        except FileNotFoundError:
            return
        self._shift()
        shutil.copyfile(self.path, self._numbered(1))
        self._numbered(1).chmod(0o600)
        os.truncate(self.path, 0)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines, for an error message; empty when there are none."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _shift(self) -> None:
        for number in range(KEPT - 1, 0, -1):
            if self._numbered(number).exists():
                self._numbered(number).replace(self._numbered(number + 1))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
