"""
The installed package: whether it is there, whether it is as recorded, and how an engine is made.

The only module besides ``worker_plugin`` that imports ``tensorrt_llm``, inside its functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from paceline.errors import ConfigurationError
from verify_service.engine.sampling import SamplingParams
from verify_service.engines.tensorrt_llm.contract_probe import (
    Difference,
    accepted_parameters,
    differences,
)
from verify_service.engines.tensorrt_llm.llm_arguments import (
    EngineLimits,
    graph_batch_sizes,
    kv_cache_arguments,
    llm_arguments,
    sampling_arguments,
)
from verify_service.engines.tensorrt_llm.package_view import Llm
from verify_service.engines.tensorrt_llm.recorded_contract import load_contract
from verify_service.engines.tensorrt_llm.version_table import Release, release_of

NAME = "tensorrt_llm"
IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


@dataclass(frozen=True, slots=True)
class Package:
    """The parts of the package that the engine calls."""

    version: str
    sampling_params: Callable[..., object]
    takes_cache_salt: bool
    """Whether prefixes of different tenants can be kept apart."""


def is_installed() -> bool:
    """Return whether the package is there, without importing it."""
    return find_spec(NAME) is not None


def load_package() -> Package:
    """Import the package; raises ``ConfigurationError`` with the remedy."""
    if not is_installed():
        raise ConfigurationError(
            f"setting engine: tensorrt_llm is not installed; run the verifier in {IMAGE}"
        )
    try:
        module: Any = import_module(NAME)
    except Exception as error:  # missing drivers and libraries show as many kinds
        raise ConfigurationError(
            f"setting engine: tensorrt_llm cannot be imported ({error}); "
            f"run the verifier in {IMAGE} on a machine with an NVIDIA GPU"
        ) from error
    accepted, _ = accepted_parameters(module.LLM.generate_async)
    return Package(
        version=str(module.__version__),
        sampling_params=module.SamplingParams,
        # One that takes anything may drop it unread, and tenants would share prefixes.
        takes_cache_salt="cache_salt" in accepted,
    )


def probe(version: str) -> tuple[Release | None, list[Difference]]:
    """Return the recorded release for ``version`` and how the installed package differs from it."""
    release = release_of(version)
    if release is None:
        return None, [Difference(f"{NAME} {version}", "is older than every recorded release")]
    found = differences(load_contract(release.family))
    return release, [*found, *(behaviour_differences() if not found else ())]


def behaviour_differences() -> list[Difference]:
    """Return in what the package behaves otherwise than recorded; it starts nothing."""
    found: list[Difference] = []
    llmapi: Any = import_module(f"{NAME}.llmapi")
    config = llmapi.UserProvidedDecodingConfig(max_draft_len=3, drafter=object())
    if config.max_total_draft_tokens != 3:
        what = f"is {config.max_total_draft_tokens} for a chain of 3: no chain any more"
        found.append(Difference("UserProvidedDecodingConfig.max_total_draft_tokens", what))
    module: Any = import_module(NAME)
    for params, greedy in ((SamplingParams(), True), (SamplingParams(temperature=0.7), False)):
        arguments = sampling_arguments(params, max_tokens=1, stop_token_ids=frozenset())
        try:
            sampling = module.SamplingParams(**arguments)
            # What the executor itself refuses shows only here.
            getattr(sampling, "_get_sampling_config", _nothing)()
        except Exception as error:
            found.append(Difference("SamplingParams", f"refuses our arguments ({error})"))
            continue
        if getattr(sampling, "_greedy_decoding", greedy) != greedy:
            what = f"is not {greedy} at temperature {params.temperature:g}"
            found.append(Difference("SamplingParams._greedy_decoding", what))
    return found


def _nothing() -> None:
    """Stand in for a member that a release lacks."""


def require_one_rank() -> None:
    """
    Raise ``ConfigurationError`` when started as one of several ranks.

    Every rank would have to set identical chains; that has not been shown to work.
    """
    for name in _RANKS:
        value = os.environ.get(name, "1")
        if value.isdecimal() and int(value) > 1:
            raise ConfigurationError(
                f"{name} is {value}: the tensorrt-llm engine runs on one GPU only; "
                "start one verifier per GPU"
            )


def make_llm(
    model: str, limits: EngineLimits, address: str, vocab_size: int, wait_seconds: float
) -> Llm:
    """Create the engine; takes minutes. Raises ``ConfigurationError`` with the package's words."""
    from verify_service.engines.tensorrt_llm.worker_plugin import (
        MailboxDrafter,
        MailboxPlace,
        MailboxResourceManager,
    )

    module: Any = import_module(NAME)
    llmapi: Any = import_module(f"{NAME}.llmapi")
    place = MailboxPlace(
        address, limits.max_draft_tokens, vocab_size, limits.max_running, wait_seconds
    )
    try:
        llm: Llm = module.LLM(
            **llm_arguments(model, limits),
            kv_cache_config=llmapi.KvCacheConfig(**kv_cache_arguments(limits)),
            cuda_graph_config=llmapi.CudaGraphConfig(
                batch_sizes=graph_batch_sizes(limits.max_running), enable_padding=True
            ),
            speculative_config=llmapi.UserProvidedDecodingConfig(
                max_draft_len=limits.max_draft_tokens,
                drafter=MailboxDrafter(place),
                resource_manager=MailboxResourceManager(place),
            ),
        )
    except Exception as error:
        raise ConfigurationError(f"TensorRT-LLM could not load {model}: {error}") from error
    return llm
