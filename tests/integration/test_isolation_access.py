"""Hostile ranks reach no file, variable, socket, port or checkpoint of others.

The control is the same act on the rank's own things, so an attack that could not work at all
would fail its test too. What needs a stronger level than this machine has is skipped; see
`support.fixtures.isolation`.
"""

from __future__ import annotations

import contextlib
import json
import socket
from textwrap import dedent

import psutil
import pytest

from gangline_schemas.events.scheduling import ReleaseReason
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import WorkerExited
from gangline_schemas.isolation import Isolation
from support.fixtures.isolation import HOSTILE, METADATA, OURS, SECRET, THEIRS, Stand, Victim


def test_1_no_file_of_another_team_or_of_the_agent_is_read(stand: Stand, victim: Victim) -> None:
    node = stand.harness.folder / "node"
    agents = [str(node), str(node / "agent.lock"), str(node / "spool"), str(stand.harness.store)]
    found = stand.report(
        f"""
        def read(path):
            return os.listdir(path) if os.path.isdir(path) else open(path).read()
        named = ("HOME", "GANGLINE_DATA_CACHE")
        own = [os.path.join(os.environ[name], "own.txt") for name in named]
        for path in own:
            open(path, "w").write("mine")
        paths = victim["files"] + {agents!r}
        tell(own=[read(path) for path in own], theirs=[attempt(read, path) for path in paths])
        """,
        victim,
    )
    assert found["own"] == ["mine", "mine"]
    theirs = found["theirs"]
    assert isinstance(theirs, list)
    assert SECRET not in str(theirs)
    # The agent's folder may be seen, with nothing in it but the way to what is the rank's own.
    seen = [text for text in theirs if not text.endswith("Error")]
    known = {"work", "checkpoints", "data-cache"}
    assert all(set(json.loads(text.replace("'", '"'))) <= known for text in seen)


def test_7_no_variable_of_the_agent_or_of_another_team_is_seen(
    stand: Stand, victim: Victim
) -> None:
    found = stand.report(
        """
        seen = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                seen.append(open(f"/proc/{name}/environ").read())
            except OSError:
                pass
        tell(own=os.environ["USER"], seen="".join(seen), here=dict(os.environ))
        """,
        victim,
    )
    assert found["own"] == OURS
    assert "GANGLINE_RANK_TOKEN" in str(found["seen"]), "its own environment is there"
    for hidden in (SECRET, "of the agent alone", "GANGLINE_STORE_URL", "GANGLINE_DATA_DIR"):
        assert hidden not in str(found)


def test_8_the_metadata_service_is_out_of_reach(stand: Stand) -> None:
    stand.needs(Isolation.USER)
    if "metadata_service_is_open" in (stand.harness.folder / "agent.log").read_text():
        pytest.skip("this machine's kernel has no routing rules for users")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((METADATA[0], 80))  # of a datagram: nothing is sent
        except OSError:
            pytest.skip("nobody on this machine has a way there")
    found = stand.report(
        f"""
        import socket
        def reach(address, kind):
            with socket.socket(socket.AF_INET, kind) as link:
                link.settimeout(5)
                return link.connect((address, 80))
        tell(
            own=attempt(reach, "192.0.2.1", socket.SOCK_DGRAM),
            theirs=[attempt(reach, address, kind) for address in {METADATA!r}
                    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)],
        )
        """
    )
    assert found == {"own": "None", "theirs": ["PermissionError"] * 2 * len(METADATA)}


STAYS = """
import socket
import subprocess
import sys
def stays(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.settimeout(1)
        try:
            return link.recv(1) != b""
        except TimeoutError:
            return True
"""


