"""Files that only their owner may read: tokens, settings with secrets, where a process listens."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Put the whole file in place or nothing, with mode 0600; what was there is replaced.

    `durable`: it outlives a loss of power too, which costs a sync of the disk. Raises OSError,
    and leaves no draft behind then.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
