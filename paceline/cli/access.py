"""Flags that say how commands get in: the API key and the certificates."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.cli.text_files import text_of
from paceline.client import check_api_key
from paceline.errors import ConfigurationError
from paceline.tls import DialTls

KEY_VARIABLE: Final = "PACELINE_API_KEY"
KEY_REMEDY: Final = f"give a valid key with --api-key-file FILE or {KEY_VARIABLE}"


@dataclass(frozen=True, slots=True)
class Access:
    """What to show, and whom to trust."""

    api_key: str | None = None
    tls: DialTls | None = None


ANYBODY: Final = Access()


def add_access_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; a key never is one, for others see command lines."""
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"file with the API key or token; default: ${KEY_VARIABLE}",
    )
    parser.add_argument("--ca", type=Path, metavar="FILE", help="PEM authority; switches TLS on")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="PEM, for mutual TLS")
    parser.add_argument("--private-key", type=Path, metavar="FILE", help="PEM, for mutual TLS")


def access_of(options: argparse.Namespace) -> Access:
    """Return what the flags and the environment say; raises ``ConfigurationError``."""
    if options.ca is None and (options.certificate or options.private_key):
        raise ConfigurationError("--certificate and --private-key have no effect without --ca")
    tls = None
    if options.ca is not None:
        tls = DialTls(options.ca, options.certificate, options.private_key)
    return Access(_api_key(options.api_key_file), tls)


def _api_key(path: Path | None) -> str | None:
    if path is None:
        key, source = os.environ.get(KEY_VARIABLE, "").strip(), f"the variable {KEY_VARIABLE}"
        if not key:
            return None
    else:
        key, source = text_of(path, "--api-key-file").strip(), f"--api-key-file {path}"
    check_api_key(key, source)
    return key
