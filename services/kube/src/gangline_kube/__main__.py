"""`python -m gangline_kube`: cordons, drains and conditions of nodes, between both sides."""

from __future__ import annotations

import logging

from gangline_kube.core.nodes import node_part, pod_part
from gangline_kube.core.resource import NODES, PODS
from gangline_kube.service.api import Cluster, KubeError
from gangline_kube.service.config import NodeSettings
from gangline_kube.service.following import Followed
from gangline_kube.service.gateway import Gateway, GatewayError
from gangline_kube.service.node_rounds import NodeRounds
from gangline_service.lifecycle import Context, run


def main(context: Context[NodeSettings]) -> None:
    """The life of the process: follow nodes and pods, and compare each `kube_round_s`."""
    settings, health = context.settings, context.health
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request else
    health.expect("nodes")
    health.expect("gateway")
    api = Cluster(settings.kubeconfig)
    nodes = Followed(api, NODES, context.stopping, node_part)
    pods = Followed(api, PODS, context.stopping, pod_part)
    followed = [nodes, pods] if settings.kube_gpu_resource else [nodes]
    for each in followed:
        each.start()
    token = settings.kube_token.get_secret_value()
    gateway = Gateway(settings.kube_gateway_url, token, settings.kube_gateway_ca)
    rounds = NodeRounds(api, gateway, settings.rules())
    while not context.stopping.wait(settings.kube_round_s):
        health.beat()
        listed = all(each.listed.is_set() for each in followed)
        health.set("nodes", ok=listed)
        if not listed:
            continue
        try:
            rounds.round(nodes.items(), pods.items())
            health.set("gateway", ok=True)
        except (GatewayError, KubeError) as error:
            context.log.warning("kube.round_failed", error=str(error))
            health.set("gateway", ok=False, detail=str(error))


if __name__ == "__main__":
    run("kube", NodeSettings.load(), main)
