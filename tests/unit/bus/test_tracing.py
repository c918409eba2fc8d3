"""Trace context as it travels in headers."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from gangline_bus import tracing


def test_nothing_is_traced_without_an_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    assert not tracing.traced()
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert tracing.traced()


def test_context_is_carried_as_one_string() -> None:
    tracer = TracerProvider().get_tracer("test")
    assert tracing.current() is None
    with tracer.start_as_current_span("producer") as producer:
        carried = tracing.current()
    with tracer.start_as_current_span("consumer", context=tracing.context_of(carried)) as consumer:
        assert consumer.get_span_context().trace_id == producer.get_span_context().trace_id
        assert consumer.get_span_context().span_id != producer.get_span_context().span_id


@pytest.mark.parametrize("text", [None, "", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_wrong_context_starts_a_new_trace(text: str | None) -> None:
    assert not trace.get_current_span(tracing.context_of(text)).get_span_context().is_valid
