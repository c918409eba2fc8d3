"""Short stories of the services whose logs the scenario does not have.

Fault manager and checkpoint service decide in a simulated cluster; the others are driven by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline_alerts.core.model import Delivered
from gangline_bus.codec import receive
from gangline_schemas.catalog import Topic
from gangline_schemas.events.pipeline_requests import SnapshotAnnounced
from gangline_schemas.job import JobState
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters
from gangsim.draw import draw
from gangsim.parts import Parts
from gangsim.world import World
from golden.scenario import Logged
from support.builders.alerts import AlertsRun
from support.builders.pipelines import TEAM, PipelineRun, pipeline
from support.builders.registry import RegistryRun, gate
from support.harnesses.study_world import Fate, StudyWorld

SEED = 2002
MONTHS = 6
MONTH_S = 31 * 86_400.0


def logs() -> Mapping[str, list[Logged]]:
    """The log of each service."""
    return {
        **_simulated(),
        "alerts": _alerts(),
        "pipelines": _pipelines(),
        "registry": _registry(),
        "studies": _studies(),
    }


def _simulated() -> dict[str, list[Logged]]:
    world = World(draw(SEED), Parts())
    outcome = world.run()
    if outcome.violation:
        raise AssertionError(outcome.violation)
    found: dict[str, list[Logged]] = {}
    for name, topic in (("fault-manager", Topic.FAULTS), ("checkpoint-service", Topic.CHECKPOINTS)):
        records = world.broker.dump(world.names.name(topic))
        envelopes = [receive(record).envelope for record in records]
        found[name] = [Logged(one.subject, one.data, one.time) for one in envelopes]
    return found


def _logged(run: Any) -> list[Logged]:
    return [Logged(decision.subject, decision.event, at) for decision, at in run.log]


def _alerts() -> list[Logged]:
    run = AlertsRun()
    for number in range(MONTHS):
        run.tick(MONTH_S)
        run.settle()
        run.node("n1")
        spec = run.queue(f"job-{number}", notify=[{"on": ["failed"], "webhook": "ops"}])
        run.tick(100)
        run.allocate(f"job-{number}", spec, 8, ("n1",))
        run.save(f"job-{number}", 10)
        run.change(f"job-{number}", JobState.FAILED)
        run.tick(100)
        for key in run.effects():
            run.done(key, Delivered(0.1, "HTTP 200"))
    return _logged(run)


def _pipelines() -> list[Logged]:
    run = PipelineRun()
    steps: dict[str, Any] = {"a": {"out": ["x"]}, "b": {"in": {"y": "a.x"}, "retry": {"max": 1}}}
    triggers = {
        "new-text": {"snapshot": "*"},
        "nightly": {"schedule": "0 3 1 * *", "zone": "Europe/Berlin"},
    }
    for number in range(MONTHS):
        run.tick(MONTH_S)
        run.finish()
        run.salt = str(number // 2)
        run.apply(pipeline(steps, description=str(number), triggers=triggers))
        run.feed(SnapshotAnnounced(team=TEAM, snapshot=f"text@xxh3-{number:032x}"))
        if run.jobs:
            run.fail(next(iter(run.jobs)))
        run.finish()
        run.begin()
        run.check()
        run.finish()
    return _logged(run)


def _registry() -> list[Logged]:
    run = RegistryRun(gate(training_data={"max_age_days": 30}))
    for number in range(1, MONTHS + 1):
        run.tick(MONTH_S)
        snapshot = f"sales@xxh3-{number:032x}"
        run.profiled(snapshot)
        run.version(number, snapshot=snapshot, qa=f"scores of {number}")
        run.promote(number, reason="test")
        run.project()
    run.roll_back()
    return _logged(run)


def _studies() -> list[Logged]:
    def program(parameters: Parameters) -> Fate:
        x = parameters["x"]
        if not isinstance(x, float):
            raise TypeError("x is a number")
        return Fate([(x - 0.3) ** 2 + 1 / unit for unit in range(1, 10)])

    world = StudyWorld(program, gangs=4, seed=SEED, tick_s=30)
    for name, stopping in (
        ("halved", {"kind": "asha", "mode": "promote", "min_steps": 1}),
        ("median", "median"),
    ):
        fields = {
            "name": name,
            "team": TEAM,
            "objective": {"metric": "loss"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "sampler": "random",
            "stopping": stopping,
            "limits": {"trials": 12, "parallel": 4},
            "job": {"run": "x", "resources": {"gpus": 1}},
        }
        world.submit(name, StudySpec.model_validate(fields))
    world.run()
    return _logged(world)
