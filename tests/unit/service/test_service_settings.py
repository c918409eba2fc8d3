"""Settings: precedence, the file's sections, and messages that never show a value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import SecretStr

from gangline_service.settings import ServiceSettings

PASSWORD = "correct-horse-battery"


class _Settings(ServiceSettings):
    section: ClassVar[str] = "scheduler"
    slots: int = 2
    signing_key: SecretStr = SecretStr("")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("GANGLINE_"):
            monkeypatch.delenv(name)


def _write(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(text)
    monkeypatch.setenv("GANGLINE_CONFIG", str(path))


def _refusal(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        _Settings.load()
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_defaults_are_local() -> None:
    settings = _Settings.load()
    assert settings.bootstrap_servers == "127.0.0.1:9092"
    assert settings.health_host == "127.0.0.1"
    assert settings.otlp_endpoint is None
    assert settings.instance_id


def test_argument_wins_over_environment_over_section_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        topic_prefix = "file"
        log_level = "error"
        tick_interval_s = 7
        [scheduler]
        log_level = "warning"
        slots = 4
        [quota]
        anything = 1
    """
    _write(tmp_path / "gangline.toml", text, monkeypatch)
    monkeypatch.setenv("GANGLINE_TOPIC_PREFIX", "environment")
    monkeypatch.setenv("GANGLINE_SLOTS", "5")
    settings = _Settings.load(slots=6)
    assert settings.slots == 6
    assert settings.topic_prefix == "environment"
    assert settings.log_level == "warning"
    assert settings.tick_interval_s == 7.0


def test_kafka_settings_of_file_and_environment_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[kafka]\n"retry.backoff.ms" = 10\n"enable.idempotence" = true\n"client.id" = "file"\n'
    _write(tmp_path / "gangline.toml", text, monkeypatch)
    monkeypatch.setenv("GANGLINE_KAFKA", '{"client.id": "environment"}')
    assert _Settings.load().kafka == {
        "retry.backoff.ms": "10",
        "enable.idempotence": "true",
        "client.id": "environment",
    }


def test_no_secret_in_repr_or_dump() -> None:
    settings = _Settings.load(
        kafka={"sasl.password": PASSWORD, "sasl.username": "svc"}, signing_key="sign-with-me-42"
    )
    assert settings.kafka["sasl.password"] == PASSWORD
    assert settings.secret_values() == {PASSWORD, "sign-with-me-42"}
    for shown in (repr(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert PASSWORD not in shown
        assert "sign-with-me-42" not in shown


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GANGLINE_HEALTH_PORT", f"99-{PASSWORD}"),
        ("GANGLINE_HEALTH_PORT", "70000"),
        ("GANGLINE_BOOTSTRAP_SERVERS", PASSWORD),
        ("GANGLINE_TOPIC_PREFIX", f"{PASSWORD} with spaces"),
        ("GANGLINE_KAFKA", f"{{not json {PASSWORD}"),
        ("GANGLINE_KAFKA", f'["{PASSWORD}"]'),
        ("GANGLINE_LOG_FORMAT", PASSWORD),
        ("GANGLINE_OTLP_ENDPOINT", f"http://me:{PASSWORD}@collector:4318"),
        ("GANGLINE_TICK_INTERVAL_S", "0"),
    ],
)
def test_wrong_value_names_variable_and_field_without_the_value(
    variable: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    message = _refusal(capsys)
    assert variable in message
    assert variable.removeprefix("GANGLINE_").lower() in message
    assert PASSWORD not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topik_prefix = 'x'", "unknown keys: topik_prefix"),
        ("[scheduler]\nslotz = 1", "unknown keys: scheduler.slotz"),
        (f"slots = {PASSWORD}", "is not TOML"),
        ("scheduler = 1", "must be a table"),
    ],
)
def test_wrong_file_is_refused(
    text: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _write(tmp_path / "gangline.toml", text, monkeypatch)
    message = _refusal(capsys)
    assert "GANGLINE_CONFIG" in message
    assert expected in message
    assert PASSWORD not in message


def test_missing_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GANGLINE_CONFIG", str(tmp_path / "absent.toml"))
    assert "GANGLINE_CONFIG" in _refusal(capsys)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        _Settings.load().health_port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "text", [f'"sasl.password" = "{PASSWORD}"', f'[sasl]\npassword = "{PASSWORD}"']
)
def test_a_file_of_kafka_settings_is_read_below_the_others(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tracker.toml"
    file.write_text(f'"client.id" = "file"\n{text}\n')
    monkeypatch.setenv("GANGLINE_KAFKA_FILE", str(file))
    monkeypatch.setenv("GANGLINE_KAFKA", '{"client.id": "environment"}')
    settings = _Settings.load()
    assert settings.kafka == {"client.id": "environment", "sasl.password": PASSWORD}
    assert settings.secret_values() == {PASSWORD}
    file.write_text('"sasl.password" = "next"')
    assert settings.kafka_password() == "next"


@pytest.mark.parametrize("text", [f'"sasl.password" = {PASSWORD}', f'a = ["{PASSWORD}"]', None])
def test_a_wrong_file_of_kafka_settings_is_named_without_its_values(
    text: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "tracker.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("GANGLINE_KAFKA_FILE", str(file))
    message = _refusal(capsys)
    assert "GANGLINE_KAFKA_FILE" in message
    assert str(file) in message
    assert PASSWORD not in message


def test_the_place_of_a_token_is_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    name = "sasl.oauthbearer.token.endpoint.url"
    own = {"sasl.mechanism": "OAUTHBEARER", name: "file:///run/gangline/kafka/token"}
    settings = _Settings.load(kafka=own)
    assert settings.secret_values() == frozenset()
    assert settings.model_dump()["kafka"] == own
    with pytest.raises(SystemExit):
        _Settings.load(kafka={**own, name: "file:token"})
    message = capsys.readouterr().err
    assert "GANGLINE_KAFKA" in message
    assert "file:///PATH" in message
