"""Refused credentials and missing rights: told once, with names, and a new password is taken."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from gangline_bus.kafka_denials import GRACE_S, Denials
from gangline_bus.ports import BusDenied, BusError

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
