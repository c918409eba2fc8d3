"""A simulated year at design size: what a takeover, the state and a cycle cost after it.

Each service, and the gateway's view, gets the state that 32 days and 365 days of work leave behind
(year_work.py); the live part is the same. GANGLINE_BENCH_YEAR=NAME,... runs some services. Then
- a snapshot is taken, and the service works on until the longest tail is written: 20,000 events;
- a process of its own takes over from both: read, checked, folded, the invariants too;
- it works on, and each input with its check is a cycle.

All times are CPU time. `..._growth` is the figure of the year over that of the month: 1 where
nothing grows with ended work.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Context, Result, in_own_process, scratch
from scheduler_harness import quantile
from year_alerts import alert_year
from year_automation import AUTOMATION
from year_pipelines import pipeline_year
from year_services import DECIDERS
from year_work import (
    MONTH_DAYS,
    REPORTS,
    YEAR_DAYS,
    Service,
    committed,
    pass_time,
    records,
    ref,
    spec_of,
)

from gangline_bus.codec import decode
from gangline_bus.fold import event_name
from gangline_bus.ports import Record, TopicPartition
from gangline_bus.snapshot import EVERY, FORMAT, SnapshotHeader, Snapshots, pack
from gangline_service.deciding import settle_collector

SERVICES = {**DECIDERS, **AUTOMATION, "pipelines": pipeline_year, "alerts": alert_year}
BUILD_TIMEOUT_S = 3600.0
FIRST = 1_000_000
"""The seq of the last event before the snapshot."""


@dataclass
class Kept:
    """`SnapshotStore` of one snapshot."""

    data: bytes = b""

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        yield self.data

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self.data = data


@dataclass
class Log:
    """As much of `ports.Bus` and `ports.Reader` as a fold of one log needs."""

    place: TopicPartition
    records: list[Record]
    at: int = 0

    def start_offsets(self, places: object) -> dict[TopicPartition, int]:
        return {self.place: self.records[0].offset}

    def end_offsets(self, places: object) -> dict[TopicPartition, int]:
        return {self.place: self.records[-1].offset + 1}

    def reader(self, name: str, *, patient: bool = False) -> Log:
        return self

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.at = positions[self.place] - self.records[0].offset

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        found = self.records[self.at : self.at + max_records]
        self.at += len(found)
        return found

    def positions(self) -> dict[TopicPartition, int]:
        return {self.place: self.records[0].offset + self.at}

    def close(self) -> None: ...


def build(service: Service, days: int, tail: int, folder: Path) -> dict[str, Any]:
    """Fold the work, take a snapshot, work on; `folder` gets what an heir needs."""
    gc.freeze()
    gc.disable()  # as in a service that is settled: a state has no cycles
    began_s = time.process_time()
    runs = pass_time(service, days)
    folded_s = time.process_time() - began_s
    began_s = time.process_time()
    facts = service.codec.copy(service.state)
    copy_s = time.process_time() - began_s
    anchor = records([(service.now, committed(ref("anchor", spec_of(0), 1, 4)))], FIRST)[0]
    header = SnapshotHeader(
        format=FORMAT, state=service.codec.version, form=service.codec.form,
        service=service.decider.name, shard=0, next_seq=FIRST + 1, writer_epoch=1, offset=FIRST,
        last=event_name(decode(anchor, own=True)),
    )  # fmt: skip
    began_s = time.process_time()
    data = pack(header, service.codec.dump(facts))
    dump_s = time.process_time() - began_s
    del facts
    began_s = time.process_time()
    service.checks = False
    while len(service.written) < tail:
        service.round()
    came = records(service.written, FIRST + 1)
    (folder / "snapshot").write_bytes(data)
    (folder / "log").write_bytes(pickle.dumps(([anchor, *came], service.now)))
    return {
        "runs": runs,
        "fold_s": folded_s,
        "snapshot_copy_ms": copy_s * 1e3,
        "dump_s": dump_s,
        "snapshot_mb": len(data) / 1e6,
        "tail_s": time.process_time() - began_s,
    }


def inherit(service: Service, rounds: int, folder: Path) -> dict[str, Any]:
    """Take over, then work on."""
    kept = Kept((folder / "snapshot").read_bytes())
    log_records, service.now = pickle.loads((folder / "log").read_bytes())
    log = Log(TopicPartition(service.decider.log.value, 0), log_records)
    load, taken = service.codec.load, []

    def timed(lines: Any, version: int | None = None) -> Any:
        began_s = time.process_time()
        state = load(lines, version)
        taken.append(time.process_time() - began_s)
        return state

    service.codec.load = timed
    gc.collect()
    gc.freeze()
    gc.disable()
    before = memory_mb()
    began_s = time.process_time()
    snapshots = Snapshots(kept, service.codec)
    folded = snapshots.restore(log, service.decider, log.place)  # type: ignore[arg-type]
    takeover_s = time.process_time() - began_s
    assert folded is not None, "the snapshot was passed over"
    assert folded.next_seq == FIRST + len(log_records), "the tail was not folded"
    after = memory_mb()
    service.state = folded.state
    gc.enable()
    settle_collector()
    service.watched_round()
    service.cycles.clear()
    for _ in range(rounds):
        service.watched_round()
    kinds = {kind: sorted(taken_ms) for kind, taken_ms in service.cycles.items()}
    return {
        "takeover_s": takeover_s,
        "load_s": taken[0],
        "memory_mb": after["VmRSS"] - before["VmRSS"],
        "peak_mb": after["VmHWM"] - before["VmRSS"],
        "kinds": kinds,
    }


def memory_mb() -> dict[str, float]:
    """Resident memory now and at most, of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    split = [line.split() for line in lines if line.startswith(("VmRSS", "VmHWM"))]
    return {name.rstrip(":"): int(kb) / 1e3 for name, kb, _ in split}


