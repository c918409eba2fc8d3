"""A node agent of a machine with GPUs, on a real bus."""

from __future__ import annotations

from pathlib import Path

from gangline_schemas.events.heartbeats import GpuHealth, GpuStatus, WorkerHeartbeat
from gangline_worker.agent.host.drivers import driver_variables
from support.fixtures.gpu import TRAINS, needs_gpus, nvml_index
from support.harnesses.node import NodeHarness
from support.harnesses.warm_ranks import write


@needs_gpus(1)
def test_an_agent_offers_its_gpus_and_runs_a_gang_on_one_again_and_again(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    index = nvml_index(0)
    write(tmp_path, {"train.py": TRAINS})
    settings = {"GANGLINE_STANDBYS": "2", "GANGLINE_HEALTH_INTERVAL_S": "0.5"}
    with NodeHarness(tmp_path, kafka_bootstrap, **settings, **driver_variables()) as harness:
        del harness._environment["GANGLINE_SLOTS"]
        node = harness.start_agent(warm="standby")
        [offered] = [gpu for gpu in node.gpus if gpu.index == index]
        assert offered.model != "cpu"

        def told() -> tuple[GpuStatus, GpuHealth] | None:
            """Of the newest heartbeat with both: each reading of the health is sent once."""
            for beat in reversed(harness.of(WorkerHeartbeat)):
                if beat.gpus and beat.health:
                    [status] = [gpu for gpu in beat.gpus if gpu.index == index]
                    [health] = [gpu for gpu in beat.health.gpus if gpu.index == index]
                    return status, health
            return None

        def used_gb() -> float:
            found = told()
            assert found is not None
            return found[0].memory_used_gb or 0.0

        harness.wait(lambda: told() is not None, "no heartbeat tells of the GPU")
        before_gb = used_gb()
        for attempt in (1, 2):
            command = ["python", str(tmp_path / "train.py")]
            gang = harness.allocate(node, attempt=attempt, gpus=[index], command=command)
            harness.wait(lambda a=attempt: "holds" in harness.lines(0, a), "it never held memory")
            harness.wait(lambda: used_gb() - before_gb > 0.9, "no heartbeat tells of the memory")
            harness.fail_as_hung(gang)
            harness.exits(attempt)
            harness.wait(lambda: used_gb() - before_gb < 0.3, "the memory is not given back")
        first, second = (harness.lines(0, attempt)[:6] for attempt in (1, 2))
        assert first == second
        assert (*first[:2], first[5]) == ("warm True", "gpus 1", "holds")
        found = told()
        assert found is not None
        assert found[1].temperature_c is not None
