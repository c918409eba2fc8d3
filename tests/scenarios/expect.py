"""What a scenario expects against what was decided and is so: one sentence for each miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gangline_scheduler.core import cpu_jobs, cycle
from gangline_scheduler.core.policy.fair_tree import due, total_of
from gangline_scheduler.core.policy.order import in_order
from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import GangAllocated, GangStopping, JobStateChanged
from scenarios.checked import Checked
from scenarios.grammar import StartRow, StopRow, Then, WaitRow
from support.builders.deciding import every


def misses(then: Then, table: Checked, decided: Sequence[Event]) -> list[str]:
    """All that is not as expected."""
    return [
        *_starts(then, table, every(decided, GangAllocated)),
        *_stops(then, every(decided, GangStopping)),
        *_ends(then, every(decided, JobStateChanged)),
        *_waits(then, table),
        *_holds(then, table),
        *_order(then, table),
        *_reserved(then, table),
    ]


def _differs(what: str, wanted: object, found: object) -> Iterator[str]:
    if wanted != found:
        yield f"{what}: {found}, not {wanted}"


def _starts(then: Then, table: Checked, started: list[GangAllocated]) -> Iterator[str]:
    if then.starts is None:
        return
    found = [event.job_id for event in started]
    if isinstance(then.starts, list):
        yield from _differs("starts", then.starts, found)
        return
    yield from _differs("starts", sorted(then.starts), sorted(found))
    for event in started:
        row = then.starts.get(event.job_id)
        if row is not None:
            yield from _start(row, event, table)


def _start(row: StartRow, event: GangAllocated, table: Checked) -> Iterator[str]:
    where, models = {}, dict[str, int]()
    for part in event.nodes:
        where[part.node_id] = len(part.ranks)
        known = dict(table.state.nodes[part.node_id].gpu_models)
        for index in part.gpus:
            models[known[index]] = models.get(known[index], 0) + 1
    found = StartRow(
        nodes=where,
        level=event.level,
        gpus=event.world_size,
        models=models,
        from_step=event.resume.step if event.resume is not None else None,
    )
    for name, wanted in row.model_dump(exclude_unset=True).items():
        yield from _differs(f"{event.job_id} starts: {name}", wanted, getattr(found, name))


def _stops(then: Then, stopped: list[GangStopping]) -> Iterator[str]:
    if then.stops is None:
        return
    found = {event.job_id: event for event in stopped}
    yield from _differs("stops", sorted(then.stops), sorted(found))
    for job_id, row in then.stops.items():
        event = found.get(job_id)
        wanted = StopRow(reason=row) if isinstance(row, str) else row
        if event is not None:
            yield from _differs(f"{job_id} stops", wanted.reason, event.reason.value)
        if event is not None and wanted.to is not None:
            yield from _differs(f"{job_id} goes on with", wanted.to, event.resize_to)


def _ends(then: Then, changed: list[JobStateChanged]) -> Iterator[str]:
    if then.ends is not None:
        found = {event.job_id: event.state.value for event in changed if event.state.terminal}
        yield from _differs("ends", then.ends, found)


def _waits(then: Then, table: Checked) -> Iterator[str]:
    for job_id, row in then.waits.items():
        wanted = WaitRow(code=row) if isinstance(row, str) else row
        job = table.state.jobs.get(job_id)
        if job is None or not table.state.is_pending(job_id) or job.waiting is None:
            yield f"{job_id} does not wait"
            continue
        yield from _differs(f"{job_id} waits", wanted.code, job.waiting.code)
        if wanted.says not in job.waiting.message:
            yield f"{job_id} is told '{job.waiting.message}', without '{wanted.says}'"


def _holds(then: Then, table: Checked) -> Iterator[str]:
    state = table.state
    for job_id, gpus in then.runs.items():
        job = state.jobs.get(job_id)
        yield from _differs(
            f"GPUs of {job_id}", gpus, job.allocated_gpus if job is not None else None
        )
    for node_id, gpus in then.free.items():
        node = state.free.get(node_id)
        yield from _differs(f"free on {node_id}", gpus, node.size if node is not None else None)
    for team, gpus in then.used.items():
        yield from _differs(f"used by {team}", gpus, state.used.get(team, 0))
    if then.reserved_gpus is not None:
        found = {job_id: dict(item.nodes) for job_id, item in state.reserved.items()}
        yield from _differs("reserved_gpus", then.reserved_gpus, found)


def _order(then: Then, table: Checked) -> Iterator[str]:
    state, now, order = table.state, table.now, table.policy.order
    if then.queue is not None:
        found = [job.job_id for job in in_order(order, lambda: state, now)]
        found += [job.job_id for job in cpu_jobs.in_order(state)]
        yield from _differs("queue", then.queue, found)
    for job_id, value in then.value.items():
        given = order.rank(state.jobs[job_id], state, now)[1]
        yield from _differs(f"value of {job_id}", value, round(given, 6))
    for team, value in then.due.items():
        share = due(state, team, total_of(state), now)
        yield from _differs(f"{team} has of its due", value, round(share, 4))


def _reserved(then: Then, table: Checked) -> Iterator[str]:
    if then.reserved is None:
        return
    made = cycle.reservations(table.state, table.now, table.policy)
    found = {item.job_id: item for item in made}
    yield from _differs("reserved for", sorted(then.reserved), sorted(found))
    for job_id, row in then.reserved.items():
        if job_id in found:
            yield from _differs(f"{job_id} starts in", row.start, found[job_id].start - table.now)
        if job_id in found and row.nodes is not None:
            nodes = sorted(found[job_id].nodes)
            yield from _differs(f"{job_id} is reserved", sorted(row.nodes), nodes)
