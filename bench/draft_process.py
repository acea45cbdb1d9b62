"""A draft service of its own for measurements, as a child process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.demo_line import BUILD
from paceline.cli.address import bindable_address
from paceline.cli.health import wait_until_serving
from paceline.cli.service_process import ServiceProcess, ServiceSpec

_GRACE_SECONDS = 5.0


@asynccontextmanager
async def draft_process(*arguments: str, name: str = "bench") -> AsyncIterator[str]:
    """Yield the address of a draft service that was started with these flags and is ready."""
    folder = BUILD / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    address = bindable_address("127.0.0.1:0", "--listen")
    quick = ("--propagation-delay-seconds", "0", "--drain-seconds", "1")
    process = ServiceProcess(
        ServiceSpec(
            "draft", "draft_service", address, (*arguments, *quick), folder / f"draft-{name}.log"
        )
    )
    await process.start()
    try:
        await wait_until_serving(address)
        yield address
    finally:
        await process.stop(_GRACE_SECONDS)
