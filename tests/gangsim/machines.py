"""What runs where in the simulated world, whatever the deciders believe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangsim.engine import Violation
from gangsim.parts import LEASE_S

if TYPE_CHECKING:
    from gangsim.engine import Engine
    from gangsim.training import RankProcess
    from gangsim.world import World

KILL_SLACK_S = 4.0


class Machines:
    """The GPUs and the processes on them. Raises Violation at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.running: dict[tuple[str, int], RankProcess] = {}

    def started(self, rank: RankProcess) -> None:
        """1, 10: a GPU runs one rank at a time; a node runs one attempt of a job at a time."""
        self._engine.note("rank", rank.key.gang.job_id, rank.key.gang.attempt, rank.key.rank)
        place = (rank.node_id, rank.gpu)
        other = self.running.get(place)
        if other is not None:
            raise Violation(f"GPU {rank.gpu} of {rank.node_id} runs {other.key} and {rank.key}")
        for old in self.running.values():
            same = old.node_id == rank.node_id and old.key.gang.job_id == rank.key.gang.job_id
            if same and old.key.gang.attempt != rank.key.gang.attempt:
                raise Violation(f"{rank.key} starts on {rank.node_id} while {old.key} runs there")
        self.running[place] = rank

    def ended(self, rank: RankProcess) -> None:
        """The process is gone."""
        place = (rank.node_id, rank.gpu)
        if self.running.get(place) is rank:
            self._engine.note("gone", rank.key.gang.job_id, rank.key.gang.attempt, rank.key.rank)
            del self.running[place]

    def check_leases(self, world: World) -> None:
        """10: no rank runs longer than its lease without an acknowledged heartbeat."""
        for rank in self.running.values():
            process = world.nodes[rank.node_id].process
            acked_s = process.acked_s if process is not None else 0.0
            late_s = self._engine.now_s - acked_s - LEASE_S
            if late_s > KILL_SLACK_S:
                raise Violation(f"{rank.key} runs {late_s:.1f} s after its node's lease")

    def of(self, incarnation: str) -> list[RankProcess]:
        """The ranks that one incarnation of an agent runs."""
        return [rank for rank in self.running.values() if rank.incarnation == incarnation]
