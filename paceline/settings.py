"""
How a service reads its settings: flags, then environment, then file, then defaults.

A service declares one ``ServiceSettings`` subclass with its environment prefix; every field has a
description with unit and reason. Unknown flags and keys are errors.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Self, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from paceline.address_settings import AdminAddress, ListenAddress
from paceline.errors import ConfigurationError
from paceline.logs import LogFormat, LogLevel
from paceline.tls import DialTls, ServerTls
from paceline.yaml_file import problem_text, read_yaml

USAGE_EXIT_CODE = 2

_UNKNOWN_FLAG: Final = re.compile(r"unrecognized arguments: (?P<flag>--[\w-]+)")

_INJECTED: Final = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PORT|PROTO|ADDR))?)?"
)
"""Ends of the variables that Kubernetes gives every container for each Service, begun with its
name: one called ``gateway`` must not keep gateways from starting."""

_MISSPELLED: Final = 0.8
"""Likeness from which a variable is taken for a setting misspelled, as in one letter of five."""

SettingsT = TypeVar("SettingsT", bound="ServiceSettings")


def split_names(value: object) -> object:
    """Take a comma-separated text, as flags and environment give it, or a file's list."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        return value
    return tuple(name for part in parts if (name := str(part).strip()))


Names: TypeAlias = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_names)]
"""Several names; on the command line the flag is repeated or they are separated with commas."""


class ServiceSettings(BaseSettings):
    """What every server can be told."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    listen: ListenAddress = Field(default="127.0.0.1:0")
    """``host:port`` to serve gRPC on; port 0 takes a free one."""

    log_level: LogLevel = "info"
    """Least severity that is logged."""

    log_format: LogFormat = "auto"
    """``json``, ``console`` or ``auto``: console on a terminal, JSON elsewhere."""

    propagation_delay_seconds: float = Field(default=0.0, ge=0, le=60)
    """Time from NOT_SERVING to refusing calls: load balancers must notice (2.5 in a cluster)."""

    drain_seconds: float = Field(default=30.0, ge=0, le=3600)
    """Longest time that running requests get after SIGTERM."""

    reflection: bool = True
    """Serve gRPC reflection (for ``buf curl`` and the like)."""

    admin_listen: AdminAddress = ""
    """``host:port`` of metrics and health over plain HTTP; empty: not served."""

    tls_certificate: Path | None = None
    """PEM chain to serve gRPC with; read again when it changes. Unset: plaintext."""

    tls_private_key: Path | None = None
    """PEM key of that certificate, not encrypted."""

    tls_client_ca: Path | None = None
    """PEM authority whose certificates clients must show (mutual TLS)."""

    otlp_endpoint: str = ""
    """OTLP collector's gRPC port, ``http://HOST:4317``, that traces go to; empty: no traces. Needs
    the extra ``telemetry``."""

    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of requests that are traced, 0 to 1. A caller that sends a trace context decides for
    its own; a line under load needs a few percent."""

    @property
    def server_tls(self) -> ServerTls | None:
        """What the server shows and demands; None: plaintext."""
        if self.tls_certificate is None or self.tls_private_key is None:
            return None
        return ServerTls(self.tls_certificate, self.tls_private_key, self.tls_client_ca)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            raise ValueError("tls_certificate and tls_private_key go together; set both or none")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca has no effect without tls_certificate; set both")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Rank the environment above values from the file, which arrive as init values."""
        return env_settings, init_settings


class LinkSettings(ServiceSettings):
    """What a server that dials other servers can be told besides."""

    link_ca: Path | None = None
    """PEM authority of the servers that this one dials; unset: those links are plaintext."""

    link_certificate: Path | None = None
    """PEM certificate to show to the servers that this one dials (mutual TLS)."""

    link_private_key: Path | None = None
    """PEM key of that certificate, not encrypted."""

    link_server_name: str = ""
    """Name that the dialed servers' certificates must show; empty: the host of their address."""

    @property
    def link_tls(self) -> DialTls | None:
        """How links are dialed; None: in plaintext."""
        if self.link_ca is None:
            return None
        return DialTls(
            self.link_ca, self.link_certificate, self.link_private_key, self.link_server_name
        )

    @model_validator(mode="after")
    def _check_links(self) -> Self:
        if (self.link_certificate is None) != (self.link_private_key is None):
            raise ValueError("link_certificate and link_private_key go together; set both or none")
        if (self.link_certificate or self.link_server_name) and self.link_ca is None:
            raise ValueError("link_certificate and link_server_name have no effect without link_ca")
        return self


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = _UNKNOWN_FLAG.match(message)
        known = self._option_string_actions
        near = difflib.get_close_matches(unknown["flag"], known, 1) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"{message}{hint}; see --help")


