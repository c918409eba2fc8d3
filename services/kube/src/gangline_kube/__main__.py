"""`python -m gangline_kube`: cordons, drains and conditions of nodes, between both sides."""

from __future__ import annotations

from gangline_kube.core.nodes import node_part, pod_part
from gangline_kube.core.resource import NODES, PODS
from gangline_kube.service.comparing import both_sides, compare
from gangline_kube.service.config import NodeSettings
from gangline_kube.service.following import Followed
from gangline_kube.service.node_rounds import NodeRounds
from gangline_service.lifecycle import Context, run


def main(context: Context[NodeSettings]) -> None:
    """The life of the process: follow nodes and pods, and compare each `kube_round_s`."""
    settings = context.settings
    api, gateway = both_sides(settings)
    nodes = Followed(api, NODES, context.stopping, node_part)
    pods = Followed(api, PODS, context.stopping, pod_part)
    rounds = NodeRounds(api, gateway, settings.rules())
    compare(
        context,
        [nodes, pods] if settings.kube_gpu_resource else [nodes],
        lambda: rounds.round(nodes.items(), pods.items()),
        settings.kube_round_s,
    )


if __name__ == "__main__":
    run("kube", NodeSettings.load(), main)
