"""Logs: one JSON object a line, from both APIs, and a planted secret nowhere in them."""

from __future__ import annotations

import json
import logging as stdlib_logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog
from pydantic import BaseModel

from gangline_bus import tracing
from gangline_service import logging, telemetry
from gangline_service.redaction import is_secret_key, redact_text, redact_value

KNOWN = "correct-horse-battery"
TOKEN = "hf_" + "a1B2" * 9


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = stdlib_logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    structured = structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    stdlib_logging.captureWarnings(capture=False)
    structlog.configure(**structured)


def _configure(**changed: str) -> None:
    root = stdlib_logging.getLogger()
    # pytest's own handlers format by themselves; only ours is looked at.
    root.handlers[:] = [item for item in root.handlers if "pytest" not in type(item).__module__]
    logging.configure("quota", "box-1", secrets=[KNOWN], **changed)  # type: ignore[arg-type]


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_event_has_origin_time_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    _configure()
    logging.get_logger("gangline_quota.service.app").info("job.admitted", job="j-1", gpus=4)
    (line,) = _lines(capsys)
    stamp = str(line.pop("ts"))
    assert stamp.endswith("Z")
    assert line == {
        "event": "job.admitted",
        "level": "info",
        "logger": "gangline_quota.service.app",
        "service": "quota",
        "instance": "box-1",
        "job": "j-1",
        "gpus": 4,
    }


def test_configure_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    _configure()
    _configure()
    logging.get_logger("gangline_quota").info("once")
    assert len(_lines(capsys)) == 1


def test_standard_library_takes_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    _configure(level="debug")
    stdlib_logging.getLogger("botocore").debug("headers %s", "x")
    stdlib_logging.getLogger("botocore").warning("retry %d of %s", 2, KNOWN, extra={"key": "v"})
    stdlib_logging.getLogger("gangline_bus").debug("polled")
    warned, polled = _lines(capsys)
    assert warned["event"] == "retry 2 of [redacted]"
    assert (warned["service"], warned["key"]) == ("quota", "v")
    assert polled["event"] == "polled"


def test_trace_ids_are_those_of_the_current_span(capsys: pytest.CaptureFixture[str]) -> None:
    _configure()
    providers = telemetry.start("quota", "box-1")
    with providers.tracer("test").start_as_current_span("admit"):
        logging.get_logger("gangline_quota").info("inside")
        _, trace_id, span_id, _ = str(tracing.current()).split("-")
    (line,) = _lines(capsys)
    assert (line["trace_id"], line["span_id"]) == (trace_id, span_id)


@dataclass
class _Login:
    user: str
    api_token: str


class _Spec(BaseModel):
    env: dict[str, str]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_planted_secret_is_nowhere(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    _configure(log_format=log_format)
    log = logging.get_logger("gangline_quota").bind(args=["--lr", f"--key={TOKEN}"])
    planted = f"event with {KNOWN}"
    log.info(planted, env={"HF_TOKEN": "plain-looking", "deep": [{"x": TOKEN}]})
    log.info("objects", a=_Login("me", KNOWN), b=_Spec(env={"A": TOKEN}), c=(TOKEN,), d={KNOWN})
    log.info(
        "bytes", raw=TOKEN.encode(), password="plain-looking", headers=["Bearer plain-looking"]
    )
    log.info(
        "pairs", text="HF_TOKEN=plain-looking --api-token plain-looking 'secret': 'plain-looking'"
    )
    log.warning("positional %s", TOKEN, stack_info=True)
    try:
        local = TOKEN  # a local variable of the frame must not be shown either
        raise ValueError(f"bad token {local}") from KeyError(KNOWN)
    except ValueError:
        log.exception("failed")
    output = capsys.readouterr().err
    for secret in (KNOWN, TOKEN, "plain-looking"):
        assert secret not in output
    assert "ValueError" in output
    assert "--lr" in output


def test_unformattable_record_does_not_print_its_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _configure()
    stdlib_logging.getLogger("other").warning("%d", KNOWN)
    error = capsys.readouterr().err
    assert KNOWN not in error
    assert "test_service_logging.py" in error


def test_newlines_stay_within_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _configure()
    logging.get_logger("gangline_quota").info('a\n{"event": "forged"}')
    assert len(_lines(capsys)) == 1


@pytest.mark.parametrize("key", ["sasl.password", "apiToken", "HF_TOKEN", "aws-secret-key"])
def test_secret_keys(key: str) -> None:
    assert is_secret_key(key)
    assert redact_value({key: {"inner": 1}}) == {key: "[redacted]"}


@pytest.mark.parametrize("text", ["keyboard: qwerty", "tokens=5 a second", "step: 3", "a--b c"])
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


def test_redaction_of_long_text_is_linear() -> None:
    used = time.process_time()
    redact_text("a" * 200_000)
    redact_text("a." * 100_000)
    assert time.process_time() - used < 5  # quadratic takes minutes
