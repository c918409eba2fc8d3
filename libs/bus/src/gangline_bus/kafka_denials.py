"""Kafka's refusals of a process: its credentials, or a right that it lacks.

Both look like a time-out otherwise. librdkafka tries refused credentials again for ever, and
reports them to `error_cb` alone.

- A right that is missing is an error of the call, and it is reported to `on_denied`.
- Credentials that are refused are first read again: their file may have a new password, which all
  clients then take. Refused again, they are an error at once before the first answer of Kafka;
  later after `GRACE_S`, since file and Kafka change one after the other.
- A client reads its token again by itself. A refusal counts only if its file has no other one, and
  no token that cannot be used: such a file is reported, and waited for.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from gangline_bus.kafka_client import translate
from gangline_bus.kafka_token import TokenFile, TokenUnusable
from gangline_bus.ports import BusDenied, BusError

log = structlog.get_logger(__name__)

GRACE_S = 10.0
_OVER_S = 60.0
"""After so long without a refusal the next one is another's beginning."""
_RESOURCES: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster",
}
"""The resource of each error, where the caller does not know it better."""
DENIED_CODES = frozenset(_RESOURCES)
_REFUSED = "SASL authentication error"
_LOST = "Local:"
"""In the text of a connection that was lost while it was being opened: nothing was refused."""
_UNKNOWN_BROKER = "certificate verify failed"


class Client(Protocol):
    """A client of librdkafka; it takes another password for its next connections."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """As librdkafka's function of that name."""


class WeakConsumer(Consumer):
    """A consumer that can be referred to weakly."""


class WeakProducer(Producer):
    """A producer that can be referred to weakly."""


class Denials:
    """The refusals of one process. Every method may be called from any thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        password: Callable[[], str] | None = None,
        on_denied: Callable[[BusDenied], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        token: TokenFile | None = None,
    ) -> None:
        """`password` reads the present one again, if there is a file of it."""
        self._user = str(settings.get("sasl.username", "")) or "of this client"
        self._token = token
        self._password = str(settings.get("sasl.password", ""))
        self._again = password
        self._on_denied = on_denied
        self._clock = clock
        self._changes = 0
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._let_in = False
        self._since: float | None = None
        self._last = 0.0
        self._denied: BusDenied | None = None

    @property
    def principal(self) -> str:
        """As whom the process connects."""
        given = None if self._token is None else self._token.given
        return self._user if given is None else given.principal

    def renew(self, client: Client) -> None:
        """Give the client the present password, if it has another: its thread calls this often.

        Never in a callback of a client: that aborts the process.
        """
        if self._changes and self._taken.get(client) != self._changes:
            self._taken[client] = self._changes
            client.set_sasl_credentials(self.principal, self._password)

    def let_in(self) -> None:
        """Kafka has answered."""
        self._let_in = True

    def check(self) -> None:
        """Raise BusDenied if the credentials were refused for good."""
        if self._denied is not None:
            raise self._denied

    def error(self, error: KafkaError | KafkaException, right: str = "") -> BusError:
        """The error of a call that needs `right`, as in "Write on the topic gangline.steps"."""
        inner = error.args[0] if isinstance(error, KafkaException) else error
        if inner.code() not in _RESOURCES:
            return translate(error)
        denied = self.lacks(right or f"a right on {_RESOURCES[inner.code()]}", inner.str())
        self._on_denied(denied)
        return denied

    def lacks(self, right: str, text: str = "") -> BusDenied:
        """The error for a missing right; it is reported nowhere."""
        said = f" ({text})" if text else ""
        return BusDenied(
            f"the principal {self.principal} lacks {right}{said}; deploy/kafka/acls.toml has the "
            "rights of each part, and `gangline kafka acls plan` shows what is missing"
        )

    def on_error(self, error: KafkaError) -> None:
        """An error of a connection, from `error_cb`; others than refusals are passed over."""
        text = error.str()
        if error.code() == KafkaError._AUTHENTICATION:
            if _REFUSED in text and _LOST not in text:
                self._refused(self._refusal(), text)
        elif _UNKNOWN_BROKER in text:
            self._refused("the broker's certificate is not known (ssl.ca.location)", text)

    def _refused(self, reason: str, text: str) -> None:
        with self._lock:
            if self._token is not None:
                if self._token_may_change(self._token):
                    return
            elif self._take_new_password():
                return
            now = self._clock()
            if self._since is None or now - self._last > _OVER_S:
                self._since = now
            self._last = now
            if self._denied is not None or (self._let_in and now - self._since < GRACE_S):
                return
            self._denied = BusDenied(f"{reason}: {text}")
        self._on_denied(self._denied)

    def _refusal(self) -> str:
        if self._token is None:
            return f"Kafka refuses the password of the principal {self.principal}"
        return (
            f"Kafka refuses the token of the principal {self.principal} in {self._token.path} "
            f"({self._token.given}); its log has the cause: it must expect this audience and "
            "issuer, and know the issuer's keys (docs/guides/secure-kafka.md)"
        )

    def _token_may_change(self, file: TokenFile) -> bool:
        """Whether the clients do not have the token of the file, or it has none."""
        try:
            token = file.read()
        except TokenUnusable as error:
            file.report(error)
            return True
        return token != file.given

    def _take_new_password(self) -> bool:
        try:
            password = self._again() if self._again is not None else self._password
        except Exception as error:  # noqa: BLE001 - whatever it is, the old one stays
            log.warning("the password cannot be read again", error=str(error))
            return False
        if not password or password == self._password:
            return False
        self._password, self._since, self._let_in = password, None, True
        log.info("kafka.new_password", principal=self.principal)
        self._changes += 1
        return True
