"""The table between exceptions and statuses is total and loses nothing over a real call."""

from __future__ import annotations

import grpc.aio
import pytest

from paceline import errors
from paceline.status import error_from_code, error_from_rpc, rich_status, status_code
from paceline.v1 import verify_service_pb2_grpc
from tests.doubles.info_service import Answer, Context, Request, Response, add_info_service


def _tree_of(kind: type[errors.PacelineError]) -> list[type[errors.PacelineError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _tree_of(child))]


OWN_ERRORS = [kind for kind in _tree_of(errors.PacelineError) if kind.__module__ == errors.__name__]
ROUND_TRIPS = [
    errors.InvalidRequest,
    errors.NotFound,
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.Overloaded,
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.Cancelled,
    errors.Mismatch,
    errors.EngineFailed,
]


def _instance(kind: type[errors.PacelineError]) -> errors.PacelineError:
    if kind is errors.InvalidTree:
        return errors.InvalidTree("cycle", "no tree")
    return kind("what happened")


@pytest.mark.parametrize("kind", OWN_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status(kind: type[errors.PacelineError]) -> None:
    assert status_code(_instance(kind)) is not grpc.StatusCode.OK


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: code.name)
def test_every_status_has_an_error(code: grpc.StatusCode) -> None:
    assert isinstance(error_from_code(code.value[0], "m"), errors.PacelineError)


def test_unknown_code_is_a_fault_of_the_engine() -> None:
    assert type(error_from_code(1234, "m")) is errors.EngineFailed


def _failing(error: errors.PacelineError) -> Answer:
    async def answer(request: Request, context: Context) -> Response:
        await context.abort_with_status(rich_status(error))

    return answer


async def _caught(answer: Answer | None) -> errors.PacelineError:
    server = grpc.aio.server()
    if answer is not None:
        add_info_service(answer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = verify_service_pb2_grpc.VerifyServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetModelInfo(Request(), timeout=10)
    finally:
        await server.stop(None)
    return error_from_rpc(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ROUND_TRIPS, ids=lambda kind: kind.__name__)
async def test_error_survives_a_real_call(kind: type[errors.PacelineError]) -> None:
    sent = kind(
        "what happened", field="a.b", reason="A_CAUSE", retry_after_seconds=1.5, quota="per_second"
    )

    got = await _caught(_failing(sent))

    assert type(got) is kind
    assert got.message == "what happened"
    assert (got.field, got.reason, got.retry_after_seconds) == ("a.b", "A_CAUSE", 1.5)
    assert got.quota == "per_second"


@pytest.mark.asyncio
async def test_what_was_not_said_is_not_made_up() -> None:
    got = await _caught(_failing(errors.NotFound("nothing there")))

    assert (got.field, got.reason, got.retry_after_seconds) == ("", "NOT_FOUND", None)


@pytest.mark.asyncio
async def test_invalid_tree_arrives_as_an_invalid_request_that_names_the_tree() -> None:
    got = await _caught(_failing(errors.InvalidTree("cycle", "node 1 has parent 1")))

    assert type(got) is errors.InvalidRequest
    assert (got.field, got.reason) == ("tree", "INVALID_TREE")


@pytest.mark.asyncio
async def test_status_of_a_foreign_server_is_understood_without_details() -> None:
    got = await _caught(None)

    assert type(got) is errors.InvalidRequest
    assert got.message


@pytest.mark.asyncio
@pytest.mark.parametrize("letter", ["x", "\u65e5", "\U0001f389", "\n", "\udcff"])
async def test_a_long_message_is_cut_and_its_status_never_lost(letter: str) -> None:
    """Each letter is escaped otherwise; longer trailers would be dropped with some probability."""
    sent = errors.Overloaded(
        letter * 100_000, field="a.b", reason="A_CAUSE", retry_after_seconds=1.5, quota="per_second"
    )

    for _ in range(5):
        got = await _caught(_failing(sent))
        assert (got.field, got.reason, got.quota) == ("a.b", "A_CAUSE", "per_second")
        assert got.message.endswith(" ...")
        assert 300 < len(got.message) < 1100 or letter == "\U0001f389"
