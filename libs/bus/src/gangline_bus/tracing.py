"""W3C trace context, between events and from HTTP. The contrib one breaks transactions.

Without a configured SDK (`traced`) the spans are no-ops, and what came is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACER = trace.get_tracer("gangline_bus")


def traced() -> bool:
    """Whether an SDK is configured: without one no span is exported, so none is made."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def handling(name: str, traceparent: str | None) -> Iterator[str | None]:
    """A span that continues `traceparent`; yields what to hand on to the events that follow."""
    with _TRACER.start_as_current_span(name, context=context_of(traceparent)):
        yield current() or traceparent


def current() -> str | None:
    """The traceparent of the running span, None when nothing is traced."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def context_of(traceparent: str | None) -> Context:
    """The context to start a span in that continues `traceparent`.

    None or malformed text gives a context without a parent: a sender's mistake in tracing must
    not cost its message. Use: `tracer.start_as_current_span(name, context=context_of(text))`.
    """
    carrier = {} if traceparent is None else {"traceparent": traceparent}
    return _PROPAGATOR.extract(carrier, context=Context())
