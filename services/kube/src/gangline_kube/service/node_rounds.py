"""Rounds over the nodes: the steps of core/nodes.py, done at the gateway and the API server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import structlog

from gangline_kube.core.nodes import AskDrain, Patch, Rules, Step, foreign_gpus, node_id, plan
from gangline_kube.core.resource import NODES, Object
from gangline_kube.service.api import Cluster, Conflict, KubeError, NotFound, Unavailable
from gangline_kube.service.gateway import Away, Gateway, GatewayError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeRounds:
    """Compares the nodes of both sides."""

    api: Cluster
    gateway: Gateway
    rules: Rules

    def round(self, nodes: Iterable[Object], pods: Iterable[Object]) -> int:
        """Compare once; how many steps were done. Raises GatewayError and KubeError.

        If a node was changed since it was seen, the rest of its steps wait for the next round. So
        do those of a node of which one is refused, by the gateway or by a rule of the cluster; the
        error is raised after the other nodes. Once a side is away, no further ones begin.
        """
        resource = self.rules.gpu_resource
        foreign = foreign_gpus(pods, resource) if resource else {}
        steps = plan(nodes, self.gateway.statuses(), foreign, self.rules)
        done = 0
        refused: GatewayError | KubeError | None = None
        for _, own in groupby(steps, key=_node_of):
            try:
                for step in own:
                    self._do(step)
                    done += 1
            except (Conflict, NotFound):
                continue
            except (Away, Unavailable):
                raise
            except (GatewayError, KubeError) as error:
                refused = error
        if refused is not None:
            raise refused
        return done

    def _do(self, step: Step) -> None:
        match step:
            case AskDrain():
                log.info("kube.drain", node=step.node_id, on=step.on, reason=step.reason)
                self.gateway.drain(
                    step.node_id, on=step.on, move_jobs=step.move_jobs, reason=step.reason
                )
            case Patch():
                self.api.patch(NODES, step.name, step.change)


def _node_of(step: Step) -> str:
    return step.node_id if isinstance(step, AskDrain) else node_id(step.name)
