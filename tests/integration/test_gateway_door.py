"""Credentials, quotas, encryption and reloading at a running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from tests.doubles.credentials import AUDIENCE, ISSUER, Issuer, bearer, write_keys
from tests.doubles.model_folders import write_model_folder
from tests.doubles.running_gateway import (
    CALL_SECONDS,
    RunningGateway,
    exceeded_quotas,
    reason,
    retry_seconds,
    running_gateway,
    violated_fields,
)
from tests.doubles.scripted_verifier import ScriptedVerifier, serving, steps_of

pytestmark = pytest.mark.asyncio

KEY, SLOW_KEY = "pk-live-4242424242", "pk-live-0000000000"
SERVICE = messages.DESCRIPTOR.services_by_name["GenerationService"]
REQUESTS = {
    "Generate": messages.GenerateRequest(text="a secret prompt"),
    "StreamGenerate": messages.StreamGenerateRequest(
        request=messages.GenerateRequest(text="a secret prompt")
    ),
    "GetModel": messages.GetModelRequest(),
    "ListModels": messages.ListModelsRequest(),
    "Tokenize": messages.TokenizeRequest(text="a secret prompt"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file with a free key and one with quotas."""
    slow: dict[str, object] = {"id": "slow", "tenant": "team-s", "max_priority": "batch"}
    entries: dict[str, dict[str, object]] = {
        KEY: {"id": "free", "tenant": "team-f", "max_priority": "interactive"},
        SLOW_KEY: slow,
    }
    for name, limit in (("requests_per_second", 0.1), ("concurrent_streams", 1)):
        entries[f"{SLOW_KEY}-{name}"] = {**slow, "id": name, name: limit}
    return write_keys(tmp_path / "keys.yaml", entries)


@pytest_asyncio.fixture
async def verifier() -> AsyncIterator[ScriptedVerifier]:
    """A verifier that says three tokens."""
    scripted = ScriptedVerifier(steps_of([5, 6, 7]))
    async with serving(scripted):
        yield scripted


@pytest_asyncio.fixture
async def running(
    folder: Path, keys: Path, verifier: ScriptedVerifier
) -> AsyncIterator[RunningGateway]:
    """A gateway that knows the keys."""
    async with running_gateway(
        folder, verifier.address, api_keys=keys, reload_seconds=0.02
    ) as gateway:
        yield gateway


async def _call(running: RunningGateway, rpc: str, credential: str | None) -> grpc.StatusCode:
    """Return how one call of a method ends."""
    metadata = None if credential is None else bearer(credential)
    method = getattr(running.stub, rpc)
    try:
        if rpc == "StreamGenerate":
            async for _ in method(REQUESTS[rpc], timeout=CALL_SECONDS, metadata=metadata):
                pass
        else:
            await method(REQUESTS[rpc], timeout=CALL_SECONDS, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def _failure(
    running: RunningGateway, credential: str, **fields: object
) -> grpc.aio.AioRpcError:
    request = messages.GenerateRequest(text="a", **fields)  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.stub.Generate(request, timeout=CALL_SECONDS, metadata=bearer(credential))
    return refused.value


def _spoil(keys: Path) -> None:
    keys.write_text(f"keys: [{{id: a, key: {KEY}}}]")


async def _eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(CALL_SECONDS):
        while not condition():  # noqa: ASYNC110 the condition is on files and logs
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("rpc", [method.name for method in SERVICE.methods])
async def test_every_method_needs_a_credential(running: RunningGateway, rpc: str) -> None:
    """A method that is added to the service is covered, or fails here."""
    assert await _call(running, rpc, KEY) is grpc.StatusCode.OK
    assert await _call(running, rpc, None) is grpc.StatusCode.UNAUTHENTICATED
    assert await _call(running, rpc, KEY + "x") is grpc.StatusCode.UNAUTHENTICATED


async def test_a_refusal_says_why_and_under_which_id(running: RunningGateway) -> None:
    error = await _failure(running, "wrong")

    assert reason(error) == "KEY_UNKNOWN"
    trailers = dict(error.trailing_metadata() or ())
    assert len(str(trailers["paceline-request-id"])) == 32


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", "Bearer"),),
        (("authorization", f"Bearer  {KEY}"),),
        (("authorization", KEY),),
        (*bearer(KEY), *bearer(KEY)),
        (*bearer("wrong"), *bearer(KEY)),
        (("authorization-bin", f"Bearer {KEY}".encode()),),
        (("x-authorization", f"Bearer {KEY}"),),
        (("paceline-tenant", "team-f"), ("x-api-key", KEY)),
    ],
)
async def test_attempts_to_get_by_are_refused(
    running: RunningGateway, verifier: ScriptedVerifier, metadata: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.stub.Generate(
            messages.GenerateRequest(text="a"), timeout=CALL_SECONDS, metadata=metadata
        )

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert verifier.starts == []


@pytest.mark.parametrize(
    "path", ["//paceline.v1.GenerationService/Generate", "/paceline.v1.GenerationService/generate"]
)
async def test_spelling_a_method_otherwise_reaches_nothing(
    running: RunningGateway, path: str
) -> None:
    async with grpc.aio.insecure_channel(running.gateway.address) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(b"", timeout=CALL_SECONDS)

    codes = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED}
    assert refused.value.code() in codes


