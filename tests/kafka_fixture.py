"""A real Kafka broker for the tests of one session, started when a test first asks for it.

Use it as a pytest plugin. Tests share the broker, so each takes topic names and group ids of its
own (for example by a prefix from uuid4).
"""

from collections.abc import Iterator

import pytest

from gangline.local.kafka import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Return the session's broker; it is stopped at the end of the session."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka: EmbeddedKafka) -> str:
    """Return HOST:PORT of the session's broker."""
    return kafka.bootstrap
