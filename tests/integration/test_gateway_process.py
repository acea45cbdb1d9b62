"""The gateway as a process: errors at start, readiness, drain, and what it does not import."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.v1 import generation_service_pb2 as messages
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.doubles.model_folders import write_model_folder
from tests.doubles.scripted_verifier import ScriptedVerifier, model_steps, serving

ROOT = Path(__file__).parents[2]
START_SECONDS = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


def command(*arguments: str) -> list[str]:
    """Return the command line of a gateway."""
    return [sys.executable, "-m", "gateway", "--log-format", "json", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a gateway that must end by itself."""
    return subprocess.run(  # noqa: S603 - our own program
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )


class GatewayProcess:
    """A running gateway and its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, object]] = []

    async def event(self, name: str) -> dict[str, object]:
        """Return the next log line with an event name."""
        assert self.process.stderr is not None
        async with asyncio.timeout(START_SECONDS):
            while line := await self.process.stderr.readline():
                if not line.startswith(b"{"):
                    continue  # gRPC's own
                entry: dict[str, object] = json.loads(line)
                self.lines.append(entry)
                if entry["event"] == name:
                    return entry
        raise AssertionError(f"no event {name}: {self.lines}")


@asynccontextmanager
async def gateway_process(*arguments: str) -> AsyncIterator[GatewayProcess]:
    """Run a gateway until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *command(*arguments), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield GatewayProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def readiness(channel: grpc.aio.Channel) -> int:
    """Return the health of the service "readiness"."""
    stub = health_pb2_grpc.HealthStub(channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=5)
    return int(response.status)


@pytest.mark.asyncio
async def test_sigterm_lets_a_running_stream_finish_and_exits_with_zero(folder: Path) -> None:
    verifier = ScriptedVerifier(model_steps(), pause_seconds=0.05)
    async with (
        serving(verifier) as address,
        gateway_process(
            "--listen=127.0.0.1:0",
            f"--verifiers={address}",
            f"--model={folder}",
            "--propagation-delay-seconds=0.3",
        ) as gateway,
    ):
        listening = await gateway.event("listening")
        await gateway.event("ready")
        async with grpc.aio.insecure_channel(str(listening["address"])) as channel:
            request = messages.GenerateRequest(
                text="secret words", stopping=messages.StoppingOptions(max_tokens=60)
            )
            call = GenerationServiceStub(channel).StreamGenerate(
                messages.StreamGenerateRequest(request=request), timeout=20
            )
            stream = aiter(call)
            await anext(stream)
            before = await readiness(channel)
            gateway.process.send_signal(signal.SIGTERM)
            await gateway.event("draining")
            during = await readiness(channel)
            events = [event async for event in stream]
        line = await gateway.event("request_finished")
        code = await asyncio.wait_for(gateway.process.wait(), 10)

    assert (before, during) == (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    assert events[-1].summary.usage.completion_tokens == 60
    assert code == 0
    assert line["code"] == "OK"
    assert line["completion_tokens"] == 60
    assert "secret" not in json.dumps(gateway.lines)


@pytest.mark.asyncio
async def test_readiness_follows_the_verifiers(folder: Path) -> None:
    verifier = ScriptedVerifier()
    async with serving(verifier) as address:
        pass
    async with gateway_process(
        "--listen=127.0.0.1:0", f"--verifiers={address}", f"--model={folder}"
    ) as gateway:
        listening = await gateway.event("listening")
        async with grpc.aio.insecure_channel(str(listening["address"])) as channel:
            alone = await readiness(channel)
            async with serving(verifier, address):
                await gateway.event("ready")
                served = await readiness(channel)
            await gateway.event("not_ready")
            lost = await readiness(channel)

    serving_status = health_pb2.HealthCheckResponse.SERVING
    assert [alone == serving_status, served == serving_status, lost == serving_status] == [
        False,
        True,
        False,
    ]


def test_each_start_error_is_one_line_and_exit_code_2(folder: Path, tmp_path: Path) -> None:
    broken = write_model_folder(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        verifiers, model = "--verifiers=127.0.0.1:9", f"--model={folder}"
        ended = {
            "port": run(f"--listen=127.0.0.1:{port}", verifiers, model),
            "folder": run(verifiers, "--model=/nowhere"),
            "tokenizer": run(verifiers, f"--model={broken}"),
            "no verifiers": run(model),
            "bad address": run("--verifiers=nonsense", model),
            "flag": run(verifiers, model, "--no-such-flag"),
        }

    words = {name: process.stderr.strip().splitlines()[-1] for name, process in ended.items()}
    assert {process.returncode for process in ended.values()} == {2}
    assert all(len(process.stderr.strip().splitlines()) == 1 for process in ended.values()), words
    assert "in use" in words["port"]
    assert "/nowhere" in words["folder"]
    assert "tokenizer.json" in words["tokenizer"]
    assert "verifiers" in words["no verifiers"]
    assert "nonsense" in words["bad address"]
    assert "--no-such-flag" in words["flag"]


def test_verifiers_can_be_repeated_separated_and_set_in_the_environment(folder: Path) -> None:
    program = (
        "import sys; from gateway.settings import GatewaySettings as S;"
        "from paceline.settings import load_settings as load;"
        "print(*load(S, 'gateway', sys.argv[1:]).verifiers)"
    )
    given = {
        "repeated": (["--verifiers=a:1", "--verifiers=b:2"], {}),
        "apart": (["--verifiers", "a:1", "--verifiers", "b:2"], {}),
        "separated": (["--verifiers=a:1,b:2"], {}),
        "twice": (["--verifiers=a:1,b:2", "--verifiers=a:1"], {}),
        "environment": ([], {"GATEWAY_VERIFIERS": "a:1, b:2"}),
        "file": (["--config=gateway.yaml"], {}),
    }
    (folder / "gateway.yaml").write_text("verifiers: ['a:1', 'b:2']\n")
    read = {
        name: subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", program, f"--model={folder}", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout.strip()
        for name, (arguments, environment) in given.items()
    }

    assert read == dict.fromkeys(given, "a:1 b:2")


def test_the_gateway_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, gateway.__main__, gateway.server;"
        "print(sorted({'torch', 'transformers', 'onnxruntime'} & set(sys.modules)))"
    )
    ended = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert ended.stdout.strip() == "[]"
