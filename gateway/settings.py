"""What a gateway can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from gateway.credentials import CredentialFiles
from gateway.token_verifier import TokenRules
from paceline.address_settings import DialedName, ListenAddress
from paceline.settings import LinkSettings, split_names


class GatewaySettings(LinkSettings):
    """Serve applications: text in and out, admission, routing and the drafting policy."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_")

    listen: ListenAddress = Field(default="127.0.0.1:50051")
    """``host:port`` to serve applications on; port 0 takes a free one."""

    verifiers: Annotated[tuple[DialedName, ...], NoDecode, Field(min_length=1)]
    """``host:port`` of each verifier; repeat the flag or separate with commas. ``dns:host:port``
    stands for every address behind a name, looked up again and again."""

    model: Path
    """Folder with the model's ``tokenizer.json`` and ``config.json``; no weights are read."""

    default_pool: str = ""
    """Draft pool for requests that name none; empty: the one that measures fastest for each kind
    of request, beginning with the first that the verifier lists."""

    routing: Path | None = None
    """YAML file with draft pools and their weights, read again when it changes:
    ``pools: {NAME: {address: "HOST:PORT", weight: 1}}``, and ``default_pool: NAME`` for all
    requests that name none. It comes before the setting ``default_pool``, which decides where the
    file names no default and gives no pool any weight."""

    max_running: int = Field(default=256, ge=1, le=65_536)
    """Most sequences that run at once; beyond, requests wait here instead of at the verifiers."""

    max_waiting: int = Field(default=1024, ge=0, le=65_536)
    """Most requests that wait for room; beyond, RESOURCE_EXHAUSTED with a time to retry."""

    default_deadline_seconds: float = Field(default=600.0, gt=0, le=86_400)
    """Time that a call gets whose client set no deadline: nothing may run for ever."""

    default_max_tokens: int = Field(default=512, ge=1)
    """Most tokens of an output whose request does not say."""

    max_prompt_characters: int = Field(default=4_000_000, ge=1)
    """Longest text that is tokenized at all, several times what the longest contexts hold."""

    max_bytes_per_token: int = Field(default=16, ge=1, le=1024)
    """Bytes of UTF-8 per token of context beyond which a text is refused untokenized: tokens of
    prose and code have 3 to 5, and tokenizing a megabyte takes seconds."""

    tokenizer_threads: int = Field(default=2, ge=1, le=64)
    """Threads that tokenize long prompts beside the event loop."""

    max_running_to_draft: int = Field(default=32, ge=1)
    """Running sequences at a verifier above which mode auto stops drafting."""

    min_acceptance_length: float = Field(default=1.3, ge=1, le=100)
    """Mean acceptance length of a pool below which mode auto stops drafting from it."""

    drafting_dwell_seconds: float = Field(default=1.0, ge=0, le=60)
    """Least time between two turns of the drafting policy, so that it does not flap."""

    probe_interval_seconds: float = Field(default=5.0, gt=0, le=3600)
    """While drafting does not pay, how often one request drafts all the same to find out."""

    max_failovers: int = Field(default=3, ge=0, le=100)
    """How often one output moves to another verifier before its request fails."""

    failover_wait_seconds: float = Field(default=5.0, ge=0, le=600)
    """Longest wait of a running request for a verifier that can take it over."""

    failover_burst: int = Field(default=512, ge=1, le=1_000_000)
    """Moves to other verifiers that all outputs together may make at once: twice ``max_running``,
    so that a lost verifier moves everything, and a second one too, but no storm follows. Beyond,
    UNAVAILABLE with a time to retry."""

    failovers_per_second: float = Field(default=16.0, gt=0, le=1_000_000)
    """How fast ``failover_burst`` comes back: full again after half a minute."""

    verifier_timeout_seconds: float = Field(default=5.0, gt=0, le=600)
    """Time that a verifier has to describe itself; three misses in a row, and it counts as lost."""

    verifier_refresh_seconds: float = Field(default=1.0, gt=0, le=600)
    """Time between two looks at a verifier's draft pools."""

    api_keys: Path | None = None
    """YAML file with hashes of valid API keys and what each allows; read again when it changes."""

    jwks: Path | None = None
    """JWKS file with the public keys of a token issuer (JWT); read again when it changes."""

    jwt_audience: str = ""
    """What tokens must name as their audience; needed with ``jwks``."""

    jwt_issuer: str = ""
    """What tokens must name as their issuer; needed with ``jwks``."""

    reload_seconds: float = Field(default=2.0, gt=0, le=3600)
    """Time between two looks at whether the files of settings, keys and tokens have changed."""

    @property
    def credential_files(self) -> CredentialFiles:
        """Where valid credentials are known from."""
        return CredentialFiles(
            self.api_keys, self.jwks, TokenRules(self.jwt_audience, self.jwt_issuer)
        )

    @model_validator(mode="after")
    def _check_token_rules(self) -> Self:
        rules = (self.jwks is not None, bool(self.jwt_audience), bool(self.jwt_issuer))
        if any(rules) and not all(rules):
            raise ValueError("jwks, jwt_audience and jwt_issuer go together; set all or none")
        return self

    @field_validator("verifiers", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Take a comma-separated text, as flags and environment give it, or a file's list."""
        addresses = split_names(value)
        return tuple(dict.fromkeys(addresses)) if isinstance(addresses, tuple) else addresses