def measured(context: Context, name: str, days: int) -> dict[str, Any]:
    """Both processes of one service after so many days."""
    tail, rounds = (EVERY // 10, 25) if context.quick else (EVERY, 100)
    common = ["--service", name, "--days", str(days), *(["--quick"] if context.quick else [])]
    with scratch() as folder:
        at = ["--folder", str(folder)]
        built = in_own_process(
            "bench_year", *common, *at, "--tail", str(tail), timeout_s=BUILD_TIMEOUT_S
        )
        context.say(
            f"{name}, {days} days: {built['runs']:,} runs in {built['fold_s']:.0f} s of CPU, "
            f"{built['snapshot_mb']:.1f} MB, {tail:,} further events in {built['tail_s']:.0f} s"
        )
        heir = in_own_process(
            "bench_year", *common, *at, "--rounds", str(rounds), timeout_s=BUILD_TIMEOUT_S
        )
    return built | heir


def results(
    context: Context, name: str, month: dict[str, Any], year: dict[str, Any]
) -> Iterator[Result]:
    """The figures of a service after the year, and how they grew."""

    def figure(key: str, unit: str, note: str = "") -> Iterator[Result]:
        after = f"after 32 days {month[key]:.3g}; {note}".rstrip("; ")
        yield context.result(f"year_{name}_{key}", year[key], unit, note=after)
        growth = year[key] / month[key]
        yield context.result(f"year_{name}_{key.rpartition('_')[0]}_growth", growth, "x")

    for one in (month, year):
        cycles = [
            ms for kind, all_ms in one["kinds"].items() if kind not in REPORTS for ms in all_ms
        ]
        one["cycle_p50_ms"], one["cycle_p99_ms"] = quantile(cycles, 0.5), quantile(cycles, 0.99)
        one["cycles"] = len(cycles)
    parts = f"of it {year['load_s']:.2f} s to load the snapshot, the rest its tail; "
    yield from figure("takeover_s", "s", f"{parts}dumped in {year['dump_s']:.2f} s")
    yield from figure("memory_mb", "MB", f"at most {year['peak_mb']:.0f} while it is read")
    yield from figure("snapshot_mb", "MB", f"{year['runs']:,} runs folded")
    yield from figure("snapshot_copy_ms", "ms", "what a cycle waits for a snapshot")
    kinds = ", ".join(
        f"{kind} {quantile(all_ms, 0.5):.2g}/{quantile(all_ms, 0.99):.2g}"
        for kind, all_ms in sorted(year["kinds"].items())
    )
    yield from figure("cycle_p50_ms", "ms", f"P50/P99: {kinds}")
    yield from figure("cycle_p99_ms", "ms", f"n={year['cycles']:,}")


def run(context: Context) -> list[Result]:
    """Each service after a month and after a year."""
    found: list[Result] = []
    some = os.environ.get("GANGLINE_BENCH_YEAR")
    for name in some.split(",") if some else SERVICES:
        month, year = (measured(context, name, days) for days in (MONTH_DAYS, YEAR_DAYS))
        found += results(context, name, month, year)
    return found


def main() -> int:
    """One of the two processes of a service."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--service", choices=sorted(SERVICES), required=True)
    parser.add_argument("--days", type=int, required=True)
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--tail", type=int, help="build, and write so many further events")
    parser.add_argument("--rounds", type=int, help="take over, and work on for so many rounds")
    options = parser.parse_args()
    service = SERVICES[options.service]()
    if options.quick:
        service.runs_a_day = max(1, service.runs_a_day // 10)
    if options.tail is not None:
        figures = build(service, options.days, options.tail, options.folder)
    else:
        figures = inherit(service, options.rounds, options.folder)
    options.json.write_text(json.dumps(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
