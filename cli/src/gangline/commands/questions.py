"""`gangline explain` and `gangline what-if`: until when a job waits, what a new one would do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands.jobs import JobId
from gangline.commands.overriding import Fields, JobPath, OtherTeam, overrides_of
from gangline.job_file import read_job_file
from gangline.render import count
from gangline.session import Session
from gangline_schemas.api.jobs import ENDED
from gangline_schemas.api.questions import (
    AheadJob,
    Explanation,
    JobExplained,
    Outlook,
    PriceRange,
    WhatIf,
)

_INDENT = 14
_NEXT = {
    "quota": "gangline teams",
    "gpu_type": "gangline nodes",
    "shape": "gangline nodes",
    "topology": "gangline nodes",
    "admission": "gangline show {job}",
    "rejected": "gangline teams",
    "cancelled": "gangline checkpoints {job}",
    "failed": "gangline logs {job}",
    "running": "gangline watch {job}",
    "succeeded": "gangline metrics {job}",
}
_SHOWN = frozenset({
    "gpus_wanted", "team_gpus_used", "team_gpu_limit", "team_borrow_limit", "waited_s",
    "cluster_gpus_ready", "cluster_gpus_free",
})  # fmt: skip
"""Evidence that the scheduler's own numbers replace."""


def explain(session: Session, job_id: JobId) -> None:
    """Why a job is in its state, what it waits for and until when; the next step comes last."""
    found = session.client.explain(job_id)
    session.out.show(found, explained(found, datetime.now(UTC)))


def explained(found: Explanation, now: datetime) -> str:
    """An explanation on several lines of at most 80 columns."""
    lines = [_headline(found, now), render.wrap(found.message, "  ")]
    if found.waits_for is not None:
        lines += _labelled(_waits(found.waits_for, now))
    elif found.eta_note:
        lines += _labelled([("starts", found.eta_note)])
    lines += [
        render.wrap(_evidence(name, value), "  ")
        for name, value in found.evidence.items()
        if value not in (None, [], {}, found.message) and not (found.waits_for and name in _SHOWN)
    ]
    command = _NEXT.get(found.code) or _NEXT.get(found.state) or "gangline queue"
    return "\n".join([*lines, f"next: {command.format(job=found.job_id)}"])


def _headline(found: Explanation, now: datetime) -> str:
    """The job and its state; of one that ended also when it did."""
    if found.state not in ENDED:
        why = f": {found.code}" if found.code != found.state else ""
        return f"{found.job_id} is {found.state}{why}"
    was = "was " if found.state in {"cancelled", "rejected"} else ""
    when = (
        f" at {found.since:%Y-%m-%d %H:%M} UTC, {render.age(found.since, now)} ago"
        if found.since
        else ""
    )
    return f"{found.job_id} {was}{found.state}{when}"


def _evidence(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, int | float):
        name, value = name.removesuffix("_s"), render.duration(value)
    return f"{name.replace('_', ' ')}: {value}"


