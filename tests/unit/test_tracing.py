"""Tracing is off unless asked for; a client joins the trace of a traced application."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline.client_tracing import traced_call
from paceline.errors import ConfigurationError, Unavailable
from paceline.trace_context import context_in
from paceline.tracing import open_tracer
from tests.doubles.trace_collector import wait_for_exports


@pytest.fixture(autouse=True)
def _no_exports_left() -> Iterator[None]:
    yield
    wait_for_exports()


def test_services_and_client_never_import_opentelemetry_when_tracing_is_off() -> None:
    code = (
        "import sys\n"
        "import draft_service.server, gateway.server, paceline, verify_service.server\n"
        "from paceline.client_tracing import traced_call\n"
        "from paceline.tracing import open_tracer\n"
        "assert open_tracer('gateway', '', 1.0) is None\n"
        "with traced_call('Generate', ()) as metadata:\n"
        "    assert metadata == ()\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )

    outcome = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)  # noqa: S603 own code

    assert (outcome.returncode, outcome.stderr) == (0, b"")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "paceline.otlp_tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(ConfigurationError, match=r"otlp_endpoint .*pip install .*telemetry"):
        open_tracer("gateway", "http://127.0.0.1:4317", 1.0)


@pytest.mark.parametrize("service", ["draft_service", "verify_service"])
def test_a_service_complains_before_it_loads_a_model(service: str) -> None:
    """Neither the model nor the library that would load it is looked for."""
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['onnxruntime'] = None\n"
        f"runpy.run_module('{service}', run_name='__main__')\n"
    )
    model = "--onnx-model" if service == "draft_service" else "--model"
    flags = ("--drafter", "onnx") if service == "draft_service" else ()
    command = (sys.executable, "-c", code, model, "nowhere", "--otlp-endpoint", "nope", *flags)

    outcome = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 own code

    assert outcome.returncode == 2
    assert outcome.stderr.startswith(f"{service}: error: setting otlp_endpoint: 'nope' is no")


@pytest.mark.parametrize("endpoint", ["collector:4317", "http://", "grpc://a:1", "http://a b:1"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="setting otlp_endpoint"):
        open_tracer("gateway", endpoint, 1.0)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the spans of an application with the SDK go."""
    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return kept


def test_a_call_of_a_traced_application_carries_its_trace(exporter: InMemorySpanExporter) -> None:
    with (
        trace.get_tracer("application").start_as_current_span("work") as work,
        traced_call("Generate", (("authorization", "x"),)) as metadata,
    ):
        assert trace.get_current_span() is work

    call = next(span for span in exporter.get_finished_spans() if span.name.endswith("/Generate"))
    assert call.parent == work.get_span_context()
    assert metadata[0] == ("authorization", "x")
    sent = context_in(metadata).traceparent
    assert sent.startswith(f"00-{call.context.trace_id:032x}-{call.context.span_id:016x}-0")
    assert int(sent[-2:]) & trace.TraceFlags.SAMPLED


def test_a_call_hands_on_the_state_of_the_application_s_trace(
    exporter: InMemorySpanExporter,
) -> None:
    del exporter
    caller = trace.SpanContext(
        trace_id=0xA1,
        span_id=0xB2,
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        trace_state=trace.TraceState([("vendor", "opaque"), ("tenant@system", "1 2")]),
    )
    with (
        trace.use_span(trace.NonRecordingSpan(caller)),
        traced_call("Generate", ()) as metadata,
    ):
        sent = context_in(metadata)

    assert sent.trace_id == f"{0xA1:032x}"
    assert sent.tracestate == "vendor=opaque,tenant@system=1 2"


def test_a_failed_call_ends_its_span_with_an_error(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(Unavailable), traced_call("Generate", ()):
        raise Unavailable("gone")

    span = exporter.get_finished_spans()[0]
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "Unavailable"
