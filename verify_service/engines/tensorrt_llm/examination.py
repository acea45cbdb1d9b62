"""What ``doctor`` looks at for the tensorrt-llm engine: package, contract, GPU, settings."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import PacelineError
from verify_service.doctor import examine_model
from verify_service.engines.tensorrt_llm import package
from verify_service.engines.tensorrt_llm.contract_probe import Difference
from verify_service.engines.tensorrt_llm.llm_arguments import ADVISED_DRAFT_TOKENS
from verify_service.engines.tensorrt_llm.loading import engine_limits, read_info
from verify_service.engines.tensorrt_llm.version_table import RELEASES, Release
from verify_service.findings import Finding, Level
from verify_service.settings import VerifySettings

MIN_SHARED_MEMORY_BYTES = 1 << 30
GPU_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
QUERY_SECONDS = 10.0


def examine_tensorrt_llm(settings: VerifySettings) -> Iterator[Finding]:
    """Yield every finding; nothing is started."""
    yield from _installed()
    yield _gpu()
    yield _ranks()
    yield _shared_memory()
    yield examine_model(settings)
    yield from _limits(settings)


def _installed() -> Iterator[Finding]:
    try:
        installed = package.load_package()
    except PacelineError as error:
        yield Finding(Level.WRONG, "package", error.message)
        known = ", ".join(release.family for release in RELEASES)
        yield Finding(Level.WARNING, "contract", f"not compared; recorded: {known}")
        return
    release, differences = package.probe(installed.version)
    yield Finding(Level.FINE, "package", f"tensorrt_llm {installed.version}")
    yield from _contract(release, differences)
    if not installed.takes_cache_salt:
        cause = "off: this release cannot keep the prefixes of tenants apart"
        yield Finding(Level.WARNING, "prefix caching", cause)


def _contract(release: Release | None, differences: list[Difference]) -> Iterator[Finding]:
    for difference in differences:
        fix = f"use {package.IMAGE}, or record this release's contract and test it"
        yield Finding(Level.WRONG, "contract", str(difference), fix)
    if release is None or differences:
        return
    if release.confirmed:
        yield Finding(Level.FINE, "contract", f"as recorded for {release.family}")
    else:
        cause = f"as recorded for {release.family}, which has not been run on a GPU yet"
        yield Finding(Level.WARNING, "contract", cause, "run tests/gpu in this image")


def _gpu() -> Finding:
    fix = "start the container with --gpus all on a machine with an NVIDIA GPU"
    if shutil.which(GPU_QUERY[0]) is None:
        return Finding(Level.WRONG, "gpu", "no nvidia-smi", fix)
    try:
        answer = subprocess.run(  # noqa: S603 a fixed command
            GPU_QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(Level.WRONG, "gpu", f"nvidia-smi fails: {error}", fix)
    gpus = answer.stdout.strip().splitlines()
    if not gpus:
        return Finding(Level.WRONG, "gpu", "none is visible", fix)
    return Finding(Level.FINE, "gpu", f"{len(gpus)} visible, {gpus[0]}")


def _ranks() -> Finding:
    try:
        package.require_one_rank()
    except PacelineError as error:
        return Finding(Level.WRONG, "ranks", error.message)
    return Finding(Level.FINE, "ranks", "one; more are refused until shown to work")


def _shared_memory() -> Finding:
    path = Path("/dev/shm")  # noqa: S108 looked at, not written
    if not path.exists():
        return Finding(Level.WARNING, "shared memory", "there is no /dev/shm", "use --ipc host")
    status = os.statvfs(path)
    size = status.f_frsize * status.f_blocks
    if size < MIN_SHARED_MEMORY_BYTES:
        cause = f"{size >> 20} MiB in /dev/shm"
        fix = "use --ipc host, or mount a memory volume there"
        return Finding(Level.WARNING, "shared memory", cause, fix)
    return Finding(Level.FINE, "shared memory", f"{size >> 20} MiB")


def _limits(settings: VerifySettings) -> Iterator[Finding]:
    if settings.model is None:
        return
    try:
        info = read_info(settings.model)
        limits = engine_limits(settings, info, can_separate_tenants=True)
    except PacelineError as error:
        yield Finding(Level.WRONG, "settings", error.message)
        return
    length = limits.max_draft_tokens
    if length > ADVISED_DRAFT_TOKENS:
        cause = f"every step pays for {length + 1} positions per request, drafted or not"
        fix = f"set max_draft_tokens to {ADVISED_DRAFT_TOKENS} or less"
        yield Finding(Level.WARNING, "settings", cause, fix)
    else:
        yield Finding(Level.FINE, "settings", f"chains of {length}, {limits.max_running} requests")
