"""The gauges of the rules on /metrics, renewed at each Tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from gangline_alerts.core import measured
from gangline_alerts.core.decide import AlertDecider
from gangline_alerts.core.model import Watch
from gangline_alerts.core.policy.gauges import GAUGES, Gauge, gauges
from gangline_alerts.core.state import AlertState
from gangline_bus.decision import Observed, Tick


@dataclass(slots=True)
class MeasuredDecider(AlertDecider):
    """The decider, which also keeps the gauges of its last Tick. Its decisions are the same.

    `renew` is called before each Tick, and may replace `rules` and `receivers`; `scheduler_away`
    says since when the scheduler is away. `tell` gets why no rule is judged, once, and an empty
    text when they are judged again.
    """

    renew: Callable[[], None] = field(default=lambda: None, compare=False)
    scheduler_away: Callable[[], datetime | None] = field(default=lambda: None, compare=False)
    tell: Callable[[str], None] = field(default=lambda _: None, compare=False)
    told: bool = field(default=False, compare=False)
    newest: tuple[Gauge, ...] = field(default=(), compare=False)

    def observe(self, state: AlertState, soft: Watch, observed: Observed, now: datetime) -> Watch:
        """See AlertDecider."""
        if isinstance(observed, Tick):
            self.renew()
            measured.note_scheduler(soft, self.scheduler_away(), now, self.timing.away_s)
        # Not super(): a dataclass with slots is another class than the one that is written here.
        soft = AlertDecider.observe(self, state, soft, observed, now)
        if isinstance(observed, Tick):
            self.newest = tuple(gauges(state, soft, self.rules, now))
            self._tell(measured.held_up(soft))
        return soft

    def _tell(self, why: str) -> None:
        if bool(why) != self.told:
            self.told = bool(why)
            self.tell(why)

    def export(self, meter: Meter) -> None:
        """Show the gauges. A standby has none, so each value comes from one process."""

        def values_of(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def values(_: CallbackOptions) -> Iterable[Observation]:
                found = [one for one in self.newest if one.name == name]
                return [Observation(one.value, dict(one.labels)) for one in found]

            return values

        for name, description in GAUGES.items():
            meter.create_observable_gauge(name, [values_of(name)], description=description)
