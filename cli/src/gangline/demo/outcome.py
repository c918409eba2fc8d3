"""The claims of a demo, and what it measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Say = Callable[[str], None]


@dataclass
class Outcome:
    """The observations and measurements. `checks` are the demo's claims: all must be true."""

    checks: dict[str, bool] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether every check passed."""
        return bool(self.checks) and all(self.checks.values())
