"""Traces and metrics by OpenTelemetry: Prometheus always, OTLP when an endpoint is set.

Without an endpoint spans have ids (logs and events carry them) but record nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider, ObservableGauge
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

_MOST_SERIES = 100_000
"""Sets of labels that a gauge has at once; the SDK sums up all others as one."""
_NO_VALUES = "gangline.forgets"
"""A gauge that is on no page, as its callback gives no value."""


@dataclass(frozen=True)
class Telemetry:
    """One process's providers; `start` makes it, `shutdown` flushes and ends it."""

    registry: CollectorRegistry
    meters: MeterProvider
    tracers: TracerProvider
    _scrape: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def meter(self, name: str) -> metrics.Meter:
        """Makes instruments; `gangline.inputs` is scraped as `gangline_inputs_total`."""
        return self.meters.get_meter(name)

    def tracer(self, name: str) -> trace.Tracer:
        """Makes spans; they are exported only when an OTLP endpoint is set."""
        return self.tracers.get_tracer(name)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in the Prometheus format that `accept` asks for, and its content type.

        In the plain format if `accept` cannot be read.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is not a number
            encode, content_type = choose_encoder("")
        with self._scrape:  # the reader hands over through one queue: a scrape at a time
            return encode(self.registry), content_type

    def install(self) -> None:
        """Make these the process-wide providers, for libraries that ask OpenTelemetry's API."""
        metrics.set_meter_provider(self.meters)
        trace.set_tracer_provider(self.tracers)

    def shutdown(self, timeout_s: float) -> bool:
        """Export what is pending; False when that took longer than `timeout_s` seconds."""
        worker = threading.Thread(target=self._shutdown, name="telemetry-shutdown", daemon=True)
        worker.start()
        worker.join(timeout_s)
        return not worker.is_alive()

    def _shutdown(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


def start(service: str, instance: str, otlp_endpoint: str | None = None) -> Telemetry:
    """Providers of their own, no global state touched; `Telemetry.install` does that.

    `otlp_endpoint` is the base URL, `/v1/traces` and `/v1/metrics` are put behind it; headers
    come from OTEL_EXPORTER_OTLP_HEADERS. A collector that is away costs only its data.
    """
    resource = Resource.create(
        {"service.namespace": "gangline", "service.name": service, "service.instance.id": instance}
    )
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    readers: list[MetricReader] = [
        PrometheusMetricReader(registry=registry, scope_info_enabled=False)
    ]
    tracers = TracerProvider(
        sampler=ParentBased(ALWAYS_ON if otlp_endpoint else ALWAYS_OFF),
        resource=resource,
        shutdown_on_exit=False,
    )
    if otlp_endpoint:
        readers.append(_export(tracers, otlp_endpoint))
    views = [View(instrument_type=ObservableGauge, aggregation_cardinality_limit=_MOST_SERIES)]
    meters = MeterProvider(
        metric_readers=readers, resource=resource, shutdown_on_exit=False, views=views
    )
    _forget_old_series(meters)
    return Telemetry(registry=registry, meters=meters, tracers=tracers)


def _forget_old_series(meters: MeterProvider) -> None:
    """Let gauges keep the sets of labels that their callbacks give now.

    The SDK keeps each one for ever: gauges with a series for each job would have no room for later
    jobs. Callbacks run in the order of their instruments, and one collection at a time.
    """
    consumer = meters._measurement_consumer  # noqa: SLF001 - the SDK has no public way

    def forget(_: CallbackOptions) -> Iterable[Observation]:
        for storage in consumer._reader_storages.values():  # noqa: SLF001
            found = [*storage._instrument_view_instrument_matches.items()]  # noqa: SLF001
            for instrument, matches in found:
                if isinstance(instrument, ObservableGauge):
                    for match in matches:
                        match._attributes_aggregation.clear()  # noqa: SLF001
        return ()

    meters.get_meter(__name__).create_observable_gauge(_NO_VALUES, [forget])


def _export(tracers: TracerProvider, endpoint: str) -> MetricReader:
    # Imported here: protobuf and the HTTP client cost memory in every process that has no use.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=5))
    )
    return PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=5)
    )
