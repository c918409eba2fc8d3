"""What an agent's server for copies gives, and to whom: refusals over a real socket."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from structlog.testing import capture_logs

from gangline_schemas.events.scheduling import GangAllocated
from gangline_storage.local import LocalStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.isolation.files import Owner, give
from gangline_worker.agent.peers import tier as peer_tier
from gangline_worker.agent.peers.files import CopyFiles, NotGiven
from gangline_worker.agent.peers.seal import SECRET_KEY, PeerRequest, new_nonce, proof, token
from gangline_worker.agent.peers.server import (
    NODE_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    ConnectionAnswer,
    Held,
    connection_path,
    path_of,
)
from support.builders.gangs import gang_released
from support.harnesses.peers import START, STEP, PeerHarness, PeerNode, commit, gang, running_peers

FILE = f"step-{STEP:010d}/rank-00001.bin"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[PeerHarness]:
    with running_peers(tmp_path) as made:
        yield made


def ask(
    harness: PeerHarness,
    path: str,
    request: PeerRequest | None = None,
    *,
    node: str = "a",
    of: str = "b",
    secret: bytes | None = None,
) -> tuple[int, str, bytes]:
    """Ask node `of` in the name of `node`: status, proof, body. `request`: what the token says."""
    parts = path.split("/")
    said = request or PeerRequest(parts[3], int(parts[4]), node, of, path, new_nonce())
    headers = {
        NODE_HEADER: node,
        NONCE_HEADER: said.nonce,
        "Authorization": f"Gangline {token(secret or harness.store.get(SECRET_KEY), said)}",
    }
    connection = http.client.HTTPConnection("127.0.0.1", harness.nodes[of].tier.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get(PROOF_HEADER, ""), answer.read()
    finally:
        connection.close()


@pytest.fixture
def second(harness: PeerHarness) -> GangAllocated:
    """Attempt 2, on nodes a and b; the secret is there."""
    harness.nodes["b"].copies.secret.value()
    return harness.restart("a", "b")


def test_a_node_of_the_gang_is_given_what_it_starts_from(
    harness: PeerHarness, second: GangAllocated
) -> None:
    status, _, body = ask(harness, path_of("job", 2))
    assert status == 200
    assert sorted(Held.decode(body).files) == [FILE, FILE.replace(".bin", ".json")]
    path = path_of("job", 2, FILE)
    request = PeerRequest("job", 2, "a", "b", path, new_nonce())
    status, shown, body = ask(harness, path, request)
    assert (status, body) == (200, harness.data[1])
    assert shown == proof(harness.store.get(SECRET_KEY), request)


@pytest.mark.parametrize(
    "wrong",
    [
        PeerRequest("job", 1, "a", "b", path_of("job", 2, FILE), new_nonce()),
        PeerRequest("other", 2, "a", "b", path_of("job", 2, FILE), new_nonce()),
        PeerRequest("job", 2, "c", "b", path_of("job", 2, FILE), new_nonce()),
        PeerRequest("job", 2, "a", "c", path_of("job", 2, FILE), new_nonce()),
        PeerRequest("job", 2, "a", "b", path_of("job", 2), new_nonce()),
    ],
    ids=["another attempt", "another job", "another node", "to another node", "another file"],
)
def test_a_token_for_something_else_is_refused(
    harness: PeerHarness, second: GangAllocated, wrong: PeerRequest
) -> None:
    assert ask(harness, path_of("job", 2, FILE), wrong) == (401, "", b"")


def test_a_client_without_the_secret_is_refused(
    harness: PeerHarness, second: GangAllocated
) -> None:
    assert ask(harness, path_of("job", 2, FILE), secret=b"guessed") == (401, "", b"")


def test_an_attempt_that_is_over_is_given_nothing(
    harness: PeerHarness, second: GangAllocated
) -> None:
    assert ask(harness, path_of("job", 2, FILE))[0] == 200
    assert ask(harness, path_of("job", 1, FILE))[0] == 404, "it was superseded"
    harness.hear(gang_released("job", 2, START))
    assert ask(harness, path_of("job", 2, FILE)) == (404, "", b"")


def test_a_node_that_is_not_of_the_gang_is_given_nothing(
    harness: PeerHarness, second: GangAllocated
) -> None:
    assert ask(harness, path_of("job", 2, FILE), node="c") == (403, "", b"")


def test_an_attempt_that_starts_from_nothing_is_given_nothing(harness: PeerHarness) -> None:
    harness.nodes["b"].copies.secret.value()
    harness.hear(harness.gang(2, "a", "b"))
    assert ask(harness, path_of("job", 2))[0] == 404
    assert ask(harness, path_of("job", 2, FILE))[0] == 404


@pytest.mark.parametrize(
    "name",
    [
        "step-0000000005/rank-00007.bin",
        "step-0000000006/rank-00001.bin",
        "step-0000000005/COMMIT.json",
        "step-0000000005/own.txt",
        "step-0000000005/../step-0000000006/rank-00001.bin",
        "../../other/attempt-0001/step-0000000005/rank-00001.bin",
        "step-0000000005/%2e%2e/rank-00001.bin",
        "step-0000000005//etc/passwd",
        "step-0000000005/",
    ],
)
def test_what_the_commit_record_does_not_name_is_not_given(
    harness: PeerHarness, second: GangAllocated, name: str
) -> None:
    for step in (5, 6):  # step 6 was saved, and never committed
        harness.nodes["b"].save(1, harness.gang(1, "a", "b"), b"not committed", step=step + 1)
    harness.nodes["b"].path("own.txt").write_bytes(b"of the rank")
    harness.nodes["b"].path("COMMIT.json").write_bytes(b"{}")
    assert ask(harness, path_of("job", 2, name)) == (404, "", b"")


@pytest.mark.parametrize("part", ["file", "folder", "pipe"])
def test_a_link_or_a_pipe_is_not_given(
    harness: PeerHarness, second: GangAllocated, tmp_path: Path, part: str
) -> None:
    path = harness.nodes["b"].path("rank-00001.bin")
    moved = path if part != "folder" else path.parent
    elsewhere = moved.rename(tmp_path / "elsewhere")
    if part == "pipe":
        os.mkfifo(path)
    else:
        moved.symlink_to(elsewhere)
    assert ask(harness, path_of("job", 2, FILE)) == (404, "", b"")
    _, _, body = ask(harness, path_of("job", 2))
    assert FILE not in Held.decode(body).files


def test_a_gang_is_not_given_the_checkpoint_of_another_team(harness: PeerHarness) -> None:
    """Its own allocation would have to name it; its agents would still refuse."""
    harness.nodes["b"].copies.secret.value()
    nodes = [harness.nodes[name].assignment(rank) for rank, name in enumerate("ab")]
    harness.hear(gang(1, *nodes, job_id="spy", team="cv", resume=harness.ref))
    assert ask(harness, path_of("spy", 1))[0] == 404
    assert ask(harness, path_of("spy", 1, FILE))[0] == 404
    harness.hear(gang(1, *nodes, job_id="evaluation", resume=harness.ref))
    assert ask(harness, path_of("evaluation", 1, FILE))[2] == harness.data[1], (
        "of the same team it is"
    )


def test_a_copy_of_another_length_is_not_said_to_be_held(
    harness: PeerHarness, second: GangAllocated
) -> None:
    os.truncate(harness.nodes["b"].path("rank-00001.bin"), 100)
    _, _, body = ask(harness, path_of("job", 2))
    assert Held.decode(body).files == (FILE.replace(".bin", ".json"),)


def test_a_restarted_agent_listens_where_the_last_one_did(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    first = PeerNode(tmp_path, "a", store)
    second = PeerNode(tmp_path, "a", store)
    assert second.tier.port != first.tier.port, "it is taken"
    for node in (first, second):
        node.stop()
    third = PeerNode(tmp_path, "a", store)
    assert third.tier.port == second.tier.port
    third.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="the agent is not root here")
def test_files_are_read_with_the_rights_of_their_teams_user_alone() -> None:
    own, other = Owner(1_900_000_007), Owner(1_900_000_008)
    with TemporaryDirectory(dir="/var/tmp") as made:
        Path(made).chmod(0o755)  # pytest's own folders let no other user through
        with running_peers(Path(made)) as harness:
            files = CopyFiles(harness.nodes["b"].data / "checkpoints", harness.store)
            give(harness.nodes["b"].checkpoints.folder("job"), own)
            assert len(files.held(harness.ref, "nlp", own)) == 2
            with files.opened(harness.ref, "nlp", own, FILE) as file:
                assert file.read() == harness.data[1]
            assert files.held(harness.ref, "nlp", other) == ()
            with pytest.raises(NotGiven):
                files.opened(harness.ref, "nlp", other, FILE)


def test_an_incremental_checkpoint_needs_files_of_steps_beside_it(harness: PeerHarness) -> None:
    """They are named by its commit record, and given for it."""
    harness.nodes["b"].copies.secret.value()
    first = harness.gang(1, "a", "b")
    older = [harness.nodes[name].save(rank, first, b"older", 3) for rank, name in enumerate("ab")]
    newer = [harness.nodes[name].save(rank, first, b"newer", 7) for rank, name in enumerate("ab")]
    ref = commit(harness.store, newer, referred=[older[1].shards[0]])
    harness.hear(harness.gang(2, "a", "b", resume=ref))
    _, _, body = ask(harness, path_of("job", 2))
    assert sorted(Held.decode(body).files) == [
        "step-0000000003/rank-00001.bin",
        "step-0000000007/rank-00001.bin",
        "step-0000000007/rank-00001.json",
    ]
    name = "step-0000000003/rank-00001.bin"
    assert ask(harness, path_of("job", 2, name))[2] == b"older"
    assert ask(harness, path_of("job", 2, name.replace("bin", "json")))[0] == 404


@pytest.fixture
def link() -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """A connection of this process: its end, and the other one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as made,
        listening.accept()[0],
    ):
        yield made.getsockname(), made.getpeername()


