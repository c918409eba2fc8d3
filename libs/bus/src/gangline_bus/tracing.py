"""W3C trace context between events. The contrib instrumentation breaks transactions; this is all.

Without a configured SDK the spans are no-ops and nothing is propagated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACER = trace.get_tracer("gangline_bus")


@contextmanager
def handling(name: str, traceparent: str | None) -> Iterator[str | None]:
    """A span that continues `traceparent`; yields what to hand on to the events that follow."""
    parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
    with _TRACER.start_as_current_span(name, context=parent):
        yield current() or traceparent


def current() -> str | None:
    """The traceparent of the running span, None when nothing is traced."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")
