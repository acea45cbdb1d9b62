"""Loads a graph into onnxruntime: which provider, how many threads, is it one that can draft."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from draft_service.onnx_signature import Signature, read_signature
from paceline.errors import ConfigurationError
from paceline.huge_pages import use_huge_pages

Provider = Literal["auto", "cpu", "cuda"]
Feeds = dict[str, npt.NDArray[np.generic]]

_SPIN_MICROSECONDS: Final = 20
"""How long a thread without work waits awake: more than lies between two products of a pass."""

_SPINS_BRIEFLY_SINCE: Final = (1, 32)
"""The version of onnxruntime from which the limit is known to hold; others spin for long."""

_WORTH_HUGE_PAGES: Final = 64 << 20
"""Bytes of weights; those of smaller graphs stay in the processor's caches."""

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"


class Graph(Protocol):
    """A loaded graph; ``onnxruntime.InferenceSession`` is one."""

    def run(self, output_names: list[str], feeds: Feeds) -> list[npt.NDArray[np.floating]]:
        """Return the named outputs."""
        ...


class Options(Protocol):
    """Of a session; ``onnxruntime.SessionOptions`` are some."""

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Enter a value under a name that onnxruntime documents."""
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
    limit_spinning(options, onnxruntime.__version__)
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
    if session.get_providers() == [_CPU] and num_graph_bytes(path) >= _WORTH_HUGE_PAGES:
        use_huge_pages()
    metadata = session.get_modelmeta().custom_metadata_map
    return session, read_signature(session.get_inputs(), session.get_outputs(), metadata)


def num_graph_bytes(path: Path) -> int:
    """Return the size of a graph with the weights that lie beside it."""
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def limit_spinning(options: Options, version: str) -> None:
    """
    Let threads without work wait awake, but not for long; not at all in older versions.

    Those that spin between passes would take the cores that a verifier needs, and one that sleeps
    between the hundred products of a pass is woken for each of them.
    """
    knows_limit = tuple(map(int, version.split(".")[:2])) >= _SPINS_BRIEFLY_SINCE
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(knows_limit)))
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))


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
