"""Puts the fake where ``import tensorrt_llm`` finds it, in the shape of one family."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tests.doubles.fake_tensorrt_llm import drafter_families, llm
from tests.doubles.fake_tensorrt_llm.requests import (
    LlmRequest,
    ScheduledRequests,
    SplitScheduledRequests,
)
from verify_service.targets.table import LogitsFunction

DRAFTERS: dict[str, type[drafter_families.Drafter]] = {
    "1.2rc": drafter_families.CandidateDrafter,
    "1.2": drafter_families.StableDrafter,
    "1.3rc": drafter_families.LaterDrafter,
    "main": drafter_families.LaterDrafter,
}
VERSIONS = {"1.2rc": "1.2.0rc8", "1.2": "1.2.1", "1.3rc": "1.3.0rc15", "main": "1.4.0rc1"}
WORKER_PLUGIN = "verify_service.engines.tensorrt_llm.worker_plugin"
TORCH = "tensorrt_llm._torch"


def install(patch: pytest.MonkeyPatch, family: str, logits_of: LogitsFunction) -> llm.World:
    """Install the fake for one test and return its world."""
    split = family == "main"
    batch = SplitScheduledRequests if split else ScheduledRequests
    world = llm.World(logits_of, batch)
    model = type("LLM", (llm.LLM,), {"world": world})
    contents: dict[str, dict[str, object]] = {
        "tensorrt_llm": {
            "__version__": VERSIONS[family],
            "LLM": model,
            "SamplingParams": llm.SamplingParams,
        },
        "tensorrt_llm.llmapi": {
            "RequestOutput": llm.RequestOutput,
            "CompletionOutput": llm.CompletionOutput,
            "UserProvidedDecodingConfig": llm.UserProvidedDecodingConfig,
            "KvCacheConfig": llm.KvCacheConfig,
            "CudaGraphConfig": llm.CudaGraphConfig,
        },
        "tensorrt_llm.llmapi.llm_args": {"TorchLlmArgs": llm.TorchLlmArgs},
        TORCH: {},
        f"{TORCH}.speculative": {},
        f"{TORCH}.speculative.drafter": {"Drafter": DRAFTERS[family]},
        f"{TORCH}.pyexecutor": {},
        f"{TORCH}.pyexecutor.resource_manager": {
            "BaseResourceManager": drafter_families.BaseResourceManager
        },
        f"{TORCH}.pyexecutor.llm_request": {"LlmRequest": LlmRequest},
        f"{TORCH}.pyexecutor.scheduler": {"ScheduledRequests": batch},
    }
    for name, members in contents.items():
        patch.setitem(sys.modules, name, _module(name, members))
    # Its classes derive from the package's, so each family needs its own.
    patch.delitem(sys.modules, WORKER_PLUGIN, raising=False)
    return world


def _module(name: str, members: dict[str, object]) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    for key, value in members.items():
        setattr(module, key, value)
    return module
