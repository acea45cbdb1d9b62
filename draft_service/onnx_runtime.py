"""Loads a graph into onnxruntime: which provider, how many threads, is it one that can draft."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from draft_service.onnx_signature import Signature, read_signature
from paceline.errors import ConfigurationError

Provider = Literal["auto", "cpu", "cuda"]
Feeds = dict[str, npt.NDArray[np.generic]]

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"


class Graph(Protocol):
    """A loaded graph; ``onnxruntime.InferenceSession`` is one."""

    def run(self, output_names: list[str], feeds: Feeds) -> list[npt.NDArray[np.floating]]:
        """Return the named outputs."""
        ...


def load_graph(path: Path, provider: Provider, num_threads: int) -> tuple[Graph, Signature]:
    """
    Load a graph; 0 threads stand for one per core.

    Raises ``ConfigurationError`` when onnxruntime, the provider or the graph cannot be used.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigurationError(
            f"setting drafter: onnx needs onnxruntime, which cannot be imported ({error}); "
            "run `pip install '.[draft]'` in a clone, or '.[draft-gpu]' on CUDA"
        ) from error
    options = onnxruntime.SessionOptions()
    # A number of its own choice onnxruntime would pin to cores that others use as well.
    options.intra_op_num_threads = num_threads or len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    # Threads that spin between passes would take the cores that a verifier needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=_providers(provider, onnxruntime)
        )
    except ConfigurationError:
        raise
    except Exception as error:  # onnxruntime's own exceptions share no other ancestor
        cause = str(error).splitlines()[0]
        raise ConfigurationError(
            f"setting onnx_model: onnxruntime cannot load {path}: {cause}"
        ) from error
    metadata = session.get_modelmeta().custom_metadata_map
    return session, read_signature(session.get_inputs(), session.get_outputs(), metadata)


class _Runtime(Protocol):
    def get_available_providers(self) -> list[str]: ...


def _providers(provider: Provider, runtime: _Runtime) -> list[str]:
    has_cuda = _CUDA in runtime.get_available_providers()
    if provider == "cuda" and not has_cuda:
        raise ConfigurationError(
            "setting onnx_provider: this onnxruntime has no CUDA provider; "
            "run `pip install '.[draft-gpu]'` in a clone without onnxruntime, or choose cpu"
        )
    return [_CUDA, _CPU] if has_cuda and provider != "cpu" else [_CPU]
