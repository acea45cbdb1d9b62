"""From settings to a running TensorRT-LLM engine, or one line that says what is in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import structlog

from paceline.errors import ConfigurationError
from paceline.model_folder import read_model_folder, tokenizer_fingerprint
from verify_service.engine.sampling import SamplingParams
from verify_service.engines.tensorrt_llm import admission, package
from verify_service.engines.tensorrt_llm.llm_arguments import (
    ADVISED_DRAFT_TOKENS,
    MOST_DRAFT_TOKENS,
    EngineLimits,
)
from verify_service.engines.tensorrt_llm.mailbox_server import SocketFolder
from verify_service.engines.tensorrt_llm.request_loop import LoopConfig
from verify_service.engines.tensorrt_llm.tensorrt_engine import TensorRtEngine
from verify_service.generation_defaults import generation_defaults
from verify_service.settings import VerifySettings
from verify_service.targets.target import TargetInfo

log: structlog.stdlib.BoundLogger = structlog.get_logger()

ENGINE = "tensorrt-llm"
MAX_WAIT_SECONDS = 0.002
"""Longest wait for trees in flight; the package's loop stands still meanwhile."""


def load_backend(settings: VerifySettings) -> tuple[TensorRtEngine, SamplingParams]:
    """Return the engine and its defaults; raises ``ConfigurationError`` naming the cause."""
    folder = model_folder(settings)
    package.require_one_rank()
    installed = package.load_package()
    check_contract(installed.version)
    info = read_info(folder)
    limits = engine_limits(settings, info, can_separate_tenants=installed.takes_cache_salt)
    info = replace(info, context_length=limits.context_length)
    defaults, dropped = admission.servable_defaults(generation_defaults(folder))
    if dropped:
        log.warning("model_defaults_not_supported", names=dropped)
    sockets = SocketFolder()
    try:
        llm = package.make_llm(
            str(folder), limits, sockets.address, info.vocab_size, wait_seconds(settings)
        )
    except ConfigurationError:
        sockets.remove()
        raise
    config = LoopConfig(limits, settings.max_waiting, tuple(settings.pools))
    return TensorRtEngine(llm, installed, info, config, sockets), defaults


def model_folder(settings: VerifySettings) -> Path:
    """Return the model's folder; raises ``ConfigurationError`` if none is named."""
    if settings.model is None:
        raise ConfigurationError(
            "setting model: the tensorrt-llm engine needs a model folder; pass --model DIR"
        )
    return settings.model


def check_contract(version: str) -> None:
    """Raise ``ConfigurationError`` with the difference if the package is not as recorded."""
    release, found = package.probe(version)
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ConfigurationError(
            f"tensorrt_llm {version} differs from the recorded API: {found[0]}{more}; "
            f"use {package.IMAGE}, or see: python -m verify_service doctor --engine {ENGINE}"
        )
    if release is not None and not release.confirmed:
        log.warning("tensorrt_llm_release_unconfirmed", version=version, family=release.family)


def read_info(folder: Path) -> TargetInfo:
    """Return what is fixed about the model."""
    model = read_model_folder(folder)
    has_tokenizer = (folder / "tokenizer.json").exists()
    return TargetInfo(
        name=model.name,
        engine=ENGINE,
        vocab_size=model.vocab_size,
        num_token_ids=model.vocab_size,
        context_length=model.context_length,
        eos_token_ids=model.eos_token_ids,
        tokenizer_fingerprint=tokenizer_fingerprint(folder) if has_tokenizer else "",
    )


def engine_limits(
    settings: VerifySettings, info: TargetInfo, *, can_separate_tenants: bool
) -> EngineLimits:
    """
    Return the engine's sizes; raises ``ConfigurationError`` for a chain that is too long.

    Prefix caching is off where the package cannot keep tenants' prefixes apart. A sequence may not
    grow past what the KV cache holds, a chain behind it included: the package would never run it.
    """
    is_chosen = "max_draft_tokens" in settings.model_fields_set
    num_drafts = settings.max_draft_tokens if is_chosen else ADVISED_DRAFT_TOKENS
    if not 1 <= num_drafts <= MOST_DRAFT_TOKENS:
        raise ConfigurationError(
            f"setting max_draft_tokens: {num_drafts} with the tensorrt-llm engine; "
            f"1 to {MOST_DRAFT_TOKENS}, at most {ADVISED_DRAFT_TOKENS} advised"
        )
    max_kv_tokens = settings.num_kv_blocks * settings.block_size
    longest = max_kv_tokens - 1 - num_drafts if max_kv_tokens else info.context_length
    if longest < 1:
        raise ConfigurationError(
            f"setting num_kv_blocks: {max_kv_tokens} tokens hold no sequence with a chain of "
            f"{num_drafts} behind it; set more, or 0 for all that fits"
        )
    return EngineLimits(
        max_running=settings.max_running,
        max_draft_tokens=num_drafts,
        context_length=min(info.context_length, longest),
        prefix_caching=settings.prefix_caching and can_separate_tenants,
        max_kv_tokens=max_kv_tokens,
    )


def wait_seconds(settings: VerifySettings) -> float:
    """Return how long a step may wait for trees that are on their way."""
    return min(settings.max_draft_wait_ms / 1000, MAX_WAIT_SECONDS)
