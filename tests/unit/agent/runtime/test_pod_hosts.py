"""A pod's first process is in the job's hands: no packet of it harms the agent."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_schemas.job_pods import POD_SOCKET
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.runtime.pod_hosts import PodHosts, PodWaits, kubectl_missing
from gangline_worker.agent.runtime.pod_link import JobPod

GANG = GangKey("job", 1)
HELLO = json.dumps({"hello": {"alive": [], "ended": {}}}).encode()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[PodHosts]:
    waits = PodWaits(5, 5)
    made = PodHosts(tmp_path, waits, kubectl_missing("node", waits))
    yield made
    made.stop()


def connected(folder: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(str(folder / POD_SOCKET))
    return made


@pytest.mark.parametrize(
    "packet",
    [
        b"[" * 60_000,
        b'{"ended": "1-0", "code": Infinity}',
        b'{"ended": "1-0", "code": 1e300}',
        b'{"hello": {"ended": {"1-0": Infinity}}}',
        b'{"hello": {"ended": 1}}',
        b"\xff",
        b"[1]",
    ],
)
def test_the_agent_outlives_each_packet(hosts: PodHosts, packet: bytes) -> None:
    folder = hosts.expect(GANG, None)
    with connected(folder) as pod:
        pod.send(HELLO)
        pod.send(packet)
    with connected(folder) as again:
        again.send(HELLO)
        again.send(b'{"ended": "1-0", "code": 3}')
        assert hosts.status(RankKey(GANG, 0)) == 3


def test_ends_without_end_are_not_kept() -> None:
    with socket.socket() as listener:
        pod = JobPod("job", os.getuid(), listener)
    for number in range(5000):
        pod.note_ends([(f"1-{number}", 0)])
    assert len(pod.ended) == 1000
    assert "1-4999" in pod.ended
    for name, code in (("x" * 1000, 0), ("1-0", 1 << 70)):
        with pytest.raises(ValueError, match="no rank"):
            pod.note_ends([(name, code)])


def test_the_reason_of_a_pod_that_was_not_bound_says_where_to_look() -> None:
    words = kubectl_missing("n-1", PodWaits(10, 60))(GANG, False)
    assert words.startswith("pod not bound: no pod of the gang came to node n-1 within 10 s")
    assert "scheduling gate such as Kueue's" in words
    assert words.endswith("the log of kube-pods has the reason")
