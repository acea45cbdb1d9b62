"""The verifier's settings; environment prefix ``VERIFY_``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from paceline.address_settings import DialedTarget
from paceline.settings import LinkSettings, Names


def split_pools(value: object) -> object:
    """Take ``NAME=HOST:PORT`` with commas between, or JSON, or a file's mapping."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("must be NAME=HOST:PORT, or a JSON object") from None
    pairs = [pair.strip().partition("=") for pair in value.split(",") if pair.strip()]
    if not all(name and equals for name, equals, _ in pairs):
        raise ValueError("must be NAME=HOST:PORT, several with commas between")
    return {name: address for name, _, address in pairs}


class VerifySettings(LinkSettings):
    """Paceline's verify service: owns the target model and verifies drafts."""

    model_config = SettingsConfigDict(env_prefix="VERIFY_")

    engine: Literal["step", "tensorrt-llm"] = "step"
    """``step``: our own engine on a target; ``tensorrt-llm``: NVIDIA's, in its release image."""

    target: Literal["torch", "simulated", "table"] = "torch"
    """``torch``: a Hugging Face model folder; ``simulated``: no model, the step times of one on a
    GPU, for capacity planning and load tests; ``table``: a function, for dry runs."""

    model: Path | None = None
    """Model folder (config.json, safetensors, tokenizer.json); needed by the torch target."""

    simulated_model: Literal["llama-3.3-70b", "llama-3.1-8b"] = "llama-3.1-8b"
    """Whose step times the simulated target takes, in FP16; ``model`` may name a tokenizer's
    folder beside it."""

    simulated_gpu: Literal["h100", "h200"] = "h100"
    """On which GPUs the simulated target runs."""

    simulated_tensor_parallel: int = Field(default=0, ge=0, le=64)
    """On how many GPUs the simulated target runs; 0 takes the model's usual number."""

    device: str = "cpu"
    """Where the torch target runs: ``cpu`` or ``cuda``."""

    weights: Literal["auto", "float32", "packed-fp16", "bfloat16", "float16"] = "auto"
    """How weights are held; ``auto`` packs them as fp16 on CPU, the fastest exact choice there."""

    num_threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of the torch target; 0 takes all cores."""

    pools: Annotated[dict[str, DialedTarget], NoDecode, BeforeValidator(split_pools)] = Field(
        default_factory=dict
    )
    """Draft pools, ``NAME=HOST:PORT``; repeat the flag or separate with commas. Requests name the
    pool that drafts for them."""

    trusted_pools: Names = ()
    """Pools whose stated draft distributions are believed under the rule REJECTION; repeat the flag
    or separate with commas. By default none: one that misstates them would bias the output."""

    routing: Path | None = None
    """YAML file with further draft pools, read again when it changes:
    ``pools: {NAME: {address: "HOST:PORT", weight: 1}}``. Give the gateway the same one: it shares
    requests out by the weights."""

    max_running: int = Field(default=16, ge=1, le=4096)
    """Sequences in one batch; more wait."""

    max_waiting: int = Field(default=256, ge=0, le=65536)
    """Waiting sequences before new ones are refused with RESOURCE_EXHAUSTED."""

    num_kv_blocks: int = Field(default=0, ge=0)
    """KV blocks; 0 takes room for ``max_running`` times 1024 tokens and for one whole context."""

    block_size: int = Field(default=16, ge=1, le=1024)
    """Tokens per KV block."""

    max_prefill_rows: int = Field(default=128, ge=1, le=65536)
    """Prompt tokens computed per step: the longest stall that a new prompt causes for others."""

    step_timeout_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Longest time that an engine with work may take for a step; beyond, gateways take its requests
    elsewhere until it goes on. Far above ``max_prefill_rows`` of a large model on a CPU; on a GPU
    a few seconds are enough."""

    max_draft_tokens: int = Field(default=24, ge=0, le=512)
    """Most drafted tokens verified per sequence and step; 0 switches drafting off."""

    max_draft_wait_ms: float = Field(default=8.0, ge=0, le=1000)
    """Longest wait for trees in flight, in milliseconds, and only where it pays. The way to a
    drafter and back takes 3 to 5 on a busy machine, and a wait that ends too soon is lost."""

    draft_budget: Literal["adaptive", "fixed"] = "adaptive"
    """``adaptive``: as many nodes as learned costs justify; ``fixed``: always the maximum."""

    state: Path | None = None
    """Folder where learned step costs are kept across restarts, per model and device; unset: they
    are learned anew. A file of its own per verifier: no two may share one folder."""

    prefix_caching: bool = True
    """Reuse the KV of known prompt prefixes (per tenant)."""
