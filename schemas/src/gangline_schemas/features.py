"""Features: types and fields that a release writes only once every part knows them.

A new type, field or value of an enum that others must not skip gets a feature. Its writer writes it
when it has seen `feature.enabled`, which the scheduler writes when all parts announced a release
that knows it (docs/guides/upgrades.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version

RELEASE = version("gangline-schemas")
"""The release that runs: each decision and each node that joins announces it."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Known from the release `since` on. `agents`: those of all nodes must know it too."""

    name: str
    since: str
    agents: bool = False

    def known_to(self, releases: Iterable[str | None]) -> bool:
        """Whether all of these releases know it; None, or no release's number, does not."""
        return all(_number(release) >= _number(self.since) for release in releases)


FEATURES: tuple[Feature, ...] = ()
"""Those of this release and of the ones before that agents may still lack."""


def _number(release: str | None) -> tuple[int, ...]:
    parts = (release or "").split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
