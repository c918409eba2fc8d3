"""Refused credentials, missing rights: reported once, with names, and a new password is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from gangline_bus.kafka_denials import GRACE_S, Denials
from gangline_bus.kafka_token import TokenFile
from gangline_bus.ports import BusDenied, BusError
from support.builders.service_account import AUDIENCE, ISSUER, ApiServer, account, mount

SETTINGS = {"sasl.username": "tracker", "sasl.password": "old"}
REFUSED = KafkaError(
    KafkaError._AUTHENTICATION,
    "sasl_ssl://k:9093/1: SASL authentication error: Authentication failed during authentication "
    "due to invalid credentials with SASL mechanism SCRAM-SHA-512 (after 4ms in state AUTH_REQ)",
)
LOST = KafkaError(
    KafkaError._AUTHENTICATION,
    "SASL authentication error: SaslAuthenticateRequest failed: Local: Broker transport failure",
)
UNKNOWN = KafkaError(KafkaError._SSL, "SSL handshake failed: certificate verify failed: ...")
NO_TOPIC = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Client:
    def __init__(self) -> None:
        self.password = ""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        assert username == "tracker"
        self.password = password


class Process:
    """A process whose file has `password`, at the time `now`."""

    def __init__(self) -> None:
        self.password, self.now = "old", 0.0
        self.told: list[BusDenied] = []
        self.client = Client()
        self.denials = Denials(
            SETTINGS, lambda: self.password, self.told.append, clock=lambda: self.now
        )


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.mark.parametrize(
    ("error", "said"), [(REFUSED, "principal tracker"), (UNKNOWN, "ssl.ca.location")]
)
def test_a_process_that_kafka_never_let_in_is_denied_at_once(
    process: Process, error: KafkaError, said: str
) -> None:
    process.denials.on_error(error)
    process.denials.on_error(error)
    (told,) = process.told
    assert said in str(told)
    with pytest.raises(BusDenied, match=said):
        process.denials.check()


@pytest.mark.parametrize(
    "error", [LOST, KafkaError(KafkaError._TRANSPORT), KafkaError(KafkaError._ALL_BROKERS_DOWN)]
)
def test_a_broker_that_went_away_refuses_nobody(process: Process, error: KafkaError) -> None:
    process.denials.on_error(error)
    process.denials.check()
    assert process.told == []


def test_all_clients_take_a_new_password(process: Process) -> None:
    process.denials.let_in()
    process.password = "new"
    process.denials.on_error(REFUSED)
    process.denials.renew(process.client)
    assert (process.client.password, process.told) == ("new", [])


def test_a_refusal_long_ago_takes_no_time_from_the_next(process: Process) -> None:
    process.denials.let_in()
    for process.now in (0.0, 1000.0, 1000.0 + GRACE_S / 2):
        process.denials.on_error(REFUSED)
    assert process.told == []
    process.now = 1000.0 + GRACE_S
    process.denials.on_error(REFUSED)
    assert len(process.told) == 1


def test_a_process_that_was_let_in_is_denied_when_its_file_stays_the_same(process: Process) -> None:
    process.denials.let_in()
    for process.now in (0.0, GRACE_S / 2):
        process.denials.on_error(REFUSED)
    assert process.told == []
    process.now = GRACE_S
    process.denials.on_error(REFUSED)
    assert len(process.told) == 1


def test_a_missing_right_is_named_with_its_principal(process: Process) -> None:
    error = process.denials.error(NO_TOPIC, "Write on the topic gangline.steps")
    assert isinstance(error, BusDenied)
    assert "the principal tracker lacks Write on the topic gangline.steps" in str(error)
    assert process.told == [error]


def test_other_errors_are_no_denials(process: Process) -> None:
    error = process.denials.error(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    assert isinstance(error, BusError)
    assert not isinstance(error, BusDenied)
    assert process.told == []


class Pod:
    """A process with a token in a file, which it was given, at the time `now`."""

    def __init__(self, path: Path) -> None:
        self.server, self.path, self.now = ApiServer(), path, 0.0
        self.told: list[BusDenied] = []
        self.file = TokenFile(path)
        self.rotate()
        self.file.give()
        self.denials = Denials({}, None, self.told.append, clock=lambda: self.now, token=self.file)

    def rotate(self, lifetime_s: float = 3600) -> None:
        mount(self.path, self.server.token("tracker", lifetime_s=lifetime_s))

    def refused_for_long(self) -> None:
        for _ in range(3):
            self.denials.on_error(REFUSED)
            self.now += GRACE_S


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path / "token")


def test_a_refused_token_is_named_by_its_claims(pod: Pod) -> None:
    pod.denials.on_error(REFUSED)
    (told,) = pod.told
    for text in (account("tracker"), str(pod.path), AUDIENCE, ISSUER, "valid until"):
        assert text in str(told)
    assert pod.path.read_text() not in str(told)
    assert account("tracker") in str(pod.denials.lacks("Read on the topic gangline.steps"))


def test_a_token_that_was_replaced_is_waited_for(pod: Pod) -> None:
    pod.denials.let_in()
    pod.rotate(7200)
    pod.refused_for_long()
    assert pod.told == []
    pod.file.give()
    pod.refused_for_long()
    assert len(pod.told) == 1


@pytest.mark.parametrize("lifetime_s", [-5, None])
def test_a_file_without_a_good_token_is_waited_for(pod: Pod, lifetime_s: float | None) -> None:
    if lifetime_s is None:
        pod.path.unlink()
    else:
        pod.rotate(lifetime_s)
    pod.refused_for_long()
    assert pod.told == []