def load_settings(
    kind: type[SettingsT], program: str, argv: Sequence[str] | None = None
) -> SettingsT:
    """
    Return the settings of a service.

    Flags are the field names with dashes (``--log-level``); ``--config FILE`` names a YAML file
    with the same keys. Raises ``ConfigurationError`` naming the setting.
    """
    parser = _OneLineParser(prog=program, description=kind.__doc__, allow_abbrev=False)
    parser.add_argument("--config", type=Path, help="YAML file with the same keys as the flags")
    arguments = list(sys.argv[1:] if argv is None else argv)
    path = config_path(arguments)
    source: CliSettingsSource[Any] = CliSettingsSource(
        kind,
        root_parser=parser,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
    )
    try:
        _check_environment(kind)
        from_file = _read_file(path, kind) if path else {}
        return kind(_cli_settings_source=source(args=arguments), **from_file)  # type: ignore[call-arg]
    except ValidationError as error:
        raise ConfigurationError(_first_problem(error)) from None
    except SettingsError as error:
        raise ConfigurationError(str(error).splitlines()[0]) from None


def config_path(argv: Sequence[str] | None = None) -> Path | None:
    """Return the file that ``--config`` names."""
    finder = _OneLineParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    known, _ = finder.parse_known_args(list(sys.argv[1:] if argv is None else argv))
    path: Path | None = known.config
    return path


def _check_environment(kind: type[ServiceSettings]) -> None:
    """
    Raise ``ConfigurationError`` naming a variable that is almost a setting, but has no effect.

    Others with the service's prefix may be somebody else's.
    """
    prefix = str(kind.model_config.get("env_prefix", ""))
    for variable in sorted(os.environ):
        name = variable.upper().removeprefix(prefix)
        is_ours = prefix and variable.upper().startswith(prefix) and not _is_injected(name)
        if not is_ours or name.lower() in kind.model_fields:
            continue
        near = difflib.get_close_matches(name.lower(), kind.model_fields, 1, _MISSPELLED)
        if near:
            raise ConfigurationError(
                f"variable {variable} is no setting; did you mean {prefix}{near[0].upper()}? "
                "If it is for something else, unset it here"
            )


def exit_with_usage_error(program: str, error: ConfigurationError) -> NoReturn:
    """Print one line to standard error and exit with code 2."""
    sys.stderr.write(f"{program}: error: {error.message}\n")
    raise SystemExit(USAGE_EXIT_CODE)


def _read_file(path: Path, kind: type[ServiceSettings]) -> dict[str, Any]:
    content = read_yaml(path, "--config", "{} stands for no settings")
    if not isinstance(content, dict):
        raise ConfigurationError(f"--config {path}: expected a mapping of settings")
    unknown = sorted(set(content) - set(kind.model_fields))
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), kind.model_fields, 1)
        remedy = f"did you mean {near[0]}?" if near else "remove it, or see --help"
        raise ConfigurationError(f"--config {path}: unknown setting {unknown[0]}; {remedy}")
    return {str(key): value for key, value in content.items()}


def _is_injected(name: str) -> bool:
    return bool(_INJECTED.fullmatch(name)) or bool(re.search(rf"_(?:{_INJECTED.pattern})$", name))


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    if not problem["loc"]:
        return f"settings: {problem_text(problem)}"
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        flag = f"--{str(problem['loc'][0]).replace('_', '-')}"
        return f"setting {name} is missing: give it with {flag}, the environment or a file"
    return f"setting {name}: {problem_text(problem)}, got {problem['input']!r}"
