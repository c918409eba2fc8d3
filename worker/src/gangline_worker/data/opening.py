"""Data by its name, as a job gives it: text, a prepared folder, or a prepared prefix of a store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gangline_schemas.data_use import named_by_content
from gangline_storage import StoreUnavailable, open_store
from gangline_storage.errors import StoreError
from gangline_storage.retry import Retry
from gangline_storage.s3_options import S3Options
from gangline_worker.data.blocks import Complain
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.errors import DataError
from gangline_worker.data.flag import flag
from gangline_worker.data.manifest import MANIFEST_FILE, TarManifest
from gangline_worker.data.samples import Samples
from gangline_worker.data.source import Snapshot, folder_snapshot, store_snapshot
from gangline_worker.data.step_inputs import placed
from gangline_worker.data.tar import TarData
from gangline_worker.data.text import STDLIB, TextData, load_text
from gangline_worker.data.tokens import TokenData, TokenReader

CACHE_ENV = "GANGLINE_DATA_CACHE"
SNAPSHOT_ENV = "GANGLINE_DATA_SNAPSHOT"  # the job's data_snapshot
DEFAULT_CACHE_GB = 50.0
STORE_WAIT_S = 240.0
"""For so long a store that is away is waited for, and to the end of the try that it is in then."""


@dataclass(frozen=True)
class ReadSettings:
    """How a snapshot is read. `cache`: None is `GANGLINE_DATA_CACHE`, else below the home.

    `shuffle_gb`: among how much of the data samples are shuffled at a time; 0 is all of it.
    """

    cache: Path | None = None
    cache_gb: float = DEFAULT_CACHE_GB
    max_damaged_blocks: int = 8
    shuffle_gb: float = 0.0

    @property
    def shuffle_bytes(self) -> int:
        """`shuffle_gb` in bytes."""
        return int(self.shuffle_gb * 1e9)

    def cache_folder(self) -> CacheFolder:
        """The node's cache."""
        named = os.environ.get(CACHE_ENV)
        folder = self.cache or (Path(named) if named else Path.home() / ".cache/gangline/data")
        return CacheFolder(folder, int(self.cache_gb * 1e9))


def check_is_named(source: str, name: str | None) -> None:
    """See that what is read is what the job was admitted with; `name` None: it has no name.

    Raises:
        DataError: the job names the content of another snapshot.
    """
    wanted = os.environ.get(SNAPSHOT_ENV)
    if wanted is None or wanted == name or not named_by_content(wanted):
        return
    if name is None and "://" not in source and source != STDLIB and not Path(source).exists():
        raise DataError(
            f"data: there is no {source!r} on this node, and the job names data_snapshot {wanted}"
        )
    raise DataError(
        f"data: {source!r} is {name or 'text'}, and the job names data_snapshot {wanted}; say "
        "where that one lies, or name in the job what it reads"
    )


def open_samples(
    source: str,
    *,
    seq_len: int,
    seed: int,
    complain: Complain,
    tokens: ReadSettings | None = None,
    suffix: str = ".py",
    max_bytes: int = 12_000_000,
) -> Samples:
    """Windows of `seq_len` tokens over what `source` names.

    `source` is a URL of a store (`s3://...`, `file://...`) or a folder with a manifest, both made
    by `gangline data prepare`; else text, of which `suffix` and `max_bytes` say how much. `in:NAME`
    is an input of the job.

    Raises:
        DataError: there is nothing to read, it cannot be used as given, or the job names another
            snapshot.
        StoreUnavailable: the store does not answer.
    """
    settings = tokens or ReadSettings()
    source = placed(source)
    snapshot = _open_snapshot(source, settings)
    if snapshot is None:
        text = load_text(source, suffix=suffix, max_bytes=max_bytes)
        return TextData.of(text, seq_len=seq_len, seed=seed)
    reader = TokenReader(snapshot, max_damaged=settings.max_damaged_blocks, complain=complain)
    return TokenData(reader, seq_len=seq_len, seed=seed, shuffle_bytes=settings.shuffle_bytes)


def open_tar(
    source: str, *, seed: int, complain: Complain = flag, settings: ReadSettings | None = None
) -> TarData:
    """Samples of tar shards, in a folder or a store, that `gangline data index` has seen.

    Raises:
        DataError: there are none, they cannot be used as given, or the job names another snapshot.
        StoreUnavailable: the store does not answer.
    """
    settings = settings or ReadSettings()
    snapshot = _open_snapshot(source, settings)
    if snapshot is None or not isinstance(snapshot.manifest, TarManifest):
        raise DataError(
            f"data: {source!r} is no snapshot of tar shards; make one with `gangline data index`"
        )
    return TarData(
        snapshot.manifest,
        snapshot.source,
        snapshot.read,
        seed=seed,
        max_damaged=settings.max_damaged_blocks,
        complain=complain,
        shuffle_bytes=settings.shuffle_bytes,
    )


def _open_snapshot(source: str, settings: ReadSettings) -> Snapshot | None:
    """The snapshot that a source names, None where it is none; held to what the job names."""
    snapshot = None
    if "://" in source:
        try:
            store = open_store(source, options=S3Options(retry=Retry.within(STORE_WAIT_S)))
            snapshot = store_snapshot(store, settings.cache_folder())
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise DataError(f"data: {error}") from error
    elif Path(source, MANIFEST_FILE).is_file():
        snapshot = folder_snapshot(Path(source))
    check_is_named(source, snapshot.manifest.name if snapshot else None)
    return snapshot
