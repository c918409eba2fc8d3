"""Points per second into ClickHouse: records on the bus -> decoded -> acknowledged rows.

Run it alone: python tests/bench/bench_ingest.py [--points N] [--memory]. Records come from a real
broker, or with `--memory` from the bus in memory: then what is measured is the tracker and the
engine alone. A point is one value of one metric at one step: a row of gangline.steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from harness import Context, Result, in_own_process, scratch

from gangline.local.kafka import EmbeddedKafka
from gangline_bus.codec import encode
from gangline_bus.kafka import KafkaBus
from gangline_bus.memory import Broker
from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.steps import WorkerStep
from gangline_tracker.batches import StepBatch
from gangline_tracker.engine import Engine
from gangline_tracker.ingest import STEPS, Pipeline
from gangline_tracker.migrate import migrate
from gangline_tracker.sink import ClickHouseSink

METRICS = ("loss", "lr", "grad_norm", "tokens_per_s", "step_s", "data_wait_s", "mfu", "memory_gb")
STEPS_PER_RECORD = 20
TARGET_PER_S = 300_000
FLUSH_EVERY = 2_000
BASE_MS = 1_700_000_000_000


def produce(bus: Bus, points: int, runs: int = 50, names: TopicNames | None = None) -> int:
    """Fill gangline.steps; the number of points written."""
    names = names or TopicNames()
    create_topics(bus, names)
    topic = names.name(Topic.STEPS)
    writer = bus.writer()
    per_record = STEPS_PER_RECORD * len(METRICS)
    count = points // per_record
    for number in range(count):
        first = number // runs * STEPS_PER_RECORD
        steps = tuple(range(first, first + STEPS_PER_RECORD))
        event = WorkerStep(
            run_id=f"run-{number % runs}",
            team=f"team-{number % 5}",
            attempt=1,
            rank=0,
            step=steps,
            time_ms=tuple(BASE_MS + 100 * step for step in steps),
            metrics={
                name: tuple(1.0 / (step + index + 1.7) for step in steps)
                for index, name in enumerate(METRICS)
            },
        )
        envelope = Envelope(str(number), "bench", datetime.now(UTC), event.run_id, event)
        writer.send(encode(envelope, topic=topic))
        if number % FLUSH_EVERY == 0:
            writer.flush(60)  # the queue to the bus is bounded
    assert writer.flush(120) == 0
    writer.close()
    return count * per_record


def measure(points: int, connect: Callable[[str], Bus]) -> dict[str, float]:
    """Ingest `points` and count the rows."""
    sent = produce(connect("bench"), points)
    with tempfile.TemporaryDirectory() as folder:
        client = Engine(f"chdb://{Path(folder) / 'db'}").client()
        migrate(client)
        pipeline = Pipeline(
            STEPS,
            connect("tracker"),
            ClickHouseSink(client),
            StepBatch,
            lambda: datetime.now(UTC),
        )
        pipeline.seek()
        started, cpu = time.perf_counter(), time.process_time()
        while pipeline.counts.records < sent // (STEPS_PER_RECORD * len(METRICS)):
            pipeline.cycle(0.2)
        pipeline.flush()
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
        rows = int(client.query("SELECT count() FROM gangline.steps").result_rows[0][0])
        client.close()
    assert rows == sent, f"{rows} rows of {sent} points"
    return {
        "points": sent,
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "points_per_s": round(sent / wall),
        "target_per_s": TARGET_PER_S,
    }


def run(context: Context) -> list[Result]:
    """From a real broker, and from memory for comparison."""
    points = 1_000_000 if context.quick else 3_000_000
    found = []
    for name, more in (("ingest_points_per_s", []), ("ingest_points_per_s_memory", ["--memory"])):
        figures = [
            in_own_process("bench_ingest", "--points", str(points), *more)
            for _ in range(context.repeats(3))
        ]
        cpu = statistics.median(f["points"] / f["cpu_s"] for f in figures)
        note = f"{points:,} points; {cpu:,.0f} per CPU second"
        rates = [f["points_per_s"] for f in figures]
        found.append(context.median(name, rates, "points/s", note=note))
    return found


def main() -> int:
    """Print the figures as one JSON line; 0 when the target is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=3_000_000)
    parser.add_argument("--memory", action="store_true", help="a bus in memory, no broker")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    if options.memory:
        result = measure(options.points, Broker().connect)
    else:
        with scratch() as folder, EmbeddedKafka(folder / "kafka") as kafka:
            result = measure(options.points, lambda name: KafkaBus(kafka.bootstrap, client=name))
    print(json.dumps({"bench": "ingest", **result}))
    if options.json:
        options.json.write_text(json.dumps(result), encoding="utf-8")
    return 0 if result["points_per_s"] >= TARGET_PER_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
