"""
The command ``python -m draft_service.export``: makes a drafting model from a model.

Progress and the report go to stderr; the last line on stdout is the folder of the drafting model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import ConfigurationError
from paceline.model_folder import default_cache_dir


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the named model; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        folder = _export(options)
    except ConfigurationError as error:
        _say(f"error: {error}")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


def _export(options: argparse.Namespace) -> Path:
    try:
        from draft_service.export.exporter import ExportOptions, export_model
    except ImportError as error:
        raise ConfigurationError(
            f"the export cannot run: {error}; run `pip install '.[export]'` in a clone"
        ) from error
    cache_dir: Path = (options.cache_dir or default_cache_dir()).expanduser()
    source = options.model or _converted(options.gguf, cache_dir)
    chosen = ExportOptions(
        weights=options.weights,
        num_head_tokens=options.head_tokens,
        texts=tuple(_text(path) for path in options.text),
        reports=options.report,
    )
    folder = options.output or cache_dir / chosen.folder_name(source)
    return export_model(source, folder, chosen, _say)


def _converted(gguf: Path, cache_dir: Path) -> Path:
    """Return the model folder of a GGUF file, which the verify service's own tool unpacks."""
    command = (sys.executable, "-m", "verify_service.convert", "--gguf", str(gguf))
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            (*command, "--cache-dir", str(cache_dir)), stdout=subprocess.PIPE, text=True, check=True
        )
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            f"--gguf {gguf} cannot be unpacked; the cause stands above"
        ) from error
    return Path(done.stdout.strip().splitlines()[-1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--text {path}: no UTF-8 text can be read there") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m draft_service.export",
        description="Make a small, quick drafting model in ONNX from a model.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face model folder")
    source.add_argument("--gguf", type=Path, metavar="FILE", help="a GGUF file")
    parser.add_argument(
        "--weights",
        choices=("int4", "int8", "float16", "float32"),
        default="int8",
        help="how matrices are stored (default: int8)",
    )
    parser.add_argument(
        "--head-tokens",
        type=_positive,
        default=32_768,
        metavar="K",
        help="how many tokens can be proposed, the most frequent ones (default: 32768)",
    )
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a text like those to be drafted: its tokens are kept first (may be repeated)",
    )
    parser.add_argument(
        "--no-report", dest="report", action="store_false", help="measure neither speed nor quality"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="the new folder (default: one in the cache)"
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="where exports are kept (default: $PACELINE_CACHE_DIR or ~/.cache/paceline)",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
