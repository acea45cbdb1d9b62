"""A call is named by its message, else by its metadata, else by the gateway."""

from __future__ import annotations

import pytest

from gateway.call_identity import identity_trailers, request_id_of
from paceline.trace_context import NO_TRACE, TraceContext

PROXY = (("user-agent", "x"), ("x-request-id", "from-a-proxy"))


def test_the_message_goes_before_the_metadata() -> None:
    assert request_id_of("mine", PROXY) == "mine"
    assert request_id_of("", PROXY) == "from-a-proxy"


@pytest.mark.parametrize("unfit", ["", "two words", "x" * 129, "caf\u00e9", b"bytes"])
def test_an_unfit_id_is_replaced_by_a_new_one_each_time(unfit: str | bytes) -> None:
    metadata = (("x-request-id", unfit),)
    made = {request_id_of("", metadata) for _ in range(3)}

    assert len(made) == 3
    assert all(len(request_id) == 32 and request_id.isalnum() for request_id in made)
    assert len(request_id_of("", None)) == 32


def test_trailers_tell_the_trace_only_where_there_is_one() -> None:
    assert identity_trailers("mine", NO_TRACE) == (("paceline-request-id", "mine"),)
    trailers = identity_trailers("mine", TraceContext("00-a-b-01", "a=1"))
    assert trailers == (("paceline-request-id", "mine"), ("traceparent", "00-a-b-01"))