def listening(agent: psutil.Process) -> set[tuple[str, int]]:
    """Where an agent, and all that it started, take connections."""
    found: set[tuple[str, int]] = set()
    for process in (agent, *agent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found


def test_9_a_foreign_rank_does_not_get_to_a_rendezvous(stand: Stand, victim: Victim) -> None:
    theirs = stand.report(
        STAYS + "tell(own=attempt(stays, int(os.environ['MASTER_PORT'])),"
        " theirs=attempt(stays, victim['port']))",
        victim,
    )
    assert theirs["own"] == "True"
    assert theirs["theirs"] in {"False", "ConnectionResetError"}
    teammate = stand.report(STAYS + "tell(own=attempt(stays, victim['port']))", victim, team=THEIRS)
    assert teammate["own"] == "True", "their own team does get there"
    assert stand.harness.agent is not None
    open_at = listening(psutil.Process(stand.harness.agent.pid))
    assert ("127.0.0.1", victim.known["port"]) in open_at
    assert {address for address, _ in open_at} == {"127.0.0.1"}, "where it is reached, nowhere else"


def test_10_no_checkpoint_of_another_job_is_touched(stand: Stand, victim: Victim) -> None:
    script = """
        kept = os.environ["GANGLINE_CHECKPOINT_DIR"]
        def write(folder):
            with open(os.path.join(folder, "mark"), "w") as file:
                return file.write("x")
        theirs = os.path.dirname(victim["files"][1])
        tell(
            own=[attempt(write, kept), attempt(os.listdir, kept)],
            theirs=[attempt(write, theirs), attempt(os.listdir, theirs),
                    attempt(os.rename, theirs, theirs + "-gone")],
        )
    """
    found = stand.report(script, victim)
    assert found["own"] == ["1", "['mark']"]
    refused = {"FileNotFoundError", "PermissionError"}
    assert isinstance(found["theirs"], list)
    assert set(found["theirs"]) <= refused
    if stand.node.isolation.strength >= Isolation.NAMESPACES.strength:
        again = stand.report(script, victim, team=THEIRS)["theirs"]  # a job of the same team
        assert isinstance(again, list)
        assert set(again) <= refused


def test_11_the_socket_of_another_gang_cannot_be_opened(stand: Stand, victim: Victim) -> None:
    found = stand.report(
        """
        import socket
        def reach(path):
            with socket.socket(socket.AF_UNIX) as link:
                return link.connect(path)
        folder = os.path.dirname(victim["socket"])
        tell(
            own=attempt(reach, os.environ["GANGLINE_AGENT_SOCKET"]),
            theirs=[attempt(reach, victim["socket"])],
            others=attempt(os.listdir, folder),
        )
        """,
        victim,
    )
    assert found["own"] == "None"
    assert isinstance(found["theirs"], list)
    assert set(found["theirs"]) <= {"FileNotFoundError", "PermissionError"}
    assert f"{victim.gang.job_id}-{victim.gang.attempt}" not in str(found["others"])


def test_12_the_token_of_an_older_attempt_opens_nothing(stand: Stand) -> None:
    script = """
        import socket, time
        def report(token, step):
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(5)
            link.connect(os.environ["GANGLINE_AGENT_SOCKET"])
            rank = int(os.environ["RANK"])
            hello = {"kind": "hello", "rank": rank, "token": token}
            said = {"kind": "report", "step": [step], "time_ms": [1], "metrics": {"x": [1.0]}}
            try:
                for frame in (hello, said):
                    link.sendall(json.dumps(frame).encode() + b"\\n")
                link.shutdown(socket.SHUT_WR)
                return link.recv(1)
            except OSError as error:
                return type(error).__name__
        token = os.environ["GANGLINE_RANK_TOKEN"]
        if os.environ["GANGLINE_ATTEMPT"] == "1":
            with open(os.path.join(os.environ["GANGLINE_CHECKPOINT_DIR"], "token"), "w") as file:
                file.write(token)
            report(token, 1)
        else:
            stale = open(os.path.join(os.environ["GANGLINE_CHECKPOINT_DIR"], "token")).read()
            assert stale != token
            report(stale, 666)
            report(token, 2)
    """
    command = ["python", "-c", HOSTILE + dedent(script)]
    for attempt in (1, 2):
        gang = stand.harness.allocate(
            stand.node, job_id="twice", attempt=attempt, gpus=[3], command=command
        )
        stand.harness.wait(
            lambda at=attempt: any(
                item.job_id == "twice" and item.attempt == at
                for item in stand.harness.of(WorkerExited)
            )
        )
        stand.harness.release(gang, ReleaseReason.RESTARTING)
    steps = [item for item in stand.harness.of(WorkerStep) if item.run_id == "twice"]
    assert sorted(step for item in steps for step in item.step) == [1, 2]
