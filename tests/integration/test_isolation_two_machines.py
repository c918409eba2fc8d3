"""A rendezvous on one machine, and who gets to it from another one of its gang's."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gangline_schemas.events.scheduling import (
    GangAllocated,
    ReleaseReason,
    Rendezvous,
)
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.isolation import Isolation
from support.builders.deciding import spec
from support.builders.gangs import gang_allocated, part_of
from support.fixtures.isolation import HOSTILE, OURS, THEIRS
from support.harnesses.node import NodeHarness, free_port
from support.harnesses.two_machines import NoMachinesError, two_machines
from support.waiting import until

MEETS = """
import os, sys, time
from datetime import timedelta
from torch.distributed import TCPStore
address, port, rank = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
store = TCPStore(address, int(port), 2, is_master=False, timeout=timedelta(seconds=60))
store.set(rank, "here")
print("met", store.get("0").decode(), store.get("1").decode(), flush=True)
while True:
    time.sleep(0.1)
"""
STAYS = """
import socket, struct
def stays(address, port):
    with socket.create_connection((address, port), timeout=60) as link:
        # As torch's own clients: the store's magic number, then a ping with a number.
        link.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 7))
        return link.recv(4) == struct.pack("<I", 7)
tell(stays=attempt(stays, *json.loads(os.environ["RENDEZVOUS"])))
"""


@dataclass
class Pair:
    """Two machines with an agent each; `far` has no rendezvous."""

    near: NodeHarness
    far: NodeHarness
    nodes: tuple[NodeInfo, NodeInfo]

    def meet(self, job_id: str) -> GangAllocated:
        """A gang with a rank on each, which have met at the near one."""
        event = gang_allocated(
            job_id,
            spec(OURS, 2, command=["python", "-c", MEETS]),
            *(part_of(node, (0,), rank) for rank, node in enumerate(self.nodes)),
            rendezvous=Rendezvous(address=self.nodes[0].address, port=free_port()),
        )  # fmt: skip
        self.near.publish(job_id, event)
        met = "met here here"
        until(lambda: self.told(job_id).count(met) == 2, f"{job_id} never met")
        return event

    def tries(self, job_id: str, team: str, rendezvous: Rendezvous) -> str:
        """Whether the rendezvous answers another job's rank, on the far machine; or its error."""
        gang = self.far.allocate(
            self.nodes[1],
            job_id=job_id,
            team=team,
            gpus=[1],
            command=["python", "-c", HOSTILE + STAYS],
            env={"RENDEZVOUS": json.dumps([rendezvous.address, rendezvous.port])},
        )
        until(lambda: bool(self.told(job_id)), f"{job_id} told nothing")
        self.far.release(gang, ReleaseReason.SUCCEEDED)
        return str(json.loads(self.told(job_id)[0])["stays"])

    def told(self, job_id: str) -> list[str]:
        return [line for rank in (0, 1) for line in self.near.lines(rank, job_id=job_id)]


@pytest.fixture(scope="module")
def pair(kafka_bootstrap: str) -> Iterator[Pair]:
    with ExitStack() as ends:
        try:
            machines = ends.enter_context(two_machines(kafka_bootstrap))
        except NoMachinesError as error:
            pytest.skip(str(error))
        made = Path(
            ends.enter_context(
                TemporaryDirectory(
                    prefix="gangline-two-", dir="/var/tmp", ignore_cleanup_errors=True
                )
            )
        )
        made.chmod(0o755)
        harnesses: list[NodeHarness] = []
        for machine in machines:
            (made / machine.name).mkdir(mode=0o755)
            harness = NodeHarness(
                made / machine.name,
                kafka_bootstrap,
                names=harnesses[0].names if harnesses else None,
                entering=machine.entering,
                GANGLINE_ADDRESS=machine.address,
                GANGLINE_STORE_URL=f"file://{made / 'store'}",
                GANGLINE_ISOLATION="auto",
            )
            harnesses.append(ends.enter_context(harness))
        near, far = harnesses
        nodes = near.start_agent(), far.start_agent()
        if any(node.isolation.strength < Isolation.USER.strength for node in nodes):
            pytest.skip("this machine has no users for teams")
        yield Pair(near, far, nodes)


def test_from_another_machine_of_the_gang_its_own_user_alone_gets_to_the_rendezvous(
    pair: Pair,
) -> None:
    gang = pair.meet("meets")
    stranger = pair.tries("stranger", THEIRS, gang.rendezvous)
    assert stranger in {"False", "ConnectionResetError"}
    assert pair.tries("teammate", OURS, gang.rendezvous) == "True", "as on the near machine"
    log = (pair.near.folder / "agent.log").read_text()
    assert log.count("rendezvous.turned_away") == 1
    assert "it is not of the gang's user there" in log
    pair.near.release(gang, ReleaseReason.CANCELLED)


@pytest.mark.nightly
def test_agents_that_begin_anew_in_place_still_know_whose_connections_are(pair: Pair) -> None:
    gang = pair.meet("goes-on")
    for harness in (pair.near, pair.far):
        assert harness.agent is not None
        harness.agent.send_signal(signal.SIGHUP)
        until(
            lambda harness=harness: "agent.restarted" in (harness.folder / "agent.log").read_text()
        )
    assert pair.tries("teammate-of-it", OURS, gang.rendezvous) == "True"
    assert pair.tries("stranger-to-it", THEIRS, gang.rendezvous) != "True"
    pair.near.release(gang, ReleaseReason.CANCELLED)


@pytest.mark.nightly
def test_when_a_gang_of_two_machines_is_released_the_next_one_still_meets(pair: Pair) -> None:
    for number in range(2):
        gang = pair.meet(f"one-of-many-{number}")
        pair.near.release(gang, ReleaseReason.CANCELLED)
    assert "store_server.died" not in (pair.near.folder / "agent.log").read_text()
