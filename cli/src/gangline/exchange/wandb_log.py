"""W&B's run files (`run-ID.wandb`), as an offline run leaves them: read without W&B.

The file is a LevelDB log (blocks of 32 KiB, records in pieces) of protobuf messages.
https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from gangline.exchange import protobuf
from gangline.exchange.protobuf import NotProtobufError, Value
from gangline.exchange.records import Point, SourceError, SourceRun, files_below, flat
from gangline.exchange.tfrecord import CutError, DamagedError
from gangline.exchange.wandb_values import points_of, run_texts, time_ms

PATTERN = "*.wandb"
_MAGIC = b":W&B"
_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Fields of a Record
_HISTORY, _SUMMARY, _CONFIG, _FILES, _STATS, _ARTIFACT, _RUN, _EXIT = 2, 3, 5, 6, 7, 8, 17, 18
_COUNTED = {_ARTIFACT: "artifacts", _STATS: "system metrics"}


class WandbLogs:
    """All run files below a directory, or one file."""

    kind = "W&B run directory"

    def __init__(self, path: Path) -> None:
        self._files = files_below(path, PATTERN)

    def runs(self) -> Iterator[SourceRun | SourceError]:
        """A run for each file."""
        for file in self._files:
            try:
                yield _run(file)
            except SourceError as error:
                yield error


def _run(file: Path) -> SourceRun:
    """The run with all but its points, for which the whole file is read once."""
    found = _Found()
    run = SourceRun("", "", lambda run: _points(file, run))
    for record in _records(file, run):
        try:
            _note(record, found)
        except NotProtobufError as error:
            run.troubles.append(f"{file}: no record of W&B: {error}")
            break
    if not found.run_id:
        reasons = [trouble.removeprefix(f"{file}: ") for trouble in run.troubles]
        raise SourceError(file, "; ".join(reasons) or "holds no run of W&B")
    run.source_id = f"wandb/{found.project}/{found.run_id}"
    run.name, run.project = found.name or found.run_id, found.project
    run.started_ms = found.started_ms
    run.ended_ms = found.ended_ms
    run.state = "FINISHED" if found.exit_code == 0 else "FAILED"
    if found.exit_code is None:
        run.state = "KILLED"  # it has left no end
    run.params, run.tags = run_texts(found.config, found.summary, found.facts, found.logged)
    return run


@dataclass
class _Found:
    run_id: str = ""
    project: str = ""
    name: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_code: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)


def _note(record: dict[int, list[Value]], found: _Found) -> None:
    if _RUN in record:
        run = protobuf.message(record[_RUN][-1])
        found.run_id, found.project = protobuf.text(run, 1), protobuf.text(run, 3)
        found.name = protobuf.text(run, 8)
        start = protobuf.message(protobuf.last(run, 17))
        found.started_ms = protobuf.integer(start, 1) * 1000 + protobuf.integer(start, 2) // 10**6
        found.config |= _items(protobuf.message(protobuf.last(run, 4)))
        tags = ",".join(protobuf.texts(run, 10))
        facts = {"tags": tags, "notes": protobuf.text(run, 9), "group": protobuf.text(run, 6)}
        facts |= {"job_type": protobuf.text(run, 7), "sweep": protobuf.text(run, 12)}
        found.facts |= {name: text for name, text in facts.items() if text}
    if _CONFIG in record:
        found.config |= _items(protobuf.message(record[_CONFIG][-1]))
    if _SUMMARY in record:
        found.summary |= _items(protobuf.message(record[_SUMMARY][-1]))
    if _HISTORY in record:
        row = _items(protobuf.message(record[_HISTORY][-1]))
        found.logged |= flat(row).keys()
        found.ended_ms = time_ms(row) or found.ended_ms
    if _EXIT in record:
        found.exit_code = protobuf.integer(protobuf.message(record[_EXIT][-1]), 1)


def _points(file: Path, run: SourceRun) -> Iterator[Point]:
    for record in _records(file, run):
        for number, what in _COUNTED.items():
            run.left[what] += number in record
        if _HISTORY not in record:
            continue
        try:
            history = protobuf.message(record[_HISTORY][-1])
            row = _items(history)
            if (step := protobuf.message(protobuf.last(history, 2))) and "_step" not in row:
                row["_step"] = protobuf.integer(step, 1)
        except NotProtobufError as error:
            run.troubles.append(f"{file}: no record of W&B: {error}")
            break
        yield from points_of(row, run)
    run.left += type(run.left)()


def _items(message: dict[int, list[Value]]) -> dict[str, Any]:
    """Keys and values of a history, a summary or a configuration (its `update`)."""
    found: dict[str, Any] = {}
    for content in message.get(1, []):
        item = protobuf.message(content)
        *outer, key = protobuf.texts(item, 2) or [protobuf.text(item, 1)]
        place = found
        for name in outer:
            inner = place.setdefault(name, {})
            place = inner if isinstance(inner, dict) else {}
        try:
            place[key] = json.loads(protobuf.text(item, 16))
        except (ValueError, RecursionError):
            continue
    return found


def _records(file: Path, run: SourceRun) -> Iterator[dict[int, list[Value]]]:
    try:
        with file.open("rb") as opened:
            for data in _payloads(opened):
                yield protobuf.message(data)
    except OSError as error:
        run.troubles.append(f"{file}: {error.strerror}")
    except CutError:
        run.left[f"incomplete last records ({file.name})"] += 1
    except DamagedError as error:
        run.troubles.append(f"{file}: {error}; what follows is not read")
    except NotProtobufError as error:
        run.troubles.append(f"{file}: no record of W&B: {error}")


def _payloads(file: BinaryIO) -> Iterator[bytes]:
    """Whole records. Raises DamagedError, CutError."""
    if file.read(_HEADER)[:4] != _MAGIC:
        raise DamagedError("it does not begin as a run file of W&B")
    at, parts = _HEADER, bytearray()
    while True:
        room = _BLOCK - at % _BLOCK
        if room < _HEADER:
            file.seek(room, 1)
            at += room
            continue
        head = file.read(_HEADER)
        if not head and not parts:
            return
        if len(head) < _HEADER:
            raise CutError
        checksum, length, kind = struct.unpack("<IHB", head)
        data = file.read(length)
        if len(data) < length:
            raise CutError
        if zlib.crc32(data, zlib.crc32(head[6:])) != checksum or not _FULL <= kind <= _LAST:
            raise DamagedError("the checksum of a record is wrong")
        at += _HEADER + length
        if kind in {_FULL, _FIRST}:
            parts.clear()
        parts += data
        if kind in {_FULL, _LAST}:
            yield bytes(parts)
            parts.clear()