@pytest.mark.parametrize(
    ("owner", "confirmed"),
    [(Owner(os.geteuid()), True), (Owner(os.geteuid() + 1), False), (None, True)],
    ids=["the gang's user", "another user", "a node without users"],
)
def test_a_node_confirms_connections_of_the_gangs_user_alone(
    harness: PeerHarness,
    second: GangAllocated,
    link: tuple[tuple[str, int], tuple[str, int]],
    owner: Owner | None,
    confirmed: bool,
) -> None:
    harness.nodes["b"].owner = owner
    status, _, body = ask(harness, connection_path("job", 2, *link))
    assert (status, ConnectionAnswer.decode(body).confirmed) == (200, confirmed)
    nobodys = (link[0][0], 1), link[1]
    assert ConnectionAnswer.decode(
        ask(harness, connection_path("job", 2, *nobodys))[2]
    ).confirmed == (owner is None)


def test_who_is_no_node_of_the_gang_is_told_nothing_of_its_connections(
    harness: PeerHarness, second: GangAllocated, link: tuple[tuple[str, int], tuple[str, int]]
) -> None:
    path = connection_path("job", 2, *link)
    assert ask(harness, path, node="c")[0] == 403
    assert ask(harness, path, secret=b"guessed")[0] == 401
    assert ask(harness, path.replace("/job/", "/other/"))[0] == 404


