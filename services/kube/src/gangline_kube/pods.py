"""`python -m gangline_kube.pods`: makes the pods in which the ranks of jobs run."""

from __future__ import annotations

import logging

from gangline_kube.core.nodes import node_part
from gangline_kube.core.pods import job_pod_part
from gangline_kube.core.resource import NODES, PODS
from gangline_kube.service.api import Cluster, KubeError
from gangline_kube.service.config import PodSettings
from gangline_kube.service.following import Followed
from gangline_kube.service.gateway import Gateway, GatewayError
from gangline_kube.service.pod_rounds import PodRounds
from gangline_service.lifecycle import Context, run


def main(context: Context[PodSettings]) -> None:
    """The life of the process: follow gangs and pods, and compare each `kube_pods_round_s`."""
    settings, health = context.settings, context.health
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request else
    health.expect("nodes")
    health.expect("gateway")
    api = Cluster(settings.kubeconfig)
    rules = settings.rules()
    nodes = Followed(api, NODES, context.stopping, node_part)
    pods = Followed(api, PODS, context.stopping, job_pod_part, rules.namespace)
    for each in (nodes, pods):
        each.start()
    token = settings.kube_token.get_secret_value()
    gateway = Gateway(settings.kube_gateway_url, token, settings.kube_gateway_ca)
    rounds = PodRounds(api, gateway, rules)
    while not context.stopping.wait(settings.kube_pods_round_s):
        health.beat()
        listed = nodes.listed.is_set() and pods.listed.is_set()
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
    run("kube-pods", PodSettings.load(), main)
