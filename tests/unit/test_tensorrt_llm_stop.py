"""The engine stops in bounded time, whatever the package does."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from verify_service.engines.tensorrt_llm import tensorrt_engine
from verify_service.engines.tensorrt_llm.llm_arguments import EngineLimits
from verify_service.engines.tensorrt_llm.loading import ENGINE
from verify_service.engines.tensorrt_llm.mailbox_server import SocketFolder
from verify_service.engines.tensorrt_llm.package import Package
from verify_service.engines.tensorrt_llm.package_view import RequestHandle
from verify_service.engines.tensorrt_llm.request_loop import LoopConfig
from verify_service.engines.tensorrt_llm.tensorrt_engine import TensorRtEngine
from verify_service.targets.target import TargetInfo

INFO = TargetInfo("model", ENGINE, 32, 32, 64, (), "")


class HangingLlm:
    """A package whose workers are gone: it waits for an answer for ever."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.was_asked = threading.Event()

    def generate_async(
        self, inputs: Mapping[str, object], sampling_params: object, *, streaming: bool = False
    ) -> RequestHandle:
        """Serve nothing."""
        raise NotImplementedError(f"{inputs} {sampling_params} {streaming}")

    def shutdown(self) -> None:
        """Wait for workers that do not answer."""
        self.was_asked.set()
        self.release.wait()


def test_a_package_that_never_shuts_down_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_engine, "SHUTDOWN_SECONDS", 0.05)
    llm, sockets = HangingLlm(), SocketFolder()
    package = Package("1.2.1", dict, takes_cache_salt=False)
    engine = TensorRtEngine(
        llm, package, INFO, LoopConfig(EngineLimits(2, 4, 64, prefix_caching=False)), sockets
    )

    engine.stop()
    llm.release.set()

    assert llm.was_asked.is_set()
    assert not Path(sockets.path).exists()
