"""Data by its name, as a job gives it: text, a prepared folder, or a prepared prefix of a store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gangline_schemas.data_use import named_by_content
from gangline_storage import StoreUnavailable, open_store
from gangline_storage.errors import StoreError
from gangline_worker.data.blocks import Complain
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.errors import DataError
from gangline_worker.data.manifest import MANIFEST_FILE
from gangline_worker.data.samples import Samples
from gangline_worker.data.text import TextData, load_text
from gangline_worker.data.tokens import TokenData, open_folder, open_store_snapshot

CACHE_ENV = "GANGLINE_DATA_CACHE"
SNAPSHOT_ENV = "GANGLINE_DATA_SNAPSHOT"  # the job's data_snapshot
DEFAULT_CACHE_GB = 50.0


@dataclass(frozen=True)
class TokenSettings:
    """How a snapshot is read. `cache`: None is `GANGLINE_DATA_CACHE`, else below the home.

    `shuffle_gb`: among how much of the data windows are shuffled at a time; 0 is all of it.
    """

    cache: Path | None = None
    cache_gb: float = DEFAULT_CACHE_GB
    max_damaged_blocks: int = 8
    shuffle_gb: float = 0.0

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
    tokens: TokenSettings | None = None,
    suffix: str = ".py",
    max_bytes: int = 12_000_000,
) -> Samples:
    """Windows of `seq_len` tokens over what `source` names.

    `source` is a URL of a store (`s3://...`, `file://...`) or a folder with a manifest, both made
    by `gangline data prepare`; else text, of which `suffix` and `max_bytes` say how much.

    Raises:
        DataError: there is nothing to read, it cannot be used as given, or the job names another
            snapshot.
        StoreUnavailable: the store does not answer.
    """
    settings = tokens or TokenSettings()
    shuffle_bytes = int(settings.shuffle_gb * 1e9)
    if "://" in source:
        try:
            reader = open_store_snapshot(
                open_store(source),
                settings.cache_folder(),
                max_damaged=settings.max_damaged_blocks,
                complain=complain,
            )
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise DataError(f"data: {error}") from error
        check_is_named(source, reader.manifest.name)
        return TokenData(reader, seq_len=seq_len, seed=seed, shuffle_bytes=shuffle_bytes)
    if Path(source, MANIFEST_FILE).is_file():
        reader = open_folder(
            Path(source), max_damaged=settings.max_damaged_blocks, complain=complain
        )
        check_is_named(source, reader.manifest.name)
        return TokenData(reader, seq_len=seq_len, seed=seed, shuffle_bytes=shuffle_bytes)
    check_is_named(source, None)
    text = load_text(source, suffix=suffix, max_bytes=max_bytes)
    return TextData.of(text, seq_len=seq_len, seed=seed)
