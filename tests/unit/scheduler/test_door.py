"""The door for questions: who may ask, what is refused, and what a standby says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import NoReturn

import pytest
from pydantic import ValidationError

from builders_deciding import spec
from builders_scheduler import Cluster, node
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.state import State
from gangline_scheduler.service.config import SchedulerSettings
from gangline_scheduler.service.door import AT_ONCE, BODY_LIMIT_BYTES, Desk, Door
from gangline_schemas.api.questions import JobExplained, WhatIfAnswer
from gangline_service.asking import Asked, SeenT, StandsByError
from gangline_service.tokens import Role, TokenBook, TokenEntry, write_tokens

SERVICE, MEMBER = "service-token", "member-token"


@dataclass
class Scene:
    """A door whose loop answers from `state`; None stands by."""

    door: Door
    asked: Asked[State]
    state: State | None
    stopping: threading.Event = field(default_factory=threading.Event)

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.door.address.port, timeout=20)
        given = {"Authorization": f"Bearer {SERVICE}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def loop(self) -> None:
        while not self.stopping.wait(0.002):
            self.asked.answer(self.state)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    cluster = Cluster(node("n1", 4))
    cluster.run("runs", 3)
    cluster.submit("waits", 2)
    tokens = tmp_path_factory.mktemp("door") / "tokens.json"
    write_tokens(
        tokens,
        [
            TokenEntry.of(SERVICE, name="gateway", role=Role.SERVICE),
            TokenEntry.of(MEMBER, name="ada", role=Role.MEMBER, teams=["nlp"]),
        ],
    )
    asked: Asked[State] = Asked()
    door = Door(Desk(asked, Scheduler(), Policy()), TokenBook.load(tokens), instance="t")
    found = Scene(door, asked, cluster.state)
    thread = threading.Thread(target=found.loop, daemon=True)
    thread.start()
    door.start()
    yield found
    found.stopping.set()
    thread.join()
    door.close()


def test_the_leader_explains_and_says_what_would_be(scene: Scene) -> None:
    status, body = scene.ask("GET", "/v1/explain/waits")
    assert (status, JobExplained.decode(body).code) == (200, "capacity")
    status, body = scene.ask("POST", "/v1/what-if", spec("nlp", 1).encode())
    assert (status, WhatIfAnswer.decode(body).starts) == (200, "now")


def test_what_is_asked_wrongly_is_refused(scene: Scene) -> None:
    status, body = scene.ask("POST", "/v1/what-if", spec("nlp", 1).encode()[:-1] + b',"oops":1}')
    assert (status, b"oops" in body) == (422, True)
    assert scene.ask("POST", "/v1/what-if", Content_Length=str(BODY_LIMIT_BYTES + 1))[0] == 413
    assert scene.ask("GET", "/v1/explain/unknown")[0] == 404
    assert scene.ask("GET", "/v1/explain/..%2f")[0] == 404
    assert scene.ask("DELETE", "/v1/what-if")[0] == 501
    assert scene.ask("GET", "/v1/what-if")[0] == 405


def test_only_services_may_ask_and_no_page(scene: Scene) -> None:
    path = "/v1/explain/waits"
    assert scene.ask("GET", path, Authorization="")[0] == 401
    assert scene.ask("GET", path, Authorization="Bearer wrong")[0] == 401
    assert scene.ask("GET", path, Authorization=f"Bearer {MEMBER}")[0] == 403
    assert scene.ask("GET", path, Host="evil.example:80")[0] == 403
    assert scene.ask("GET", path, Origin="http://127.0.0.1")[0] == 403


def test_a_standby_says_so(scene: Scene) -> None:
    kept, scene.state = scene.state, None
    status, body = scene.ask("GET", "/v1/explain/waits")
    scene.state = kept
    assert (status, b"stands by" in body) == (503, True)


class Held(Asked[State]):
    """Lets askers in and keeps them until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.go = threading.Semaphore(0), threading.Event()

    def look(self, take: Callable[[State], SeenT], timeout_s: float) -> SeenT:
        self.came.release()
        self.go.wait(20)
        raise StandsByError("released")


def test_more_than_a_few_questions_at_a_time_are_told_to_come_again() -> None:
    asked = Held()
    desk = Desk(asked, Scheduler(), Policy())
    threads = [threading.Thread(target=desk.explain, args=("waits",)) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
        assert asked.came.acquire(timeout=20)
    beyond = desk.explain("waits")
    asked.go.set()
    for thread in threads:
        thread.join()
    assert (beyond.status, b"ask again" in beyond.body) == (503, True)
    assert b"released" in desk.explain("waits").body


class Endless(Scheduler):
    """A question to it never ends."""

    def decide(self, *_: object) -> NoReturn:  # type: ignore[override]
        while True:
            pass


def test_a_question_that_takes_too_long_is_ended_and_the_scheduler_goes_on(scene: Scene) -> None:
    """It is worked on in another process: the loop neither waits for it nor shares its time."""
    desk = Desk(scene.asked, Endless(), Policy(), work_s=0.3)
    for _ in range(2 * AT_ONCE):
        ended = desk.what_if(spec("nlp", 1).encode())
        assert (ended.status, b"took too long" in ended.body) == (503, True)
    answered = Desk(scene.asked, Endless(), Policy(), work_s=20).explain("waits")
    assert answered.status == 200


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"question_port": 0}, "tokens_file"),
        ({"question_port": 0, "question_tls_cert": Path("c")}, "question_tls_key"),
        ({"question_port": 0, "question_host": "0.0.0.0"}, "reachable from other machines"),
    ],
)
def test_an_unguarded_door_does_not_open(settings: dict[str, object], named: str) -> None:
    given = settings if named == "tokens_file" else {"tokens_file": Path("t"), **settings}
    with pytest.raises(ValidationError, match=named):
        SchedulerSettings(**given)  # type: ignore[arg-type]
