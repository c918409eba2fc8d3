"""Golden logs as files: one gzipped JSON line for each event, and what they fold to.

`recorded.json` holds for each log the number of events, the sha256 of the canonical state, and the
fields that the state's values had: what a later version adds to them is no part of the hash.
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

from gangline_bus.canonical import fields_of
from gangline_bus.decision import Decider, Decision
from gangline_bus.state_json import DataclassCodec
from gangline_quota import snapshot as quota_snapshot
from gangline_quota.decide import Quota
from gangline_scheduler import snapshot as scheduler_snapshot
from gangline_scheduler.decide import Scheduler
from gangline_schemas.catalog import event_types
from golden.scenario import Logged, Scenario

FOLDER = Path(__file__).parent
SEED = 7
EVENTS = 4000


@dataclass(frozen=True, slots=True)
class Kind:
    """One log: its file's name, who folds it, how its state is kept, and its canonical form."""

    file: str
    decider: Callable[[], Decider[Any]]
    codec: Callable[[Callable[[], Any]], DataclassCodec[Any]]
    canonical: Callable[..., bytes]


KINDS = {
    "quota": Kind("quota.jsonl.gz", Quota, quota_snapshot.codec, quota_snapshot.canonical),
    "scheduler": Kind(
        "scheduling.jsonl.gz", Scheduler, scheduler_snapshot.codec, scheduler_snapshot.canonical
    ),
}


def releases() -> list[Path]:
    """The folders of all releases."""
    return sorted(path.parent for path in FOLDER.glob("*/recorded.json"))


def write_release(folder: Path) -> None:
    """Live the scenario and record it. Raises FileExistsError: a release is never rewritten."""
    scenario = Scenario(SEED)
    scenario.run(EVENTS)
    folder.mkdir()
    recorded = {}
    for name, kind in KINDS.items():
        _write(folder / kind.file, scenario.logs[name])
        state = fold(kind, folder / kind.file)
        facts = kind.codec(kind.decider().initial).copy(state)
        recorded[name] = {
            "events": len(scenario.logs[name]),
            "sha256": hashlib.sha256(kind.canonical(state)).hexdigest(),
            "fields": {type(state).__name__: sorted(facts), **fields_of(facts)},
        }
    text = json.dumps(recorded, indent=1)
    (folder / "recorded.json").write_text(f"{text}\n", encoding="utf-8")


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
