"""Which release every part runs, and which features all of them know.

Each decision of another service's log says which release wrote it, and each node that joins which
one its agent runs. A feature is enabled when the services whose logs are read here, this one, and
where it concerns them the agents of all nodes that are there, know it. It is never disabled: from
then on logs may hold what earlier releases do not know.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangline_bus.codec import Received
from gangline_scheduler.plan import Plan
from gangline_scheduler.state import State
from gangline_schemas.catalog import catalog, topic_of
from gangline_schemas.events.scheduling import FeatureEnabled, PartNoted
from gangline_schemas.features import Feature

PARTS = ("quota", "fault-manager", "checkpoint-service")
"""The owners of the logs that must announce a release, as the catalog names them."""


def note(plan: Plan, received: Received) -> None:
    """Remember the release of another log's writer when it is another one than before."""
    release = received.envelope.release
    if release is None:
        return
    entry = catalog()[topic_of(received.envelope.type)]
    if entry.kind == "log" and plan.state.parts.get(entry.owner) != release:
        plan.add(entry.owner, PartNoted(part=entry.owner, release=release))


def enable(plan: Plan, features: Iterable[Feature]) -> None:
    """Enable what all parts know by now."""
    for feature in features:
        if feature.name not in plan.state.features and _is_known(plan.state, feature):
            plan.add(feature.name, FeatureEnabled(feature=feature.name))


def _is_known(state: State, feature: Feature) -> bool:
    if not feature.known_to(state.parts.get(part) for part in PARTS):
        return False
    nodes = (node.info.release for node in state.nodes.values() if node.down is None)
    return not feature.agents or feature.known_to(nodes)
