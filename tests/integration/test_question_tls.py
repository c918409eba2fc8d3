"""The scheduler's door behind TLS, and the gateway's side of it that checks the certificate."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from builders_deciding import spec
from builders_scheduler import Cluster, node
from certificates import certificate
from gangline_gateway.scheduler_door import AuthorityFileError, AwayError, SchedulerDoor
from gangline_scheduler.__main__ import door_of
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.state import State
from gangline_scheduler.service.config import SchedulerSettings
from gangline_scheduler.service.door import Desk, Door
from gangline_service.asking import Asked
from gangline_service.tokens import Role, TokenEntry, write_tokens

TOKEN = "service-token"
ANSWER_S = 20.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Certificate and key of the scheduler, and of somebody else who calls itself so."""
    folder = tmp_path_factory.mktemp("tls")
    return {name: certificate(folder, name) for name in ("scheduler", "other")}


def opened(folder: Path, desk: Desk, tls: tuple[Path, Path]) -> Door:
    """The door as the service's settings make it."""
    tokens = folder / "tokens.json"
    write_tokens(tokens, [TokenEntry.of(TOKEN, name="gateway", role=Role.SERVICE)])
    settings = SchedulerSettings(
        question_port=0, tokens_file=tokens, question_tls_cert=tls[0], question_tls_key=tls[1]
    )
    door = door_of(settings, desk)
    assert door is not None
    return door


@pytest.fixture(scope="module")
def door(
    made: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """One that answers: on a node of 4 GPUs 3 are held, and a job waits for 2."""
    cluster = Cluster(node("n1", 4))
    cluster.run("runs", 3)
    cluster.submit("waits", 2)
    asked: Asked[State] = Asked()
    desk = Desk(asked, Scheduler(), Policy())
    found = opened(tmp_path_factory.mktemp("door"), desk, made["scheduler"])
    stopping = threading.Event()

    def loop() -> None:
        while not stopping.wait(0.002):
            asked.answer(cluster.state)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    found.start()
    yield found
    stopping.set()
    thread.join()
    found.close()


def asker(url: str, ca: Path | None) -> SchedulerDoor:
    return SchedulerDoor([url], TOKEN, ca=ca, answer_s=ANSWER_S)


def test_who_trusts_its_certificate_is_answered(
    door: Door, made: dict[str, tuple[Path, Path]]
) -> None:
    assert door.address.url.startswith("https://127.0.0.1:")
    gateway = asker(door.address.url, made["scheduler"][0])
    why = gateway.explain("waits")
    assert why is not None
    assert why.code == "capacity"
    assert gateway.what_if(spec("nlp", 1)).starts == "now"


@pytest.mark.parametrize("who", ["other", None])
def test_a_certificate_that_nobody_known_signed_is_not_accepted(
    door: Door, made: dict[str, tuple[Path, Path]], who: str | None
) -> None:
    gateway = asker(door.address.url, made[who][0] if who is not None else None)
    with pytest.raises(AwayError, match=r"certificate is not accepted.*GANGLINE_SCHEDULER_TLS_CA"):
        gateway.explain("waits")


def test_a_certificate_of_another_name_is_not_accepted(
    door: Door, made: dict[str, tuple[Path, Path]]
) -> None:
    gateway = asker(f"https://localhost:{door.address.port}", made["scheduler"][0])
    with pytest.raises(AwayError, match="certificate is not accepted"):
        gateway.explain("waits")


def test_without_tls_nobody_is_answered(door: Door) -> None:
    connection = HTTPConnection("127.0.0.1", door.address.port, timeout=ANSWER_S)
    connection.request("GET", "/v1/explain/waits", headers={"Authorization": f"Bearer {TOKEN}"})
    with pytest.raises((HTTPException, OSError)):
        connection.getresponse()
    connection.close()


def test_files_that_cannot_be_used_are_named(
    made: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    desk = Desk(Asked[State](), Scheduler(), Policy())
    (cert, _), (_, others_key) = made["scheduler"], made["other"]
    for files in ((cert, others_key), (cert, tmp_path / "nothing")):
        with pytest.raises(SystemExit, match="GANGLINE_QUESTION_TLS_CERT and GANGLINE_QUESTION"):
            opened(tmp_path, desk, files)
    empty = tmp_path / "empty.pem"
    empty.touch()
    for ca in (empty, tmp_path / "nothing"):
        with pytest.raises(AuthorityFileError, match="GANGLINE_SCHEDULER_TLS_CA cannot be used"):
            asker("https://127.0.0.1:1", ca)
