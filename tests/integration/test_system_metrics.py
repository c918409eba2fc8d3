"""Metrics that a node agent takes of a job's processes, without any code of the job."""

from __future__ import annotations

from pathlib import Path

from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.harnesses.node import TEAM, NodeHarness, python


def test_the_use_of_a_job_is_logged_to_its_run(tmp_path: Path, kafka_bootstrap: str) -> None:
    with NodeHarness(tmp_path, kafka_bootstrap, GANGLINE_SYSTEM_METRICS_S="0.3") as harness:
        node = harness.start_agent()
        harness.allocate(
            node,
            command=python("""
                import time
                kept = bytearray(80 << 20)
                ends = time.process_time() + 120
                while time.process_time() < ends:
                    pass
            """),
        )
        prefix = f"system/{node.node_id}/"

        def newest() -> dict[str, float | None]:
            found = harness.of(MetricLogged)
            return dict(zip(found[-1].name, found[-1].value, strict=True)) if found else {}

        def is_busy() -> bool:
            cpu, memory = (
                newest().get(prefix + name) or 0
                for name in ("cpu_utilization_percentage", "system_memory_usage_megabytes")
            )
            return cpu > 0 and memory > 160

        harness.wait(is_busy, "the metrics never showed two ranks at work")
        (run_id,) = {event.run_id for event in harness.of(MetricLogged)}
        assert run_id == mlflow_run_id("job-1")
        assert {event.team for event in harness.of(MetricLogged)} == {TEAM}
        uses = [beat.use for beat in harness.of(WorkerHeartbeat) if beat.use is not None]
        assert uses[0].disk_free_gb
        # a reading comes again until the bus has confirmed it, in the same order
        assert uses == sorted(uses, key=lambda use: use.read_at)
