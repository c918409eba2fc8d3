"""The invariants of the fault manager's state."""

from __future__ import annotations

from gangline_faults.core.state import FaultState


def violations(state: FaultState) -> list[str]:
    """Sentences about what does not hold; [] when all is well."""
    found = []
    for job_id, gang in sorted(state.gangs.items()):
        if state.attempts.get(job_id) != gang.attempt:
            found.append(f"{job_id}: attempt {gang.attempt} is watched but is not the newest known")
        if job_id in state.ended:
            found.append(f"{job_id}: has ended but is watched")
        if gang.noted is not None and job_id not in state.settling:
            found.append(f"{job_id}: a noted exit waits for no verdict")
    found += [
        f"{job_id}: waits for a verdict but has no noted exit"
        for job_id in sorted(state.settling)
        if job_id not in state.gangs or state.gangs[job_id].noted is None
    ]
    found += [
        f"{job_id}: used {history.restarts_used} restarts of {state.gangs[job_id].restart.max}"
        for job_id, history in sorted(state.histories.items())
        if job_id in state.gangs and history.restarts_used > state.gangs[job_id].restart.max
    ]
    found += [
        f"{job_id}: has ended but has a history or an open incident"
        for job_id in sorted({*state.histories, *state.incidents})
        if job_id in state.ended
    ]
    found += [
        f"{node_id}: incarnation {node.incarnation} is both current and past"
        for node_id, node in sorted(state.nodes.items())
        if node.incarnation in node.past
    ]
    return found
