"""What must hold when all is over: everything ended or waits, nothing lags, replay agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gangline_bus.fold import fold_log
from gangline_bus.ports import TopicPartition
from gangline_schemas.catalog import Topic
from gangline_schemas.job import JobState
from gangsim.checkpoint_log import log_violations
from gangsim.engine import Violation
from gangsim.watch import LOGS

if TYPE_CHECKING:
    from gangsim.services import ServiceProcess
    from gangsim.world import World


def unsettled(world: World) -> str:
    """5, 14: what is not over yet, or ""."""
    found = [*_open_jobs(world), *_busy_nodes(world)]
    if world.users.waiting:
        found.append("a user still waits for the bus")
    if world.machines.running:
        found.append("ranks still run")
    return found[0] if found else _lag(world)


def _open_jobs(world: World) -> Iterator[str]:
    jobs = world.watch.jobs
    for job_id in world.users.submitted:
        job = jobs.admitted.get(job_id)
        if job_id in jobs.rejected:
            continue
        if job is None:
            yield f"{job_id} was submitted and never answered"
        elif not job.state.terminal and (job.state is not JobState.PENDING or not job.waiting):
            yield f"{job_id} is {job.state}"


def _busy_nodes(world: World) -> Iterator[str]:
    for node in world.nodes.values():
        if node.lost:
            continue
        if node.outbox:
            yield f"{node.node_id} has {len(node.outbox)} records in its spool"
        if node.process is None or not node.process.core.member.standing.joined:
            yield f"{node.node_id} has not joined"
        elif node.process.core.gangs:
            yield f"{node.node_id} still has {node.process.core.gangs[0].key}"


def leader(world: World, service: str) -> ServiceProcess | None:
    """The instance that leads."""
    for process in world.process(service):
        if process.alive and not process.paused and process.loop is not None:
            return process
    return None


def _lag(world: World) -> str:
    bus = world.broker.connect("ending")
    for service in sorted({process.service.name for process in world.processes}):
        process = leader(world, service)
        if process is None or process.loop is None:
            return f"nobody leads {service}"
        decider = process.loop.decider
        places = [at for topic in decider.inputs for at in world.names.places(bus, topic)]
        done = bus.committed(f"gangline.{decider.name}.0.inputs", places)
        ends = bus.end_offsets(places)
        for place in places:
            if (done[place] or 0) < ends[place]:
                return f"{service} is at {done[place]} of {ends[place]} of {place.topic}"
        if process.executor is not None and process.executor.pending:
            return f"{service} executes {process.executor.pending} effects"
        wanted = decider.effects(process.loop.state, process.loop.soft)
        if wanted:
            return f"{service} wants {sorted(wanted)}"
    return ""


def _refused_again(world: World, topic: str, readers: int) -> int:
    """How often records were refused once more, as no log names an input that was only refused.

    Each reader refuses what cannot be read, and only the service that a poison ends refuses it.
    """
    names = ("gangline_dlq_partition", "gangline_dlq_offset")
    times = Counter(
        tuple(int(dict(record.headers)[name]) for name in names)
        for record in world.broker.dump(world.names.dlq(topic))
    )
    poisons = Counter(
        (at.partition, at.offset)
        for met in world.poisons.met.values()
        for at in met
        if at.topic == topic
    )
    return sum(max(0, count - (poisons[at] or readers)) for at, count in times.items())


def check(world: World) -> None:
    """4, 9, 15 and what else must hold at the end. Raises Violation."""
    bus = world.broker.connect("check")
    for service in sorted({process.service.name for process in world.processes}):
        process = leader(world, service)
        if process is None or process.loop is None:
            raise Violation(f"nobody leads {service} any more")
        loop = process.loop
        place = TopicPartition(world.names.name(loop.decider.log), 0)
        folded = fold_log(bus, process.service.decider(), place)
        fingerprint = process.service.fingerprint
        if fingerprint(folded.state) != fingerprint(loop.state):
            raise Violation(f"{service}: the replay of its log differs from its live state")
    log = world.broker.dump(world.names.name(Topic.CHECKPOINTS))
    wrong = log_violations(world.receive(record).envelope.data for record in log)
    if wrong:
        raise Violation(wrong[0])
    forgot = any(fault.kind == "forget" for fault in world.plan.faults)
    for topic in (Topic.REQUESTS, Topic.ADMIN, Topic.WORKERS, *LOGS):
        name = world.names.name(topic)
        readers = sum(topic in loop.decider.inputs for loop in world.live_loops.values())
        wanted = world.users.spoiled.get(name, 0) * readers
        wanted += sum(at.topic == name for met in world.poisons.met.values() for at in met)
        refused = len(world.broker.dump(world.names.dlq(name)))
        again = _refused_again(world, name, readers) if forgot else 0
        if refused - again != wanted:
            raise Violation(f"{refused} records of {name} were refused, {wanted} are bad")
    _bounded(world)


def check_tidy(world: World) -> None:
    """15: long after the end the store holds no parts of checkpoints that do not count."""
    left = world.watch.checkpoints.leftovers()
    if left:
        raise Violation(f"{len(left)} objects are left, for example {left[0]}")


def _bounded(world: World) -> None:
    """15: of what has ended, only bounded memories are left."""
    waiting = sorted(
        job_id for job_id, job in world.watch.jobs.admitted.items() if not job.state.terminal
    )
    states: dict[str, Any] = {name: loop.state for name, loop in world.live_loops.items()}
    left = {
        "scheduler.jobs": sorted(states["scheduler"].jobs),
        "quota.active": sorted(states["quota"].active),
    }
    for name, jobs in left.items():
        if jobs != waiting:
            raise Violation(f"{name} holds {jobs}, waiting are {waiting}")
    unpaid = sorted(world.watch.jobs.released.keys() - world.watch.jobs.charged.keys())
    if unpaid:
        raise Violation(f"attempts were never charged: {unpaid}")
    if states["quota"].meters:
        raise Violation(f"meters still run: {sorted(states['quota'].meters)}")
    if states["fault-manager"].gangs:
        raise Violation(f"gangs are still watched: {sorted(states['fault-manager'].gangs)}")
    open_jobs = [job_id for job_id, job in states["checkpoint-service"].jobs.items() if job.live]
    if open_jobs:
        raise Violation(f"attempts are still live for the checkpoint service: {open_jobs}")
