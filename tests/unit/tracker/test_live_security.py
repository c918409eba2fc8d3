"""The live view connects as librdkafka's settings say, or names the one that it does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_bus.kafka_token import TOKEN_URL
from gangline_tracker.views.security import Security, SecurityError, security
from support.builders.certificates import certificate

SCRAM = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "live-view", "sasl.password": "hidden",
}  # fmt: skip

TOKEN = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
    TOKEN_URL: "file:///run/gangline/kafka/token",
}  # fmt: skip


def test_plaintext_is_what_no_setting_means() -> None:
    assert security({}) == security({"security.protocol": "plaintext"}) == Security()
    assert security({"statistics.interval.ms": "1000"}) == Security()


def test_scram_has_a_name_and_a_password_that_is_not_shown() -> None:
    found = security(SCRAM)
    assert (found.mechanism, found.username, found.password) == (
        "SCRAM-SHA-512", "live-view", "hidden",
    )  # fmt: skip
    assert found.tls is None
    assert "hidden" not in repr(found)


def test_a_token_has_a_file() -> None:
    found = security(TOKEN)
    assert found.mechanism == "OAUTHBEARER"
    assert found.token is not None
    assert found.token.path == Path("/run/gangline/kafka/token")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"security.protocol": "carrier-pigeon"}, "security.protocol"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, TOKEN_URL),
        ({**TOKEN, TOKEN_URL: "file:run/token"}, TOKEN_URL),
        ({**SCRAM, "sasl.password": ""}, "sasl.password"),
        ({**SCRAM, "sasl.kerberos.keytab": "/k"}, "sasl.kerberos.keytab"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere"}, "ssl.ca.location"),
    ],
)
def test_what_it_cannot_do_is_named_without_values(settings: dict[str, str], named: str) -> None:
    with pytest.raises(SecurityError, match=named) as error:
        security(settings)
    assert "hidden" not in str(error.value)


def test_tls_trusts_the_named_authority_and_shows_the_own_certificate(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "live-view")
    files = {
        "ssl.ca.location": str(cert), "ssl.certificate.location": str(cert),
        "ssl.key.location": str(key),
    }  # fmt: skip
    found = security({"security.protocol": "SSL", **files})
    assert found.mechanism is None
    assert found.tls is not None
    assert [authority["subject"] for authority in found.tls.get_ca_certs()] == [
        ((("commonName", "live-view"),),)
    ]
    assert found.tls.check_hostname
    loose = {"ssl.endpoint.identification.algorithm": "none"}
    found = security({**SCRAM, "security.protocol": "SASL_SSL", **files, **loose})
    assert found.tls is not None
    assert not found.tls.check_hostname
