"""The invariants of the state."""

from __future__ import annotations

from gangline_alerts.core.state import AlertState


def violations(state: AlertState) -> list[str]:
    """Sentences about what does not hold; [] when all is well. Cost: the jobs and nodes."""
    held = sum(job.held for job in state.jobs.values())
    offered = sum(state.nodes.values())
    found = [
        f"{what}: {state.totals.get(what, 0)} GPUs are noted, {count} are there"
        for what, count in (("held", held), ("offered", offered))
        if state.totals.get(what, 0) != count
    ]
    found += [
        f"{job_id}: waits and has GPUs"
        for job_id, job in state.jobs.items()
        if (job.waiting_since is None) != bool(job.places)
    ]
    found += [
        f"alert {alert.text.number}: is silenced and has receivers"
        for alert in state.alerts.values()
        if alert.silence is not None and alert.targets
    ]
    found += [f"notification {name}: is open and sent" for name in state.open if name in state.sent]
    return found
