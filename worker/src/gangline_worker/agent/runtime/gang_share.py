"""How much the ranks of one gang may say on a node, so that other gangs' reports do not wait."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_S = 2 * 1024 * 1024
"""Some 100,000 values of metrics a second: a tenth of a core of the agent."""
BURST_BYTES = 8 * 1024 * 1024
USED_UP = (
    f"the ranks of this job on this node report more than {BYTES_PER_S >> 20} MiB a second. "
    "The rest waits: report fewer metrics, or less often"
)
LEFT_OUT = (
    "this rank reports more metrics than it can send: the oldest steps are left out, and the "
    "metric report_dropped counts them. Report fewer metrics, or less often"
)


@dataclass(slots=True)
class GangShare:
    """`BYTES_PER_S` on average, and `BURST_BYTES` at once. Times are of one clock, in seconds.

    `noted`: its user knows that it is used up.
    """

    left_bytes: float = BURST_BYTES
    since_s: float = 0.0
    noted: bool = False

    def spend(self, size_bytes: int, now_s: float) -> bool:
        """Note that so much was read; True the first time that nothing is left."""
        gained = max(0.0, now_s - self.since_s) * BYTES_PER_S
        self.left_bytes = min(BURST_BYTES, self.left_bytes + gained) - size_bytes
        self.since_s = now_s
        first = self.left_bytes < 0 and not self.noted
        self.noted = self.noted or first
        return first

    def rests_s(self, now_s: float) -> float:
        """For how long nothing more is read; 0: more may be read now."""
        return max(0.0, -self.left_bytes / BYTES_PER_S - (now_s - self.since_s))
