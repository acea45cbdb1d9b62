"""A trace context is what W3C says or nothing; what is wrong is dropped, never an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import TraceState

from paceline.trace_context import (
    MAX_STATE_CHARACTERS,
    NO_TRACE,
    TraceContext,
    context_in,
    log_fields,
    received_context,
    span_context,
)

PARENT = f"00-{'0a' * 16}-{'0b' * 8}-01"


def state_of(value: object) -> str:
    """Return what is kept of a state that comes with a valid parent."""
    return received_context(PARENT, value).tracestate


@pytest.mark.parametrize(
    "value",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "-01",
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-{'0b' * 8}-01",
        f"00-{'0a' * 16}-{'0' * 16}-01",
        b"00",
        None,
    ],
)
def test_what_is_no_trace_context_counts_as_none_and_its_state_neither(value: object) -> None:
    assert received_context(value, "vendor=1") == NO_TRACE


def test_a_trace_context_is_found_and_names_its_trace() -> None:
    found = context_in((("a", "b"), ("traceparent", PARENT), ("tracestate", "vendor=1")))

    assert found == TraceContext(PARENT, "vendor=1")
    assert found.trace_id == "0a" * 16
    assert context_in(None) == NO_TRACE
    assert log_fields("mine", found) == {"request_id": "mine", "trace_id": "0a" * 16}
    assert log_fields("", NO_TRACE) == {}


def test_a_state_in_several_entries_is_one_in_their_order() -> None:
    entries = (("tracestate", "b=2"), ("traceparent", PARENT), ("tracestate", "a=1 , ,c=3"))

    assert context_in(entries).tracestate == "b=2,a=1,c=3"


@pytest.mark.parametrize(
    "value",
    [
        "vendor=opaque",
        "a=1,b=2",
        "0tenant@system=x",
        "a/b*c-d_e=!~ inner space",
        "k" * 256 + "=" + "v" * 255,
        ",".join(f"k{index}=v" for index in range(32)),
    ],
)
def test_a_valid_state_is_handed_on_as_it_is(value: str) -> None:
    assert state_of(value) == value


@pytest.mark.parametrize(
    "value",
    [
        "novalue",
        "empty=",
        "=value",
        "Upper=1",
        "0digit=1",
        "two words=1",
        "a=1,a=2",
        "a=1,,b",
        "a=b=c",
        "a=tab\tinside",
        "a=caf\u00e9",
        "a=line\nbreak",
        "k" * 257 + "=v",
        "a=" + "v" * 257,
        "a=" + "v" * (MAX_STATE_CHARACTERS - 1),
        ",".join(f"k{index}=v" for index in range(33)),
        b"a=1",
        None,
    ],
)
def test_a_state_that_is_not_valid_is_dropped_and_the_trace_stays(value: object) -> None:
    assert received_context(PARENT, value) == TraceContext(PARENT, "")


@given(st.text(st.sampled_from("ab0@=,- \t/*_\u00e9"), max_size=24) | st.text(max_size=600))
def test_what_is_kept_is_bounded_and_means_to_others_what_it_means_here(value: str) -> None:
    """The OpenTelemetry API reads the same members, and a second hop keeps them unchanged."""
    kept = state_of(value)

    assert len(kept) <= MAX_STATE_CHARACTERS
    assert state_of(kept) == kept
    assert TraceState.from_header([kept]).to_header() == kept


def test_our_own_spans_are_contexts_that_others_accept() -> None:
    own = span_context(0xA1, 0xB2, 1, "vendor=1")

    assert received_context(own.traceparent, own.tracestate) == own
