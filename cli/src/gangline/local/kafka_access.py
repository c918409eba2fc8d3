"""How the processes of a platform connect to Kafka, and who makes topics, users and rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gangline.errors import CliError, ExitCode
from gangline.local.kafka import EmbeddedKafka
from gangline.local.kafka_folders import admin_file
from gangline.local.kafka_secure import SecureKafka
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusError, TopicSettings
from gangline_bus.topics import TopicNames, create_topics

KAFKA_FILE = "GANGLINE_KAFKA_FILE"
_MAKE_FILES = "`gangline kafka users apply` makes a file for each part"
_ADMINISTRATOR = "up"
"""In a folder of settings, the file with which topics are created, if it is there."""


@dataclass(frozen=True)
class KafkaAccess:
    """`admin`: librdkafka's settings for creating topics. `file_of`: those of a part, if any."""

    bootstrap: str
    admin: Mapping[str, str] = field(default_factory=dict, repr=False)
    file_of: Callable[[str], Path | None] = lambda _: None
    broker: SecureKafka | None = None

    def environment(self, part: str) -> dict[str, str]:
        """The variables of a process of this part."""
        file = self.file_of(part)
        return {} if file is None else {KAFKA_FILE: str(file)}

    def set_up(self, prefix: str) -> None:
        """Make users, rights and topics that are missing, all at once. Raises CliError."""
        if self.broker is None:
            self._make_topics(prefix)
            return
        with ThreadPoolExecutor(2) as pool:
            making = [
                pool.submit(make, self.broker, prefix) for make in (_make_users, _make_rights)
            ]
            self._make_topics(prefix)
            for one in making:
                one.result()

    def _make_topics(self, prefix: str) -> None:
        make_topics({"bootstrap.servers": self.bootstrap, **self.admin}, prefix)


def make_topics(settings: Mapping[str, str], prefix: str) -> list[TopicSettings]:
    """Create all topics that are missing, and return all. Raises CliError."""
    where, names = settings["bootstrap.servers"], TopicNames(prefix)
    bus = KafkaBus(where, client="gangline.up", settings=settings)
    try:
        create_topics(bus, names)
    except BusError as error:
        raise CliError(
            f"topics cannot be created on Kafka at {where}: {error}",
            "is it up? check the credentials of its administrator (docs/guides/secure-kafka.md)",
        ) from None
    finally:
        bus.close()
    return names.settings()


def embedded(data_dir: Path, *, secure: bool) -> tuple[Callable[[], KafkaAccess], EmbeddedKafka]:
    """The embedded broker, and how it is reached once it is prepared."""
    if not secure:
        admin_file(data_dir).unlink(missing_ok=True)
        plain = EmbeddedKafka(data_dir)
        return lambda: KafkaAccess(plain.bootstrap), plain
    broker = SecureKafka(data_dir)
    # The console has no connection: it gets no file.
    return lambda: KafkaAccess(broker.bootstrap, broker.settings, broker.user_file, broker), broker


def own(bootstrap: str, settings: Path | None) -> KafkaAccess:
    """The user's own Kafka. Raises CliError for settings that cannot be used."""
    from gangline.kafka.connecting import read_settings
    from gangline.kafka.rights import read_rights

    if settings is None:
        return KafkaAccess(bootstrap)
    place = settings.resolve()
    if not place.is_dir():
        return KafkaAccess(bootstrap, read_settings(place), lambda _: place)

    def file_of(part: str) -> Path | None:
        return file if (file := place / f"{part}.toml").exists() else None

    def file_of_part(part: str) -> Path | None:
        found = file_of(part)
        if found is None and part in read_rights():
            raise CliError(f"{place} has no {part}.toml", _MAKE_FILES, ExitCode.USAGE)
        return found

    maker = file_of(_ADMINISTRATOR) or file_of("administrator")
    if maker is None:
        raise CliError(
            f"{place} has no up.toml and no administrator.toml",
            _MAKE_FILES,
            ExitCode.USAGE,
        )
    return KafkaAccess(bootstrap, read_settings(maker), file_of_part)


def _make_users(broker: SecureKafka, _: str) -> None:
    from gangline.kafka.connecting import connect_admin
    from gangline.kafka.rights import read_rights
    from gangline.kafka.users import create_users, plan_users, rotate_users

    files, admin = broker.users, connect_admin(broker.settings)
    plan = plan_users(admin, read_rights(), files)
    create_users(admin, plan.create, files)
    rotate_users(admin, plan.unknown, files)


def _make_rights(broker: SecureKafka, prefix: str) -> None:
    from gangline.kafka.acls import apply_acls, found_acls, plan_acls, wanted_acls
    from gangline.kafka.connecting import connect_admin
    from gangline.kafka.rights import read_rights

    admin = connect_admin(broker.settings)
    plan = plan_acls(wanted_acls(read_rights(), prefix), found_acls(admin), prefix)
    apply_acls(admin, plan, prune=True)
