"""Which files an agent gives to others: those that a commit record names, as they lie here.

A path is made of names that were checked, opened part by part, and follows no link. It is done
with the rights of the user whose folder it is.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO

from gangline_schemas.checkpoint import CommitRecord, checkpoint_prefix
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.workers import ObjectDigest
from gangline_storage.errors import StoreError
from gangline_storage.port import ObjectStore
from gangline_storage.rooted import RootedTree
from gangline_worker.agent.checkpoints.referred import objects, place_of
from gangline_worker.agent.isolation.files import Owner, acting_as

NAME = r"step-\d{10,19}/rank-\d{5,9}\.(?:bin|json)"
"""A file of a checkpoint, as agents name it to each other."""

_NAME = re.compile(NAME)
_RECORDS_KEPT = 16


class NotGiven(Exception):
    """The agent that asks is not given the file; the message says why."""


def name_of(digest: ObjectDigest) -> str:
    """How agents name an object of a checkpoint to each other: its step's folder and its file."""
    return "/".join(digest.key.rsplit("/", 2)[-2:])


class CopyFiles:
    """The files of committed checkpoints below `folder`. May be used by many threads."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._folder = folder
        self._store = store
        self._records: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._lock = threading.Lock()

    def held(self, ref: CheckpointRef, team: str, owner: Owner | None) -> tuple[str, ...]:
        """Names of the files that are here and as long as they must be.

        Raises NotGiven, OSError and StoreError.
        """
        found = []
        for name, size_bytes in self._sizes(ref, team).items():
            try:
                with self._open(ref, name, owner) as file:
                    if os.fstat(file.fileno()).st_size == size_bytes:
                        found.append(name)
            except NotGiven:
                continue
        return tuple(found)

    def opened(self, ref: CheckpointRef, team: str, owner: Owner | None, name: str) -> BinaryIO:
        """One of them, open. Raises NotGiven, OSError and StoreError."""
        if name not in self._sizes(ref, team):
            raise NotGiven(f"{name[:100]} is no file of the checkpoint")
        return self._open(ref, name, owner)

    def _sizes(self, ref: CheckpointRef, team: str) -> dict[str, int]:
        """The names and sizes in bytes that the store's commit record tells."""
        key = ref.commit_key
        prefix = key.rpartition("/")[0]
        inner = checkpoint_prefix("", ref.attempt, ref.step)
        if not prefix.startswith(f"teams/{team}/") or not prefix.endswith(inner):
            raise NotGiven(f"{key} is no commit record of team {team}")
        with self._lock:
            known = self._records.get(key)
        if known is None:
            known = self._read(key, prefix)
            with self._lock:
                self._records[key] = known
                if len(self._records) > _RECORDS_KEPT:
                    self._records.popitem(last=False)
        return known

    def _read(self, key: str, prefix: str) -> dict[str, int]:
        try:
            record = CommitRecord.decode(self._store.get(key))
        except ValueError as error:
            raise StoreError(f"{key} is no commit record: {error}") from error
        named = {
            name_of(digest): digest.size_bytes
            for digest in objects(record)
            if place_of(digest.key, prefix, self._folder) is not None
        }
        return {name: size_bytes for name, size_bytes in named.items() if _NAME.fullmatch(name)}

    def _open(self, ref: CheckpointRef, name: str, owner: Owner | None) -> BinaryIO:
        step, _, file = name.partition("/")
        attempt = checkpoint_prefix("", ref.attempt, ref.step).split("/")[1]
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            tree = RootedTree(self._folder / ref.job_id)
            with acting_as(owner), tree.directory([attempt, step]) as folder:
                handle = os.open(file, flags, dir_fd=folder)
        except OSError as error:
            raise NotGiven(f"{name} is not here: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise NotGiven(f"{name} is no plain file")
        return os.fdopen(handle, "rb", buffering=0)
