"""
Where the models of ``paceline up`` come from: a folder, a GGUF file, or a package; the model of its
drafter is made from the target's.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from paceline.cli.service_process import error_text
from paceline.cli.terminal import progress, say
from paceline.errors import ConfigurationError
from paceline.model_folder import read_model_folder

DEMO_MODEL: Final = "gemma3-270m"
PREPARE_SECONDS: Final = 3600.0


def model_folder(path: Path, option: str = "--model") -> Path:
    """Return a folder that holds a model; raises ``ConfigurationError`` if it does not."""
    if not path.is_dir():
        raise ConfigurationError(f"{option} {path}: there is no such folder")
    read_model_folder(path)
    return path


async def converted_gguf(path: Path) -> Path:
    """Return the model folder of a GGUF file, converting it the first time."""
    return await _converted("--gguf", str(_existing_file(path)))


async def demo_model() -> Path:
    """Return the folder of the demonstration model that the extra ``demo`` installs."""
    return await _converted("--packaged", DEMO_MODEL)


async def draft_model(model: Path) -> Path:
    """Return the folder of a small model that drafts for ``model``, made the first time."""
    command = ("draft_service.export", "--model", str(model), "--no-report")
    return await _prepared(command, f"a drafting model of {read_model_folder(model).name}")


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ConfigurationError(f"--gguf {path}: there is no such file")
    return path


async def _converted(option: str, source: str) -> Path:
    try:
        return await _prepared(("verify_service.convert", option, source), source)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option} {error.message}") from None


async def _prepared(command: tuple[str, ...], what: str) -> Path:
    """Run a module that makes a folder; its last line of output names the folder."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PREPARE_SECONDS), progress(f"preparing {what}"):
            folder, cause = await _followed(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode or not folder:
        raise ConfigurationError(f"{what} cannot be prepared: {cause}")
    return Path(folder)


async def _followed(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Pass progress on; return the last line of the output and the last error."""
    cause = "the preparation said nothing"
    if process.stderr is not None:
        async for raw in process.stderr:
            line = raw.decode(errors="replace").rstrip()
            message = error_text(line) or line.removeprefix("error: ")
            if message != line:
                cause = message
            elif line:
                cause = line
                say(line)
    output = await process.stdout.read() if process.stdout is not None else b""
    await process.wait()
    lines = output.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), ""), cause
