"""
The command ``python -m verify_service.convert``: prepares a GGUF model for serving.

Progress goes to stderr; the last line on stdout is the model folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import ConfigurationError
from paceline.model_folder import default_cache_dir
from verify_service.gguf_conversion import convert_gguf
from verify_service.packaged_models import PACKAGED_MODELS, packaged_gguf


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert the named model; return the exit status."""
    options = _parser().parse_args(arguments)
    cache_dir: Path = (options.cache_dir or default_cache_dir()).expanduser()
    try:
        source = options.gguf or packaged_gguf(options.packaged, cache_dir)
        folder = convert_gguf(source, cache_dir, _report)
    except ConfigurationError as error:
        _report(f"error: {error}")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verify_service.convert",
        description="Convert a GGUF model, once, into a model folder that can be served.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, metavar="FILE", help="a GGUF file")
    source.add_argument(
        "--packaged", metavar="NAME", help=f"a packaged model: {', '.join(PACKAGED_MODELS)}"
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="where converted models are kept (default: $PACELINE_CACHE_DIR or ~/.cache/paceline)",
    )
    return parser


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
