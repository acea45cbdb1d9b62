"""
``python -m verify_service doctor``: whether this machine can serve what the settings ask for.

Takes the same flags as the server and starts nothing. Exit codes: 0 it can, 1 something is wrong,
2 the flags are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from paceline.errors import ConfigurationError, PacelineError
from paceline.model_folder import read_model_folder
from paceline.settings import exit_with_usage_error, load_settings
from verify_service.findings import Finding, Level, exit_code
from verify_service.settings import VerifySettings

PROGRAM = "verify_service doctor"


def run(arguments: Sequence[str]) -> int:
    """Print one line per finding and return the exit code."""
    try:
        settings = load_settings(VerifySettings, PROGRAM, arguments)
    except ConfigurationError as error:
        exit_with_usage_error(PROGRAM, error)
    findings = []
    for finding in examine(settings):
        findings.append(finding)
        sys.stdout.write(f"{finding.line()}\n")
    return exit_code(findings)


def examine(settings: VerifySettings) -> Iterator[Finding]:
    """Yield what was found about the engine and its model."""
    if settings.engine == "tensorrt-llm":
        from verify_service.engines.tensorrt_llm.examination import examine_tensorrt_llm

        yield from examine_tensorrt_llm(settings)
    else:
        yield from _examine_step_engine(settings)


def examine_model(settings: VerifySettings) -> Finding:
    """Return whether the model's folder can be read."""
    if settings.model is None:
        return Finding(Level.WRONG, "model", "none is named", "pass --model DIR")
    try:
        folder = read_model_folder(settings.model)
    except PacelineError as error:
        return Finding(Level.WRONG, "model", error.message)
    size = f"vocabulary {folder.vocab_size}, context {folder.context_length}"
    return Finding(Level.FINE, "model", f"{folder.name}, {size}")


def _examine_step_engine(settings: VerifySettings) -> Iterator[Finding]:
    if settings.target == "table":
        yield Finding(Level.FINE, "target", "table, a function for dry runs")
        return
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        fix = "install the extra: pip install '.[verify]' in a clone"
        yield Finding(Level.WRONG, "target", f"{missing[0]} is not installed", fix)
    else:
        yield Finding(Level.FINE, "target", f"torch on {settings.device}")
        if settings.device != "cpu":
            yield from _examine_device(settings)
    yield examine_model(settings)


def _examine_device(settings: VerifySettings) -> Iterator[Finding]:
    # Loads torch, which takes seconds.
    from verify_service.targets.device_choice import device_named, packing_for, require_one_rank

    try:
        device = device_named(settings.device)
        require_one_rank()
        packing_for(device, settings.weights)
    except PacelineError as error:
        yield Finding(Level.WRONG, "device", error.message)
        return
    yield Finding(Level.FINE, "device", str(device))
    if device.type == "cuda" and find_spec("triton") is None:
        cause = "triton is not installed: steps run without graphs, much slower"
        yield Finding(Level.WARNING, "kernel", cause, "install torch's CUDA build, which brings it")
