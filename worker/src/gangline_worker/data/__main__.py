"""`python -m gangline_worker.data prepare|join|index|verify|show|profile`: `gangline data` runs it.

Exit codes: 0 done; 1 a disk or store failed; 2 wrong usage or input; 66 a snapshot is damaged.
A result goes to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gangline_schemas.limits import SECONDS_MAX
from gangline_storage import NotFound, StoreError, open_store
from gangline_storage.port import ObjectStore
from gangline_worker.data.as_of import Rules, join, read_source, write_table
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.errors import EXIT_DATA_SHARD, DataError, DataShardError
from gangline_worker.data.inputs import find_inputs
from gangline_worker.data.manifest import (
    CORPUS_PATTERN,
    MANIFEST_FILE,
    Manifest,
    TarManifest,
    parse_any,
)
from gangline_worker.data.prepare import Progress, Sources, prepare
from gangline_worker.data.profile import MOST_BLOCKS, PROFILE_FILE, kept_profile, make_profile
from gangline_worker.data.source import Snapshot, folder_snapshot, store_snapshot
from gangline_worker.data.tar_index import index_tars
from gangline_worker.data.tokenizer import BYTES, find_tokenizer
from gangline_worker.data.verify import verify

EXIT_FAILED, EXIT_USAGE = 1, 2
NOTE_EVERY_S = 2.0
BLOCK_BYTES = 1 << 20


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gangline data", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("inputs", nargs="+", type=Path)
    making.add_argument("--out", required=True, type=Path)
    making.add_argument("--name")
    making.add_argument("--tokenizer", default=BYTES)
    making.add_argument("--field", default="text")
    making.add_argument("--shard-mb", type=int, default=128)
    making.add_argument("--end-of-document", type=int)
    indexing = commands.add_parser("index")
    indexing.add_argument("place")
    indexing.add_argument("--name")
    for command in (making, indexing):
        command.add_argument("--no-profile", action="store_true")
    joining = commands.add_parser("join")
    joining.add_argument("rows", type=Path)
    joining.add_argument("--features", required=True, action="append", type=Path)
    joining.add_argument("--key", required=True, action="append")
    joining.add_argument("--time", required=True)
    joining.add_argument("--delay-s", type=float, default=0.0)
    joining.add_argument("--max-age-s", type=float)
    joining.add_argument("--out", required=True, type=Path)
    for name in ("verify", "show", "profile"):
        commands.add_parser(name).add_argument("snapshot")
    commands.choices["profile"].add_argument("--kept", action="store_true")
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    options = parse(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "prepare": _prepare,
        "join": _join,
        "index": _index,
        "verify": _verify,
        "show": _show,
        "profile": _profile,
    }
    try:
        return commands[options.command](options)
    except DataError as error:
        return _fail(str(error), EXIT_USAGE)
    except DataShardError as error:
        return _fail(str(error), EXIT_DATA_SHARD)
    except (OSError, StoreError) as error:
        again = "; run the same command to continue" if options.command == "prepare" else ""
        return _fail(f"{error}{again}", EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("stopped; run the same command to continue", EXIT_FAILED)


def _corpus(name: str | None, folder: str) -> str:
    corpus = name or re.sub(r"[^a-z0-9._-]+", "-", folder.lower())
    if not re.fullmatch(CORPUS_PATTERN, corpus):
        raise DataError(f"--name {corpus}: use a-z, 0-9, '.', '_' and '-', at most 63")
    return corpus


def _prepare(options: argparse.Namespace) -> int:
    corpus = _corpus(options.name, options.out.resolve().name)
    if options.out.exists() and not options.out.is_dir():
        raise DataError(f"--out {options.out}: is a file; name a folder")
    if not 1 <= options.shard_mb <= 1 << 14:
        raise DataError(f"--shard-mb {options.shard_mb}: must be 1 to 16384 (MiB)")
    tokenizer = find_tokenizer(options.tokenizer)
    info = tokenizer.info
    if options.end_of_document is not None:
        if not 0 <= options.end_of_document < info.vocab_size:
            raise DataError(
                f"--end-of-document {options.end_of_document}: {info.name} has tokens 0 to "
                f"{info.vocab_size - 1}"
            )
        info = info.model_copy(update={"end_of_document": options.end_of_document})
        tokenizer.info = info
    sources = Sources(
        corpus=corpus,
        tokenizer=info,
        field=options.field,
        shard_tokens=(options.shard_mb << 20) // info.token_type.itemsize,
        block_bytes=BLOCK_BYTES,
        inputs=find_inputs(options.inputs, out=options.out),
    )
    manifest = prepare(options.out, sources, tokenizer, _progress_notes())
    if not options.no_profile:
        made_s = (options.out / MANIFEST_FILE).stat().st_mtime
        given = tuple(str(path.resolve()) for path in options.inputs)
        _leave_profile(str(options.out), datetime.fromtimestamp(made_s, UTC), given)
    _print_manifest(manifest, json_wanted=options.json)
    return 0


def _join(options: argparse.Namespace) -> int:
    if options.out.suffix != ".parquet":
        raise DataError(f"--out {options.out}: give a name that ends in .parquet")
    for name, seconds in (("delay", options.delay_s), ("max-age", options.max_age_s)):
        if seconds is not None and not 0 <= seconds <= SECONDS_MAX:
            raise DataError(f"--{name}-s {seconds}: must be 0 to {SECONDS_MAX:g}")
    rules = Rules(tuple(options.key), options.time, options.delay_s, options.max_age_s)
    rows = read_source(options.rows)
    joined = join(rows, [read_source(path) for path in options.features], rules)
    write_table(options.out, joined.table)
    count = rows.table.num_rows
    matched = {str(path): n for path, n in zip(options.features, joined.matched, strict=True)}
    if options.json:
        _say(json.dumps({"rows": count, "matched": matched, "out": str(options.out)}))
        return 0
    for path, with_features in matched.items():
        share = with_features / count if count else 0.0
        _say(f"{path}: {with_features:,} of {count:,} rows have features ({share:.1%})")
    _say(f"{options.out}: {count:,} rows, {joined.table.num_columns} columns")
    return 0


def _now_and_then() -> Callable[[str], None]:
    """Notes a line, at most every NOTE_EVERY_S; the others are dropped."""
    noted_s = time.monotonic()

    def note(line: str) -> None:
        nonlocal noted_s
        if time.monotonic() - noted_s >= NOTE_EVERY_S:
            noted_s = time.monotonic()
            _note(line)

    return note


def _progress_notes() -> Callable[[Progress], None]:
    note, began = _now_and_then(), time.monotonic()

    def note_progress(progress: Progress) -> None:
        share = progress.bytes_done / max(1, progress.bytes_total)
        note(
            f"{progress.inputs_done:,} of {progress.inputs:,} files, {share:.0%} of the bytes, "
            f"{progress.tokens:,} tokens, {progress.shards:,} shards, "
            f"{time.monotonic() - began:.0f} s"
        )

    return note_progress


def _index(options: argparse.Namespace) -> int:
    place: str = options.place
    if "://" not in place and not Path(place).is_dir():
        raise DataError(f"{place}: no such folder")
    folder = place.partition("?")[0].rstrip("/") if "://" in place else str(Path(place).resolve())
    corpus = _corpus(options.name, folder.rpartition("/")[2])
    note = _now_and_then()
    try:
        made = index_tars(
            _store_at(place),
            corpus,
            block_bytes=BLOCK_BYTES,
            on_progress=lambda name, done: note(f"{name}: {done:,} bytes read"),
        )
    except DataError as error:
        raise DataError(f"{place}: {error}") from None
    if made.passed_over:
        _note(f"{made.passed_over:,} files have no extension and belong to no sample")
    if not options.no_profile:
        _leave_profile(place, datetime.now(UTC))
    _print_manifest(made.manifest, json_wanted=options.json)
    return 0


def _verify(options: argparse.Namespace) -> int:
    store, manifest = _open(options.snapshot)
    total = sum(shard.size_bytes for shard in manifest.shards)
    note = _now_and_then()
    damage = verify(
        store, manifest, lambda done: note(f"{done / total:.0%} of {total:,} bytes read")
    )
    if options.json:
        found = [{"file": d.file, "block": d.block, "reason": d.reason} for d in damage]
        _say(json.dumps({"name": manifest.name, "damage": found}))
    else:
        for item in damage:
            _say(
                f"{item.file}{'' if item.block is None else f' block {item.block}'}: {item.reason}"
            )
        _say(f"{manifest.name}: {f'{len(damage)} damaged' if damage else 'whole'}")
    if damage:
        _note("what to do: docs/runbooks/data.md; a sound copy of each file makes it whole again")
    return EXIT_DATA_SHARD if damage else 0


def _show(options: argparse.Namespace) -> int:
    _, manifest = _open(options.snapshot)
    _print_manifest(manifest, json_wanted=options.json)
    return 0


def _profile(options: argparse.Namespace) -> int:
    """Print the profile that lies there; without `--kept` else one that is made now."""
    with _opened(options.snapshot) as snapshot:
        found = kept_profile(snapshot)
        if found is None and options.kept:
            raise DataError(
                f"{options.snapshot}: has no {PROFILE_FILE} of {snapshot.manifest.name}"
            )
        found = found or make_profile(snapshot, None)
    _say(found.encode().decode())
    return 0


def _leave_profile(place: str, made_at: datetime, sources: tuple[str, ...] = ()) -> None:
    """Make the profile of a new snapshot beside its manifest. One that is there stays."""
    with _opened(place) as snapshot:
        if kept_profile(snapshot) is None:
            made = make_profile(snapshot, made_at).model_copy(update={"sources": sources})
            _store_at(place).put(PROFILE_FILE, made.encode())


@contextmanager
def _opened(place: str) -> Iterator[Snapshot]:
    """A snapshot, as training reads it; blocks of a store stay in a folder of this call."""
    with tempfile.TemporaryDirectory(prefix="gangline-profile-") as folder:
        if "://" in place:
            cache = CacheFolder(Path(folder), 2 * MOST_BLOCKS * BLOCK_BYTES)
            yield store_snapshot(_store_at(place), cache)
        else:
            yield folder_snapshot(Path(place))


def _store_at(place: str) -> ObjectStore:
    return open_store(place if "://" in place else str(Path(place).resolve()))


def _open(source: str) -> tuple[ObjectStore, Manifest | TarManifest]:
    if "://" not in source and not Path(source, MANIFEST_FILE).is_file():
        raise DataError(f"{source}: has no {MANIFEST_FILE}; make one with `gangline data prepare`")
    store = _store_at(source)
    try:
        return store, parse_any(store.get(MANIFEST_FILE), f"{source}/{MANIFEST_FILE}")
    except NotFound:
        raise DataError(f"{source}: has no {MANIFEST_FILE}") from None


def _print_manifest(manifest: Manifest | TarManifest, *, json_wanted: bool) -> None:
    said: dict[str, str | int] = {"name": manifest.name}
    if isinstance(manifest, Manifest):
        said |= {"tokens": manifest.tokens, "documents": manifest.documents}
    else:
        said["samples"] = manifest.samples
    said |= {
        "shards": len(manifest.shards),
        "size_bytes": sum(shard.size_bytes for shard in manifest.shards),
    }
    if isinstance(manifest, Manifest):
        said |= {
            "tokenizer": manifest.tokenizer.name,
            "vocab_size": manifest.tokenizer.vocab_size,
            "dtype": manifest.dtype,
        }
    if json_wanted:
        _say(json.dumps(said))
        return
    for name, value in said.items():
        _say(f"{name:<12}{f'{value:,}' if isinstance(value, int) else value}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _fail(message: str, code: int) -> int:
    _note(f"error: {message}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
