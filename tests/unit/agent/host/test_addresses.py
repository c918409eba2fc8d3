"""Where nodes are reached: the default, and what a gang over several machines is refused for."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from subprocess import run
from typing import Self

import pytest

from gangline_schemas.events.scheduling import GangAllocated
from gangline_worker.agent.config import AgentSettings
from gangline_worker.agent.host.addresses import (
    AddressUnreachable,
    check_addresses,
    default_address,
    loopback_of,
)
from gangline_worker.agent.host.inventory import Labels, take_inventory
from gangline_worker.agent.runtime.rank_env_file import BadRankEnvFile, read_rank_env
from gangline_worker.agent.workspace.environment import rank_environment
from support.builders.checkpoints import allocated
from support.builders.gang_paths import gang_paths


def gang(*places: tuple[str, int | None]) -> GangAllocated:
    """One over a node for each address and port of copies."""
    one = allocated().nodes[0]
    nodes = [
        one.model_copy(
            update={"node_id": f"n{i}", "address": at, "copies_port": port, "first_rank": i}
        )
        for i, (at, port) in enumerate(places)
    ]
    return allocated().model_copy(update={"nodes": tuple(nodes)})


class NoRoute:
    """A socket of a machine without a default route."""

    def __init__(self, *_: object) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def connect(self, _: object) -> None:
        raise OSError("Network is unreachable")


class Routed(NoRoute):
    """One of a machine that has one."""

    def connect(self, to: object) -> None:
        assert to == ("192.0.2.1", 9)

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.5", 40_000


def test_a_node_is_reached_at_the_address_of_its_default_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", Routed)
    assert default_address() == "10.0.0.5"
    assert AgentSettings(store_url="file:///store").address == "10.0.0.5"
    monkeypatch.setattr(socket, "socket", NoRoute)
    assert default_address() == "127.0.0.1"


@pytest.mark.parametrize(
    "places",
    [
        [("10.0.0.5", 1), ("127.0.0.1", 2)],
        [("127.0.0.1", 9000), ("127.0.0.1", 9000)],  # the same port twice: two machines
        [("localhost", None), ("10.0.0.5", None)],
    ],
)
def test_a_gang_over_machines_one_of_which_has_a_loopback_address_is_refused(
    places: list[tuple[str, int | None]],
) -> None:
    given = gang(*places)
    for own in given.nodes:
        with pytest.raises(AddressUnreachable, match=r"of node n\d: set GANGLINE_ADDRESS"):
            check_addresses(given, own)


def test_a_node_names_the_loopback_interface_of_its_address() -> None:
    assert loopback_of("10.0.0.5") is None
    here = loopback_of("127.0.0.1")
    assert here is not None
    assert here == loopback_of("localhost") == loopback_of("::1"), "agents of one machine"
    code = "from gangline_worker.agent.host.addresses import loopback_of as of; print(of('::1'))"
    again = [sys.executable, "-c", code]
    assert run(again, capture_output=True, text=True, check=True).stdout.strip() == here
    labels = Labels("n1", "i", "127.0.0.1", "r", "b", {})
    assert take_inventory(labels, slots=1, ports=(7001,)).loopback == here


def test_agents_of_one_machine_may_share_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as copies:
        port = copies.getsockname()[1]
        given = gang(("127.0.0.1", 1), ("127.0.0.1", port))
        check_addresses(given, given.nodes[0])
    with pytest.raises(AddressUnreachable):
        check_addresses(given, given.nodes[0])  # no server listens on this machine
    for places in ([("127.0.0.1", 1)], [("10.0.0.5", 1), ("10.0.0.6", 1)]):
        check_addresses(gang(*places), gang(*places).nodes[0])
    untold = gang(("127.0.0.1", None), ("127.0.0.1", None))
    check_addresses(untold, untold.nodes[0])


def test_an_operators_variables_reach_the_ranks_below_the_jobs_own(tmp_path: Path) -> None:
    file = tmp_path / "ranks.env"
    file.write_text("# of this node\n\nNCCL_IB_HCA=mlx5_0=1\nNCCL_DEBUG=WARN\n")
    operators = read_rank_env(file)
    spec = allocated().spec.model_copy(update={"env": {"NCCL_DEBUG": "INFO"}})
    given = allocated().model_copy(update={"spec": spec})
    paths = gang_paths(tmp_path)
    found = rank_environment(
        given, given.nodes[0], 0, paths, gpus="", token="t", secrets={}, operators=operators
    )
    assert (found["NCCL_IB_HCA"], found["NCCL_DEBUG"]) == ("mlx5_0=1", "INFO")
    assert read_rank_env(None) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"NCCL_DEBUG", "line 1 must be NAME=VALUE"),
        (b"A=1\nA=2", "line 2 gives A again"),
        (b"1A=2", "names must be letters"),
        (b"RANK=0", "RANK is set by Gangline"),
        (b"GANGLINE_X=0", "GANGLINE_X is set by Gangline"),
        (b"HF_TOKEN=x", "HF_TOKEN looks like a secret"),
        (b"A=\xff", "no UTF-8"),
        (b"A=" + b"x" * 10**6, "bytes"),
    ],
)
def test_a_bad_file_of_variables_is_refused(tmp_path: Path, text: bytes, why: str) -> None:
    file = tmp_path / "ranks.env"
    file.write_bytes(text)
    with pytest.raises(BadRankEnvFile, match=why):
        read_rank_env(file)
    with pytest.raises(BadRankEnvFile, match="cannot be read"):
        read_rank_env(tmp_path / "none")
