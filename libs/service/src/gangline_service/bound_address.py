"""The address on which a process listens, and the file that gives it to the starting process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from gangline_schemas.base import Model

from .private_file import write_private


class BoundAddress(Model):
    """Where a process serves, as its port file holds it."""

    service: str
    instance: str
    pid: int
    host: str
    port: int
    url: str

    @classmethod
    def of(
        cls,
        service: str,
        instance: str,
        host: str,
        port: int,
        scheme: Literal["http", "https"] = "http",
    ) -> Self:
        """The address of this process."""
        shown = f"[{host}]" if ":" in host else host
        return cls(
            service=service,
            instance=instance,
            pid=os.getpid(),
            host=host,
            port=port,
            url=f"{scheme}://{shown}:{port}",
        )

    def write(self, path: Path) -> None:
        """Write the file whole or not at all, readable by its owner only."""
        write_private(path, self.encode())

    def remove(self, path: Path) -> None:
        """Remove the file, unless it is gone or a successor's."""
        try:
            if self.decode(path.read_bytes()) == self:
                path.unlink()
        except (OSError, ValueError):
            return
