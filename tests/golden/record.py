"""Golden logs as files: one gzipped JSON line for each event, and what they fold to.

`recorded.json` holds for each log the number of events, the sha256 of the canonical state, and the
fields that the state's values had: the hash leaves out what a later version adds to them.
`<service>.snapshot` is of the state after three quarters of the log, as the release kept it, and
`formats.json` names the version and form of each service's state.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gangline_bus.canonical import Fields, canonical_json, fields_of
from gangline_bus.codec import encode
from gangline_bus.decision import Decider, Decision
from gangline_bus.fold import Folded, fold_record, records_between
from gangline_bus.memory import Broker
from gangline_bus.ports import Bus, OutRecord, TopicPartition, TopicSettings
from gangline_bus.snapshot import SnapshotHeader, Snapshots
from gangline_bus.state_json import DataclassCodec
from gangline_gateway import view_snapshot
from gangline_quota.core import snapshot as quota_snapshot
from gangline_quota.core.decide import Quota
from gangline_scheduler.core import snapshot as scheduler_snapshot
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.catalog import event_types
from gangline_schemas.envelope import Envelope, LogPosition
from golden import stories
from golden.scenario import Logged, Scenario
from support.deciders import DECIDERS

SNAPSHOT_AT = 0.75
FOLDER = Path(__file__).parent
SEED = 7
EVENTS = 4000


def _canonical(state: Any, known: Fields | None = None) -> bytes:
    return canonical_json(state, known=known)


@dataclass(frozen=True, slots=True)
class Kind:
    """One log: its file's name, who folds it, how its state is kept, and its canonical form."""

    file: str
    decider: Callable[[], Decider[Any, Any]]
    codec: Callable[[Callable[[], Any]], DataclassCodec[Any]]
    canonical: Callable[..., bytes]


KINDS = {
    "quota": Kind("quota.jsonl.gz", Quota, quota_snapshot.codec, quota_snapshot.canonical),
    "scheduler": Kind(
        "scheduling.jsonl.gz", Scheduler, scheduler_snapshot.codec, scheduler_snapshot.canonical
    ),
}
KINDS |= {
    name: Kind(f"{name}.jsonl.gz", known.make, lambda _, known=known: known.codec(), _canonical)
    for name, known in DECIDERS.items()
    if name not in KINDS
}


CODECS: dict[str, Callable[[], DataclassCodec[Any]]] = {
    **{name: known.codec for name, known in DECIDERS.items()},
    "gateway": view_snapshot.codec,
}
"""How each service that keeps snapshots keeps its state."""


def releases() -> list[Path]:
    """The folders of all releases."""
    return sorted(path.parent for path in FOLDER.glob("*/recorded.json"))


def write_release(folder: Path) -> None:
    """Live the scenario and record it. Raises FileExistsError: a release is never rewritten."""
    folder.mkdir()
    write_logs(folder)
    write_states(folder)


def write_logs(folder: Path) -> None:
    """Record the logs that a release lacks."""
    scenario = Scenario(SEED)
    scenario.run(EVENTS)
    logs = {**stories.logs(), **scenario.logs}
    path = folder / "recorded.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, kind in KINDS.items():
        if name in recorded:
            continue
        _write(folder / kind.file, logs[name])
        state = fold(kind, folder / kind.file)
        facts = kind.codec(kind.decider().initial).copy(state)
        recorded[name] = {
            "events": len(logs[name]),
            "sha256": hashlib.sha256(kind.canonical(state)).hexdigest(),
            "fields": {type(state).__name__: sorted(facts), **fields_of(facts)},
        }
    _write_json(path, recorded)


def write_states(folder: Path) -> None:
    """Record how this version keeps the states of a release's logs; of one that is not out yet."""
    for name, kind in KINDS.items():
        (folder / f"{name}.snapshot").write_bytes(_snapshot(kind, folder / kind.file))
    _write_json(folder / "formats.json", formats())


def formats() -> dict[str, dict[str, object]]:
    """The version and form of each service's state, as they are now."""
    codecs = {name: codec() for name, codec in CODECS.items()}
    return {name: {"version": c.version, "form": c.form} for name, c in codecs.items()}


def bus_with(kind: Kind, path: Path) -> tuple[Bus, TopicPartition]:
    """A bus on which a log stands as its service wrote it, and where."""
    bus, place = Broker().connect("golden"), TopicPartition(kind.decider().log, 0)
    bus.create_topics([TopicSettings(place.topic, 1, -1)])
    writer = bus.writer()
    for record in _records(path, place):
        writer.send(record)
    return bus, place


def fold(kind: Kind, path: Path) -> Any:
    """The state that the production fold makes of a log."""
    decider = kind.decider()
    state = decider.initial()
    for logged in read_log(path):
        state = decider.evolve(state, Decision(logged.subject, logged.event), logged.at)
    return state


def read_log(path: Path) -> Iterator[Logged]:
    """The events of a log, in order, read as a consumer of this version reads them."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            event = event_types()[entry["type"]].decode(json.dumps(entry["data"]))
            yield Logged(entry["subject"], event, datetime.fromisoformat(entry["at"]))


def _records(path: Path, place: TopicPartition) -> Iterator[OutRecord]:
    for seq, logged in enumerate(read_log(path)):
        envelope = Envelope(
            f"golden-{seq}", "/golden", logged.at, logged.subject, logged.event,
            position=LogPosition(0, 1, seq),
        )  # fmt: skip
        yield encode(envelope, topic=place.topic, partition=place.partition)


def _snapshot(kind: Kind, path: Path) -> bytes:
    """What a leader of this version keeps after a part of the log."""
    (bus, place), decider, kept = bus_with(kind, path), kind.decider(), list[bytes]()
    at = int(len(list(read_log(path))) * SNAPSHOT_AT)
    folded = Folded(decider.initial())
    for record in records_between(bus, "golden", place, 0, at):
        fold_record(decider, folded, record)
    snapshots = Snapshots(Held(kept), kind.codec(decider.initial))
    snapshots.write(decider.name, place, folded, folded.offset)
    return kept[0]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


class Held:
    """`SnapshotStore` over a list."""

    def __init__(self, held: list[bytes]) -> None:
        self.held = held

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        return reversed(self.held)

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self.held.append(data)


def _write(path: Path, log: list[Logged]) -> None:
    entries = [
        {
            "type": logged.event.type,
            "subject": logged.subject,
            "at": logged.at.isoformat(),
            "data": logged.event.data(),
        }
        for logged in log
    ]
    text = "".join(f"{json.dumps(entry, separators=(',', ':'))}\n" for entry in entries)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
