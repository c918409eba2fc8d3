"""Structured logs on stderr, one JSON object a line, with no secret in them.

structlog's events and the standard library's records take the same way: names and ids added,
exceptions formatted (no local variables), everything redacted, rendered, written. Third-party
libraries never log below INFO, because their debug output holds requests with credentials.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Literal

import structlog
from opentelemetry import trace
from structlog.typing import EventDict, Processor, WrappedLogger

from .redaction import redact_mapping

Log = structlog.stdlib.BoundLogger

_OWN = ("gangline", "__main__")
_BROKEN = "a log record could not be formatted and was dropped; correct the call that made it\n"


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Ours on the root logger, so that a second `configure` replaces the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(_worth_writing)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr  # as it is now: tests and supervisors redirect it
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (the base's name)
        """The standard one prints the record's arguments, which may hold a secret."""
        sys.stderr.write(f"{record.pathname}:{record.lineno}: {_BROKEN}")


def _worth_writing(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO or record.name.startswith(_OWN)


def configure(
    service: str,
    instance: str,
    *,
    level: str = "info",
    log_format: Literal["json", "console"] = "json",
    secrets: Iterable[str] = (),
) -> None:
    """Route all logging of this process to stderr; calling it again replaces what was set.

    `secrets` are values that are blacked out wherever they occur, besides known formats.
    """
    known = frozenset(secrets)

    def add_origin(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        event.setdefault("instance", instance)
        return event

    def redact_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return redact_mapping(event, known)

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        add_origin,
        _add_trace,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = structlog.processors.JSONRenderer(ensure_ascii=False)
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            timestamp_key="ts",
            exception_formatter=structlog.dev.plain_traceback,
        )
    handler = _Handler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                redact_event,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    for old in [item for item in root.handlers if isinstance(item, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Log:
    """A logger for one module: `get_logger(__name__)`; events are named, values are keywords."""
    log: Log = structlog.stdlib.get_logger(name)
    return log


def _add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event["trace_id"] = trace.format_trace_id(span.trace_id)
        event["span_id"] = trace.format_span_id(span.span_id)
    return event