async def test_health_and_reflection_answer_everybody(running: RunningGateway) -> None:
    async with grpc.aio.insecure_channel(running.gateway.address) as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=CALL_SECONDS
        )
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            timeout=CALL_SECONDS
        )
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        reflected = await call.read()
        call.cancel()

    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert SERVICE.full_name in str(reflected)


async def test_tenant_and_priority_reach_the_verifier(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    """B096: forwarded, not only parsed."""
    for credential, wanted in ((KEY, types_pb2.PRIORITY_CLASS_INTERACTIVE), (SLOW_KEY, 0)):
        request = messages.GenerateRequest(text="a", priority=wanted)  # type: ignore[arg-type]
        await running.stub.Generate(request, timeout=CALL_SECONDS, metadata=bearer(credential))

    seen = [(start.tenant, start.priority) for start in verifier.starts]
    assert seen == [
        ("team-f", types_pb2.PRIORITY_CLASS_INTERACTIVE),
        ("team-s", types_pb2.PRIORITY_CLASS_BATCH),
    ]


async def test_a_priority_above_the_ceiling_is_denied(running: RunningGateway) -> None:
    error = await _failure(running, SLOW_KEY, priority=types_pb2.PRIORITY_CLASS_STANDARD)

    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert violated_fields(error) == ["priority"]
    assert reason(error) == "PRIORITY_NOT_ALLOWED"


async def test_a_used_up_rate_says_which_and_when_to_retry(running: RunningGateway) -> None:
    credential = f"{SLOW_KEY}-requests_per_second"
    assert await _call(running, "ListModels", credential) is grpc.StatusCode.OK

    error = await _failure(running, credential)

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert exceeded_quotas(error) == ["requests_per_second"]
    assert 5 < (retry_seconds(error) or 0) <= 10
    trailers = dict(error.trailing_metadata() or ())
    assert 5000 < int(trailers["grpc-retry-pushback-ms"]) <= 10_000


async def test_a_stream_that_ends_or_is_cancelled_gives_its_place_back(
    running: RunningGateway, verifier: ScriptedVerifier
) -> None:
    credential = f"{SLOW_KEY}-concurrent_streams"
    verifier.script = lambda start: ()
    wrapped = messages.StreamGenerateRequest(request=messages.GenerateRequest(text="a"))
    call = running.stub.StreamGenerate(wrapped, metadata=bearer(credential), timeout=CALL_SECONDS)
    await call.read()

    refused = await _failure(running, credential)
    call.cancel()
    verifier.script = steps_of([5, 6, 7])
    await _eventually(lambda: running.gateway.generator.admission.num_running == 0)
    codes = [await _call(running, "StreamGenerate", credential) for _ in range(3)]

    assert exceeded_quotas(refused) == ["concurrent_streams"]
    assert codes == [grpc.StatusCode.OK] * 3


async def test_keys_are_read_again_when_their_file_changes(
    running: RunningGateway, keys: Path
) -> None:
    with capture_logs() as logs:
        write_keys(keys, {"brand-new-key": {"id": "new", "tenant": "t"}})
        await _eventually(lambda: "reloaded" in [line["event"] for line in logs])

    assert await _call(running, "Generate", KEY) is grpc.StatusCode.UNAUTHENTICATED
    assert await _call(running, "Generate", "brand-new-key") is grpc.StatusCode.OK


async def test_a_bad_key_file_is_logged_once_and_changes_nothing(
    running: RunningGateway, keys: Path
) -> None:
    with capture_logs() as logs:
        _spoil(keys)
        await _eventually(lambda: "reload_refused" in [line["event"] for line in logs])
        await asyncio.sleep(0.2)

    assert await _call(running, "Generate", KEY) is grpc.StatusCode.OK
    assert [line["event"] for line in logs].count("reload_refused") == 1
    assert KEY not in str(logs)


async def test_tokens_of_an_issuer_are_admitted(
    folder: Path, tmp_path: Path, verifier: ScriptedVerifier
) -> None:
    issuer = Issuer()
    jwks = issuer.write_jwks(tmp_path / "jwks.json")
    async with running_gateway(
        folder, verifier.address, jwks=jwks, jwt_audience=AUDIENCE, jwt_issuer=ISSUER
    ) as running:
        assert await _call(running, "Generate", issuer.token()) is grpc.StatusCode.OK
        forged = Issuer().token()
        assert await _call(running, "Generate", forged) is grpc.StatusCode.UNAUTHENTICATED
        empty = issuer.token(paceline=None)
        assert await _call(running, "Generate", empty) is grpc.StatusCode.PERMISSION_DENIED

    assert [start.tenant for start in verifier.starts] == ["team-j"]


async def test_log_lines_name_the_caller_and_hold_no_credential_and_no_prompt(
    running: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as logs:
        for rpc in REQUESTS:
            for credential in (KEY, "not-a-valid-key", None):
                await _call(running, rpc, credential)

    text = str(logs) + caplog.text
    finished = [line for line in logs if line["event"] == "request_finished"]
    refused = [line for line in logs if line["event"] == "request_refused"]
    assert {(line["caller"], line["tenant"]) for line in finished} == {("free", "team-f")}
    assert {line["reason"] for line in refused} == {"KEY_UNKNOWN", "CREDENTIAL_MISSING"}
    assert len(refused) == 2 * len(REQUESTS)
    for secret in (KEY, "not-a-valid-key", "secret prompt"):
        assert secret not in text
