"""The chart's NetworkPolicies: which pods may reach which others.

Needs Helm 3.14 or later: `helm` on the PATH, or GANGLINE_HELM=FILE. `make test-kube` builds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.builders.helm_chart import HELM, example, rendered, templates

Labels = dict[str, str]
STRANGER: Labels = {"app": "another"}
PROMETHEUS: Labels = {"app": "prometheus"}
MINIMAL = example("minimal")
pytestmark = pytest.mark.skipif(HELM is None, reason="no helm: `make test-kube` builds it")


def chart(tmp_path: Path, pools: dict[str, bool], **network: Any) -> Path:
    """A file of values: pools by name, whether they have the network of nodes, and policies."""
    found = yaml.safe_load(MINIMAL.read_text(encoding="utf-8"))
    common = {"gpus": 0, "dataPath": "/var/lib/gangline", "stopSeconds": 60}
    made = [{"name": name, "hostNetwork": host, **common} for name, host in pools.items()]
    path = tmp_path / "values.yaml"
    path.write_text(
        yaml.safe_dump({**found, "agents": {"pools": made}, "networkPolicy": network}),
        encoding="utf-8",
    )
    return path


def labels(values: Path) -> dict[str, Labels]:
    """The labels of pods, by the name of their workload without the release's before it."""
    return {
        name.removeprefix("gangline-"): template["metadata"]["labels"]
        for name, template in templates(values)
    }


def selects(selector: dict[str, Any], of: Labels) -> bool:
    """Whether a label selector has these labels."""
    for each in selector.get("matchExpressions", []):
        among = of.get(each["key"]) in each["values"]
        if among != {"In": True, "NotIn": False}[each["operator"]]:
            return False
    return all(of.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def passes(values: Path, whose: Labels, way: str, other: Labels | str, port: int) -> bool:
    """Whether policies let a connection pass: `way` Ingress to pods, or Egress of them.

    `other`: the labels of the pod on the other side, or the network in which it is.
    """
    side, peers = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[way]
    specs = [item["spec"] for item in rendered(values) if item["kind"] == "NetworkPolicy"]
    found = [
        spec for spec in specs if selects(spec["podSelector"], whose) and way in spec["policyTypes"]
    ]
    rules = [rule for spec in found for rule in spec.get(side, [])]
    return not found or any(
        (peers not in rule or any(_is(peer, other) for peer in rule[peers]))
        and port in [each["port"] for each in rule.get("ports", [{"port": port}])]
        for rule in rules
    )


def _is(peer: dict[str, Any], other: Labels | str) -> bool:
    if isinstance(other, str):
        return bool(peer.get("ipBlock", {}).get("cidr") == other)
    return "podSelector" in peer and selects(peer["podSelector"], other)


def test_agents_on_the_cluster_s_network_are_reached_by_each_other_alone(tmp_path: Path) -> None:
    values = chart(tmp_path, {"a": False, "b": False})
    of = labels(values)
    for port in (20_000, 45_000, 8085):
        assert passes(values, of["agent-a"], "Ingress", of["agent-b"], port)
        for other in (STRANGER, of["gateway"], of["scheduler"]):
            assert not passes(values, of["agent-a"], "Ingress", other, port)
    assert passes(values, of["agent-a"], "Egress", STRANGER, 443)


def test_who_reads_metrics_reaches_their_port_alone(tmp_path: Path) -> None:
    reader = {"podSelector": {"matchLabels": PROMETHEUS}}
    values = chart(tmp_path, {"a": False}, metricsFrom=[reader])
    of = labels(values)["agent-a"]
    assert passes(values, of, "Ingress", PROMETHEUS, 8085)
    assert not passes(values, of, "Ingress", PROMETHEUS, 20_000)
    assert not passes(values, of, "Ingress", STRANGER, 8085)


def test_agents_reach_only_what_is_named_once_something_is(tmp_path: Path) -> None:
    values = chart(tmp_path, {"a": False}, agentsTo=[{"ipBlock": {"cidr": "10.1.0.0/16"}}])
    of = labels(values)
    own = of["agent-a"]
    for other, port in (("10.1.0.0/16", 9093), (own, 20_000), (STRANGER, 53)):
        assert passes(values, own, "Egress", other, port)
    assert passes(values, own, "Egress", of["gateway"], 8443)
    for other, port in ((of["gateway"], 8081), (STRANGER, 443), ("10.3.0.0/16", 443)):
        assert not passes(values, own, "Egress", other, port)


def test_pools_on_both_networks_meet_at_the_addresses_of_nodes(tmp_path: Path) -> None:
    pools = {"bare": True, "a": False}
    with pytest.raises(AssertionError, match=r"networkPolicy\.nodes: .* pools bare .* those of a"):
        rendered(chart(tmp_path, pools))
    nodes = [{"ipBlock": {"cidr": "10.2.0.0/16"}}]
    (tmp_path / "named").mkdir()
    values = chart(tmp_path / "named", pools, nodes=nodes)
    of = labels(values)
    assert passes(values, of["agent-a"], "Ingress", "10.2.0.0/16", 20_000)
    assert not passes(values, of["agent-a"], "Ingress", "10.3.0.0/16", 20_000)


@pytest.mark.parametrize(
    ("pools", "network"), [({"bare": True}, {}), ({"a": False}, {"enabled": False})]
)
def test_agents_have_no_policy_on_the_network_of_nodes_or_where_policies_are_off(
    tmp_path: Path, pools: dict[str, bool], network: dict[str, Any]
) -> None:
    values = chart(tmp_path, pools, **network)
    (agent,) = [each for name, each in labels(values).items() if name.startswith("agent-")]
    assert passes(values, agent, "Ingress", STRANGER, 20_000)


def test_services_are_reached_by_nobody_and_the_gateway_at_its_port() -> None:
    of = labels(MINIMAL)
    for other in (STRANGER, of["agent-gpu"], of["scheduler"]):
        assert not passes(MINIMAL, of["quota"], "Ingress", other, 8081)
        assert passes(MINIMAL, of["gateway"], "Ingress", other, 8443)
        assert not passes(MINIMAL, of["gateway"], "Ingress", other, 8081)