def test_an_agent_asks_those_at_the_address_and_lets_nobody_in_that_none_knows(
    harness: PeerHarness, second: GangAllocated, link: tuple[tuple[str, int], tuple[str, int]]
) -> None:
    near, gang = harness.nodes["a"].tier, GangKey("job", 2)
    assert near.confirms(gang, *link), "b has no users"
    harness.nodes["b"].owner = Owner(os.geteuid() + 1)
    assert not near.confirms(gang, *link)
    assert not near.confirms(gang, ("192.0.2.7", 40_000), link[1]), "no node of the gang is there"
    assert not near.confirms(GangKey("job", 1), *link), "that attempt is over"
    harness.nodes["b"].owner = Owner(os.geteuid())
    assert near.confirms(gang, *link)


def test_an_agent_that_does_not_answer_is_asked_again_and_then_confirms_nothing(
    harness: PeerHarness,
    second: GangAllocated,
    link: tuple[tuple[str, int], tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_tier, "_ASK_S", 0.3)
    harness.nodes["b"].stop()
    with capture_logs() as lines:
        assert not harness.nodes["a"].tier.confirms(GangKey("job", 2), *link)
    [told] = [line for line in lines if line["event"] == "rendezvous.turned_away"]
    assert str(told["reason"]).startswith("b ConnectionRefusedError")


def test_where_nobody_can_be_asked_the_address_is_all_that_is_known(
    harness: PeerHarness, link: tuple[tuple[str, int], tuple[str, int]]
) -> None:
    mute = harness.nodes["b"].assignment(1).model_copy(update={"copies_port": None})
    harness.hear(gang(2, harness.nodes["a"].assignment(0), mute))
    assert harness.nodes["a"].tier.confirms(GangKey("job", 2), *link)
