"""The embedded broker with TLS, passwords and rights: each client has a name and its rights.

Three listeners on 127.0.0.1:
- CLIENT: TLS, and a SCRAM user with the rights of deploy/kafka/acls.toml;
- ADMIN and CONTROLLER: TLS with a certificate of the client too. The principals `broker` and
  `admin` may do everything, so no user has to be there before the first start.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.local.artifacts import Progress
from gangline.local.certificates import Authority
from gangline.local.kafka import EmbeddedKafka
from gangline.local.kafka_folders import admin_file, secure_folder, users_folder
from gangline.local.kafka_storage import KafkaPorts
from gangline_service.kafka_file import write_kafka_file

if TYPE_CHECKING:
    from gangline.kafka.users import UserFiles

_LISTENERS = """\
listeners=CLIENT://127.0.0.1:{broker},ADMIN://127.0.0.1:{admin},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENT://127.0.0.1:{broker},ADMIN://127.0.0.1:{admin}
listener.security.protocol.map=CLIENT:SASL_SSL,ADMIN:SSL,CONTROLLER:SSL
inter.broker.listener.name=ADMIN
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.client.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={broker_pem}
ssl.truststore.type=PEM
ssl.truststore.location={ca_pem}
listener.name.admin.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([a-z]+)$/$1/,DEFAULT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:broker;User:admin
allow.everyone.if.no.acl.found=false
"""


class SecureKafka(EmbeddedKafka):
    """`EmbeddedKafka` that asks everybody for a certificate or a password.

    Its files: `secure/ca.pem` and `secure/admin.toml`, the settings of its administrator, and
    `users/NAME.toml` for each part.
    """

    # Each operation that is denied is a line of its log.
    java_properties = ("-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=info",)

    @property
    def folder(self) -> Path:
        """Where its certificates are."""
        return secure_folder(self.data_dir)

    @property
    def settings(self) -> dict[str, str]:
        """As its administrator, by certificate."""
        if self._ports is None:
            raise RuntimeError("the embedded Kafka is not prepared yet: call prepare() or start()")
        certificate = str(self.folder / "admin.pem")
        return {
            "bootstrap.servers": f"127.0.0.1:{self._ports.admin}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / "ca.pem"),
            "ssl.certificate.location": certificate,
            "ssl.key.location": certificate,
        }

    @property
    def users(self) -> UserFiles:
        """The files of the parts; known once prepared."""
        from gangline.kafka.users import UserFiles

        return UserFiles.beside(users_folder(self.data_dir), self.settings)

    def user_file(self, part: str) -> Path | None:
        """The file of a part; None for one without a connection to Kafka."""
        return self.users.path(part) if part in self._parts else None

    @cached_property
    def _parts(self) -> frozenset[str]:
        from gangline.kafka.rights import read_rights

        return frozenset(read_rights())

    def prepare(self, progress: Progress | None = None) -> None:
        """As for a plain broker, and its certificates; those that end soon are replaced."""
        authority = Authority(self.folder)
        for name in ("broker", "admin"):
            authority.keep(name)
        super().prepare(progress)
        write_kafka_file(admin_file(self.data_dir), self.settings)

    def listeners(self, ports: KafkaPorts) -> str:
        """The settings of its three listeners."""
        return _LISTENERS.format(
            broker=ports.broker,
            admin=ports.admin,
            controller=ports.controller,
            broker_pem=self.folder / "broker.pem",
            ca_pem=self.folder / "ca.pem",
        )
