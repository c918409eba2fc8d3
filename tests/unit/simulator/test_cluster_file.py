"""Cluster files: their three forms, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_simulator.cluster import read_cluster
from gangline_simulator.errors import BadInputError


def write(folder: Path, text: str, name: str = "cluster.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_csv_of_nodes(tmp_path: Path) -> None:
    text = "gpu_model,gpu_capacity_num,cpu_num,node_name\nG1,4,192,0\n,0,96,1\nG2,1,32,2\n"
    cluster = read_cluster(write(tmp_path, text, "nodes.csv"))
    (pool,) = cluster.pools
    found = [(len(node.gpus), node.gpus[0].model, node.cpus) for node in pool.nodes]
    assert found == [(4, "G1", 192.0), (1, "G2", 32.0)]
    assert (pool.team, cluster.gpus) == ("", 5)


def test_a_csv_of_virtual_clusters_and_its_half(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "vc,node num\n6214e9,64\ned69ec,8\n", "vcs.csv"))
    assert [(pool.team, pool.gpus) for pool in cluster.pools] == [("6214e9", 512), ("ed69ec", 64)]
    assert [pool.gpus for pool in cluster.halved().pools] == [256, 32]


def test_yaml_with_a_topology(tmp_path: Path) -> None:
    text = """
topology:
  - {name: hall}
  - {name: row-1, parent: hall}
  - {name: rack-1, parent: row-1}
nodes:
  - {count: 2, gpus: 8, gpu_model: h100, cpus: 96, memory_gb: 1024, rack: rack-1}
  - {gpus: 4, rack: row-1}
"""
    (pool,) = read_cluster(write(tmp_path, text)).pools
    assert [(len(node.gpus), node.rack, node.block) for node in pool.nodes] == [
        (8, "rack-1", "hall"),
        (8, "rack-1", "hall"),
        (4, "row-1", "hall"),
    ]
    assert (pool.nodes[0].cpus, pool.nodes[0].memory_gb) == (96.0, 1024.0)


NODES = "nodes: [{count: 1, gpus: 8, rack: r}]\n"
BAD = [
    # text, field, what the message must say
    ("nodes: [{count: -1}]", "nodes[0].count", "-1 is out of range"),
    ("nodes: [{gpus: 8}, {gpus: -8}]", "nodes[1].gpus", "-8 is out of range"),
    ("nodes: [{cpus: -1}]", "nodes[0].cpus", "-1 is out of range"),
    ("nodes: [{gpus: many}]", "nodes[0].gpus", "'many' is no whole number"),
    ("nodes: [{gpu: 8}]", "nodes[0].gpu", "accepted: count, gpus"),
    ("nodes: [8]", "nodes[0]", "is no mapping"),
    ("node: []", "nodes", "needs a list"),
    ("nodes: [{gpus: 8}]\nracks: []", "racks", "accepted: nodes, topology"),
    (NODES + "topology: [{name: x}]", "nodes[0].rack", "r is no domain of the topology"),
    (NODES + "topology: [{name: r, parent: b}]", "topology[0].parent", "b is no domain"),
    (NODES + "topology: [{name: r}, {name: r}]", "topology[1].name", "r is there twice"),
    (NODES + "topology: [{name: r, parent: r}]", "topology[0].parent", "circle: r in r"),
    (
        NODES + "topology: [{name: r, parent: b}, {name: b, parent: c}, {name: c, parent: b}]",
        "topology[0].parent",
        "circle: b in c in b",
    ),
    (NODES + "topology: [{parent: r}]", "topology[0].name", "needs a name"),
    ("nodes: [", None, "is no YAML"),
    ("nodes: [{gpus: 0}]", None, "holds no node with GPUs"),
]


@pytest.mark.parametrize(("text", "field", "said"), BAD, ids=[bad[2] for bad in BAD])
def test_bad_yaml_is_refused_with_its_field(
    tmp_path: Path, text: str, field: str | None, said: str
) -> None:
    with pytest.raises(BadInputError) as refused:
        read_cluster(write(tmp_path, text))
    assert refused.value.field == field
    assert said in str(refused.value)


def test_a_bad_csv_is_refused_with_row_and_field(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="row 3, field nodes: -2 is out of range"):
        read_cluster(write(tmp_path, "vc,node num\na,1\nb,-2\n", "vcs.csv"))
    with pytest.raises(BadInputError, match="row 2, field gpus: -1 is out of range"):
        read_cluster(write(tmp_path, "gpus\n-1\n", "nodes.csv"))
    with pytest.raises(BadInputError, match="row 1, field gpus: no column for it"):
        read_cluster(write(tmp_path, "name\na\n", "nodes.csv"))
    with pytest.raises(BadInputError, match=r"accepted: \.csv, \.csv\.gz, .yaml, .yml"):
        read_cluster(write(tmp_path, "", "nodes.json"))
