"""A new certificate for a secure embedded broker that runs.

1. Write the new file in place of the old.
2. Set the listener's key store again, to the same path: the broker then reads it again.
3. Look at the listener: it must show the new certificate.
"""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gangline.errors import CliError
from gangline.kafka.connecting import ADMIN_TIMEOUT_S, admin_errors, connect_admin, read_settings
from gangline.local.certificates import Authority
from gangline.local.kafka_folders import admin_file, secure_folder
from gangline.local.kafka_storage import NODE_ID, kept_ports

_LISTENERS = ("client", "admin")
_SEEN_S = 30.0


def renew_broker(kafka_dir: Path) -> None:
    """Raises CliError when the broker does not take the certificate; the old one is lost then."""
    admin = connect_admin(read_settings(admin_file(kafka_dir)))
    authority = Authority(secure_folder(kafka_dir))
    path = authority.issue("broker")
    entries = [
        ConfigEntry(
            f"listener.name.{name}.ssl.keystore.location",
            str(path),
            incremental_operation=AlterConfigOpType.SET,
        )
        for name in _LISTENERS
    ]
    broker = ConfigResource(ResourceType.BROKER, str(NODE_ID), incremental_configs=entries)
    with admin_errors("the certificate cannot be renewed"):
        for future in admin.incremental_alter_configs([broker]).values():
            future.result(ADMIN_TIMEOUT_S)
    _wait_for(x509.load_pem_x509_certificate(path.read_bytes()), kafka_dir, authority.path)


def _wait_for(certificate: x509.Certificate, kafka_dir: Path, authority: Path) -> None:
    ports = kept_ports(kafka_dir)
    wanted = certificate.public_bytes(Encoding.DER)
    deadline = time.monotonic() + _SEEN_S
    while any(shown(port, authority) != wanted for port in (ports.broker, ports.admin)):
        if time.monotonic() > deadline:
            raise CliError(
                "the broker still shows its old certificate", "restart `gangline up --secure`"
            )
        time.sleep(0.1)


def shown(port: int, authority: Path) -> bytes | None:
    """The certificate (DER) that a listener of this machine shows."""
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(binary_form=True)
