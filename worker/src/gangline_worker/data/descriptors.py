"""Open files of a process: each mapped shard keeps one."""

from __future__ import annotations

import errno
import resource

from gangline_worker.data.errors import DataError

_OTHERS = 1024  # open files beside shards: sockets, libraries, checkpoints


def allow_shards(count: int) -> None:
    """Raise this process's soft limit as far as so many shards need, and the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHERS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def refuse_shortage(error: OSError, snapshot: str, shards: int) -> None:
    """Do nothing about an error that says another thing.

    Raises:
        DataError: it says that no more files can be opened, so the data may be whole.
    """
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        raise DataError(
            f"data: {snapshot} has {shards:,} shards, and each needs an open file: "
            f"{error.strerror}; raise the limit of open files (ulimit -n, or LimitNOFILE of the "
            "agent's unit), or prepare the data with fewer, larger shards"
        ) from error
