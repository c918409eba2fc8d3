"""`python -m gangline_kube.pods`: makes the pods in which the ranks of jobs run."""

from __future__ import annotations

from gangline_kube.core.gang_network import KINDS, beside_part
from gangline_kube.core.pods import job_pod_part
from gangline_kube.core.resource import NODES, PODS
from gangline_kube.service.comparing import both_sides, compare
from gangline_kube.service.config import PodSettings
from gangline_kube.service.following import Followed
from gangline_kube.service.pod_rounds import PodRounds, place_part
from gangline_service.lifecycle import Context, run


def main(context: Context[PodSettings]) -> None:
    """The life of the process: follow gangs and pods, and compare each `kube_pods_round_s`."""
    api, gateway = both_sides(context.settings)
    rules = context.settings.rules()
    nodes = Followed(api, NODES, context.stopping, place_part)
    pods = Followed(api, PODS, context.stopping, job_pod_part, rules.namespace)
    kinds = KINDS if rules.own_network else ()
    beside = {of: Followed(api, of, context.stopping, beside_part, rules.namespace) for of in kinds}
    rounds = PodRounds(api, gateway, rules)
    compare(
        context,
        [nodes, pods, *beside.values()],
        lambda: rounds.round(
            nodes.items(), pods.items(), {of: each.items() for of, each in beside.items()}
        ),
        context.settings.kube_pods_round_s,
    )


if __name__ == "__main__":
    run("kube-pods", PodSettings.load(), main)
