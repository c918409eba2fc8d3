"""How long the fault manager waits before it believes something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds.

    A node is suspected at half of `heartbeat_timeout_s` and failed at all of it. `settle_s` is how
    long an exit that looks like collateral damage waits for the exit that explains it. A gap of
    more than `deaf_s` between two Ticks means that this process itself stood still.

    A rank that trains hangs after `hang_factor` times its slow steps, at least `hang_min_s`; a rank
    whose steps are unknown, after `hang_slow_s`. `heartbeat_interval_s` is the agents'.

    A rank straggles whose score (policy/stragglers.py) is below `straggler_below` for
    `straggler_after_s`.
    """

    heartbeat_timeout_s: float = 60.0
    heartbeat_interval_s: float = 1.0
    settle_s: float = 2.0
    hang_min_s: float = 60.0
    hang_slow_s: float = 600.0
    hang_factor: float = 4.0
    straggler_after_s: float = 30.0
    straggler_below: float = 0.7
    deaf_after_s: float | None = None

    @property
    def suspect_s(self) -> float:
        """Silence after which a node is suspected."""
        return self.heartbeat_timeout_s / 2

    @property
    def stale_s(self) -> float:
        """A heartbeat older than this says nothing of its ranks: two after it are missing.

        Quicker heartbeats may be late too: ticks and reads take their time.
        """
        return max(3.0, 3 * self.heartbeat_interval_s)

    @property
    def mass_silence_s(self) -> float:
        """After so long without any heartbeat, silence shows nothing about nodes."""
        return self.heartbeat_timeout_s / 6

    @property
    def deaf_s(self) -> float:
        """A longer gap between two Ticks restarts every clock."""
        return self.suspect_s if self.deaf_after_s is None else self.deaf_after_s
