"""Which release every process runs, and which features all of them know.

Each process that reads events, standbys too, announces its release at its start and each hour; each
node that joins has that of its agent. A feature is enabled when all of them know it, and where it
concerns them the agents of all nodes that are there. It is never disabled: from then on logs may
hold what earlier releases do not know.

A process that stops says so. One that ended without a word is forgotten `SILENT_AFTER` after its
last note. The clock for that are the announcements themselves, so that an absence of the scheduler
does not count as silence.

A credential can announce any number of processes, so at most `PROCESSES` are known. While there are
so many, further ones are not noted and no feature is enabled: one of them may lack it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.state import State
from gangline_schemas.catalog import catalog
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.parts import PartAnnounced
from gangline_schemas.events.scheduling import FeatureEnabled, PartNoted
from gangline_schemas.features import Feature

PARTS = tuple(entry.owner for entry in catalog().values() if entry.kind == "log")
"""The services of which at least one process must have announced its release."""
NOTE_AGAIN = timedelta(minutes=90)
"""An unchanged release is noted again after this long, so every second announcement."""
PROCESSES = 1000
SILENT_AFTER = timedelta(hours=4)
"""Since the last note: two to three announcements are missing."""


def note(plan: Plan, envelope: Envelope) -> None:
    """Remember what a process announces, and forget those that are silent by then."""
    event = envelope.data
    if not isinstance(event, PartAnnounced):
        return
    at = min(envelope.time, plan.now)
    known = plan.state.parts.get((event.part, event.instance))
    if known is None:
        changed = event.release is not None and len(plan.state.parts) < PROCESSES
    else:
        changed = known.release != event.release or at - known.noted_at >= NOTE_AGAIN
    if changed:
        _note(plan, event.part, event.instance, event.release)
    for (part, instance), kept in list(plan.state.parts.items()):
        if at - kept.noted_at >= SILENT_AFTER:
            _note(plan, part, instance, None)


def enable(plan: Plan, features: Iterable[Feature]) -> None:
    """Enable what all processes know by now."""
    for feature in features:
        if feature.name not in plan.state.features and _is_known(plan.state, feature):
            plan.add(feature.name, FeatureEnabled(feature=feature.name))


def _note(plan: Plan, part: str, instance: str, release: str | None) -> None:
    plan.add(part, PartNoted(part=part, instance=instance, release=release))


def _is_known(state: State, feature: Feature) -> bool:
    announced = {part for part, _ in state.parts}
    if not announced.issuperset(PARTS) or len(state.parts) >= PROCESSES:
        return False
    if not feature.known_to(part.release for part in state.parts.values()):
        return False
    nodes = (node.info.release for node in state.nodes.values() if node.down is None)
    return not feature.agents or feature.known_to(nodes)
