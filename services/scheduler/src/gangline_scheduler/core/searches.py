"""Results of searches for room, remembered for as long as they must still hold.

A gang that did not fit lacked so many GPUs in the domain with the most room for it. Nodes that have
grown since may each add their room for this gang, and no others can. While all of it together is
less than what was lacking, the gang still does not fit, and no search is made. Room counts what the
gang asks for: model, labels, CPUs and memory a GPU, team. A gang that fitted still fits until a
node shrinks.

A memory changes no decision: without it, a search finds the same. So it is neither part of the log
nor of a snapshot, and a copy of an index begins without one.

Cost: O(nodes that grew since) to ask, at most `MOST_GROWN`; then everything is forgotten at once.
"""

from __future__ import annotations

from collections.abc import Callable

from gangline_scheduler.core.model import Demand

MOST_GROWN = 1000
MOST_SHAPES = 4000

RoomOf = Callable[[str], int | None]
"""Ranks of the gang that a node of this name holds now; None: it cannot be said."""


class Searches:
    """See the module. Of one index of nodes, while it changes."""

    __slots__ = ("_fitting", "_grown", "_lacking")

    def __init__(self) -> None:
        self._grown: list[str] = []
        self._lacking: dict[Demand, tuple[int, int]] = {}
        self._fitting: set[Demand] = set()

    def __bool__(self) -> bool:
        return bool(self._lacking or self._fitting)

    def split(self) -> Searches:
        """One that knows the same and changes by itself. O(what is remembered) pointers."""
        other = Searches()
        if self:
            other._grown, other._lacking = list(self._grown), dict(self._lacking)
            other._fitting = set(self._fitting)
        return other

    def grew(self, node_id: str) -> None:
        """This node may have more room now, for some gang."""
        self._grown.append(node_id)
        if len(self._grown) > MOST_GROWN:
            self.forget()

    def shrank(self) -> None:
        """A node may have less room now."""
        self._fitting.clear()

    def forget(self) -> None:
        """Anything may be so now."""
        self._grown.clear()
        self._lacking.clear()
        self._fitting.clear()

    def failed(self, demand: Demand, lacking: int) -> None:
        """A search for this gang found no room: so many GPUs were lacking."""
        if len(self._lacking) >= MOST_SHAPES:
            self.forget()
        self._lacking[demand] = len(self._grown), max(1, lacking)

    def found(self, demand: Demand) -> None:
        """A search for this gang found room."""
        if len(self._fitting) >= MOST_SHAPES:
            self.forget()
        self._fitting.add(demand)

    def fits(self, demand: Demand) -> bool:
        """Whether it was found to fit, and nothing has shrunk since."""
        return demand in self._fitting

    def fails(self, demand: Demand, room_of: RoomOf) -> bool:
        """Whether it was found not to fit, and what grew since cannot have changed that."""
        known = self._lacking.get(demand)
        if known is None:
            return False
        since, lacking = known
        if since == len(self._grown):
            return True
        for node_id in dict.fromkeys(self._grown[since:]):
            room = room_of(node_id)
            if room is None:
                return False
            lacking -= room
            if lacking <= 0:
                return False
        return True
