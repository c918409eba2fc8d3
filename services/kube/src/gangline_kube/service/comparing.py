"""The life of a process that follows both sides and compares them in rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gangline_kube.service.api import Cluster, KubeError
from gangline_kube.service.config import KubeSettings
from gangline_kube.service.following import Followed
from gangline_kube.service.gateway import Gateway, GatewayError
from gangline_service.lifecycle import Context


def both_sides(settings: KubeSettings) -> tuple[Cluster, Gateway]:
    """The clients of the API server and of the gateway."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request else
    token = settings.kube_token.get_secret_value()
    gateway = Gateway(settings.kube_gateway_url, token, settings.kube_gateway_ca)
    return Cluster(settings.kubeconfig), gateway


def compare(
    context: Context[KubeSettings],
    followed: Sequence[Followed],
    compare_once: Callable[[], object],
    every_s: float,
) -> None:
    """Follow objects, and once all are listed, compare each `every_s` until the process stops."""
    health = context.health
    health.expect("nodes")
    health.expect("gateway")
    for each in followed:
        each.start()
    while not context.stopping.wait(every_s):
        health.beat()
        listed = all(each.listed.is_set() for each in followed)
        health.set("nodes", ok=listed)
        if not listed:
            continue
        try:
            compare_once()
            health.set("gateway", ok=True)
        except (GatewayError, KubeError) as error:
            context.log.warning("kube.round_failed", error=str(error))
            health.set("gateway", ok=False, detail=str(error))