def _labelled(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [render.labelled(f"  {name}", text, _INDENT) for name, text in rows]


def _waits(waits: JobExplained, now: datetime) -> list[tuple[str, str]]:
    gpus, quota, order, freed = waits.gpus, waits.quota, waits.order, waits.freed
    wanted = f"{gpus.wanted}" if gpus.fewest == gpus.wanted else f"{gpus.fewest} to {gpus.wanted}"
    starts = _start(waits.outlook, now) if gpus.wanted else waits.outlook.eta_reason
    rows = [("starts", starts), ("place", _place(waits))]
    if order is not None:
        text = (
            f"{order.priority} (priority) + {order.share_penalty:g} (team's share) - "
            f"{order.waiting_bonus:g} (waiting) = {order.score:g}"
        )
        rows.append(("order", text))
    if quota is not None:
        more = f", with {quota.borrow_limit} to borrow" if quota.borrow_limit else ""
        text = (
            f"has {quota.allocated} of the {quota.ceiling} GPUs that it may use now "
            f"(limit {quota.limit}{more})"
        )
        rows.append(("team", text))
    if gpus.wanted:
        rows.append(("GPUs", f"wants {wanted}; {gpus.free} of {gpus.total} are free"))
    if freed is not None:
        text = (
            f"GPUs on {', '.join(freed.nodes)} ({freed.reason}), {count(freed.victims, 'job')} "
            f"must save first; reserved until {_time(freed.until, now)}"
        )
        rows.append(("freed", text))
    return [*rows, *_errors(waits.outlook)]


def _start(outlook: Outlook, now: datetime) -> str:
    if outlook.eta is None:
        return f"not as things stand: {outlook.eta_reason}"
    if outlook.eta_is == "at_least":
        return f"no sooner than {_time(outlook.eta, now)}: {outlook.eta_reason}"
    where = f", on {_some(outlook.nodes)}" if outlook.nodes else ""
    return f"about {_time(outlook.eta, now)}{where}"


def _place(waits: JobExplained) -> str:
    if waits.position == 1:
        return "first in the queue"
    named = [_ahead(job) for job in waits.ahead]
    more = waits.position - 1 - len(named)
    rest = f", and {more} more" if more > 0 else ""
    first = f"{waits.ahead_gpus} GPUs are wanted first" if waits.ahead_gpus else "first come"
    return f"{waits.position} in the queue; {first}: {', '.join(named)}{rest}"


def _ahead(job: AheadJob) -> str:
    name = job.job_id or "a job of another team"
    return f"{name} ({job.gpus})" if job.gpus else name


def _errors(outlook: Outlook) -> list[tuple[str, str]]:
    rows = []
    if outlook.wait_error is not None:
        miss = outlook.wait_error
        text = (
            f"of the last {count(miss.jobs, 'start')} were off by {render.duration(miss.median_s)}"
            f" (median), {render.duration(miss.p90_s)} (P90)"
        )
        rows.append(("estimates", text))
    if outlook.runtime_error is not None:
        run = outlook.runtime_error
        text = (
            f"of the team's last {count(run.jobs, 'job')} were off by {run.median * 100:.0f} % "
            f"(median), {run.p90 * 100:.0f} % (P90) of what was said"
        )
        rows.append(("run times", text))
    return rows


def _time(at: datetime, now: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC (in {render.duration((at - now).total_seconds())})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def what_if(
    session: Session,
    file: JobPath,
    gpus: Annotated[
        list[int] | None, typer.Option(min=1, help="Number of GPUs to try; may be repeated.")
    ] = None,
    settings: Fields = None,
    team: OtherTeam = None,
) -> None:
    """When and where a job would start now, which jobs it would preempt; nothing changes."""
    overrides = overrides_of(settings, team)
    now = datetime.now(UTC)
    found, texts = [], []
    sizes: list[dict[str, object]] = [
        {"resources.gpus": size, "resources.workers": None} for size in gpus or ()
    ]
    for sized in sizes or [{}]:
        job_file = read_job_file(file, overrides | sized)
        answer = session.client.what_if(job_file)
        found.append(answer)
        need = job_file.spec.resources
        wanted = count(need.gpus, "GPU") if need.gpus else f"{need.cpus:g} CPUs"
        texts.append(
            "\n".join([f"{job_file.spec.name} with {wanted}", *_labelled(plan(answer, now))])
        )
    texts.append(f"next: gangline submit {file}")
    session.out.show(found[0] if len(found) == 1 else found, "\n".join(texts))


def plan(answer: WhatIf, now: datetime) -> list[tuple[str, str]]:
    """The outcome, as labelled lines."""
    where = ", ".join(
        f"{part.node_id} (GPU{'s' if part.gpus > 1 else ''} {', '.join(map(str, part.indexes))})"
        if part.indexes
        else f"{part.node_id} ({count(part.gpus, 'GPU')})" if part.gpus else part.node_id
        for part in answer.nodes
    )  # fmt: skip
    if answer.starts == "now":
        rows = [("starts", f"now, on {where}"), ("closeness", f"within one {answer.level}")]
    elif answer.starts == "after_preemption" and answer.start is not None:
        rows = [("starts", f"about {_time(answer.start, now)}, on {where}")]
    elif answer.waiting is not None:
        waits = answer.waiting
        starts = _start(waits.outlook, now) if answer.gpus else waits.outlook.eta_reason
        rows = [("starts", starts), ("because", answer.message)]
        rows += [("place", _place(waits)), *_errors(waits.outlook)]
    else:
        rows = [("starts", f"not as things stand: {answer.message}")]
    if answer.preempts:
        names = [
            f"{victim.job_id or 'a job of another team'} "
            f"({count(victim.gpus, 'GPU') if victim.gpus else 'no GPUs, at once'})"
            for victim in answer.preempts
        ]
        cost, value = answer.cost_gpu_seconds / 3600, answer.value_gpu_seconds / 3600
        rows.append(("preempts", ", ".join(names)))
        rows.append(("cost", f"{cost:.2f} GPU-hours; starting sooner is worth {value:.2f}"))
    if answer.price_per_hour is not None:
        rows.append(("price", f"{_price(answer.price_per_hour)} an hour"))
    return rows + [("note", note) for note in answer.notes if note != answer.message]


def _price(found: PriceRange) -> str:
    least, most = f"{found.least:,.2f}", f"{found.most:,.2f}"
    return least if least == most else f"{least} to {most}"
