"""Releases, and features: types and fields that one writes only once every part knows them.

A new type, field or value of an enum that others must not skip gets a feature. Its writer writes it
when it has seen `feature.enabled`, which the scheduler writes when all parts announced a release
that knows it (docs/guides/upgrades.md).

Node agents of the three newest releases are accepted; the scheduler keeps gangs off older ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

RELEASE = version("gangline-schemas")
"""The release that runs: each decision and each node that joins announces it."""
RELEASES: tuple[str, ...] = ("0.1.0",)
"""The published releases, oldest first. Publishing one appends it (docs/guides/upgrades.md)."""
AGENT_RELEASES = 3
"""Node agents of so many releases are accepted, and of later ones."""


def oldest_accepted(releases: Sequence[str] = RELEASES) -> str | None:
    """The oldest release of a node agent that is accepted; None: any release."""
    return releases[-AGENT_RELEASES] if len(releases) >= AGENT_RELEASES else None


def is_older(release: str | None, than: str) -> bool:
    """Whether it comes before. None, or no release's number, comes before all."""
    return _number(release) < _number(than)


@dataclass(frozen=True, slots=True)
class Feature:
    """Known from the release `since` on. `agents`: those of all nodes must know it too."""

    name: str
    since: str
    agents: bool = False

    def known_to(self, releases: Iterable[str | None]) -> bool:
        """Whether all of these releases know it; None, or no release's number, does not."""
        return not any(is_older(release, self.since) for release in releases)


FEATURES: tuple[Feature, ...] = ()
"""Those of this release and of the ones before that agents may still lack."""


@lru_cache(maxsize=1024)
def _number(release: str | None) -> tuple[int, ...]:
    parts = (release or "").split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
