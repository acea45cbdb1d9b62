"""What ``paceline doctor`` examines in each server. How it is shown: ``doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import grpc
import grpc.aio

from paceline.channels import open_link
from paceline.cli.access import ANYBODY, KEY_REMEDY, Access
from paceline.cli.health import is_serving, knows_service
from paceline.cli.tls_hint import tls_hint
from paceline.client import credential_metadata
from paceline.codec import PROTOCOL_VERSION, speaks_our_protocol
from paceline.generation_codec import fallback_name
from paceline.v1 import (
    draft_service_pb2,
    generation_service_pb2,
    types_pb2,
    verify_service_pb2,
)
from paceline.v1.draft_service_pb2_grpc import DraftServiceStub
from paceline.v1.generation_service_pb2_grpc import GenerationServiceStub
from paceline.v1.verify_service_pb2_grpc import VerifyServiceStub

TIMEOUT_SECONDS: Final = 5.0
ANY_TOKENIZER: Final = "any"
_SILENT: Final = "does not answer"

_POOL_FIXES: Final[Mapping[str, str]] = {
    "unreachable": "start the draft service, or correct the pool's address in the verifier's pools",
    "mismatch": "use a draft service made for this model's tokenizer and this protocol version",
    "demoted": "read the draft service's log: it sent invalid trees",
    "no_pool": "name the pool in the verifier's pools",
}


_SERVICES: Final[Mapping[str, tuple[str, str]]] = {
    "paceline.v1.GenerationService": ("a gateway", "--gateway"),
    "paceline.v1.VerifyService": ("a verifier", "--verifier"),
    "paceline.v1.DraftService": ("a draft service", "--draft"),
}
"""What a server is by the service that it names, and the flag that examines it."""


class Level(StrEnum):
    """How bad a finding is."""

    FINE = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    cause: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Whose token ids a server speaks."""

    subject: str
    fingerprint: str


Entry = Finding | Tokenizer
Report = AsyncIterator[Entry]


Asking = Callable[[grpc.aio.Channel, str, Access], Awaitable[list[Entry]]]


async def examine_gateway(address: str, access: Access = ANYBODY) -> Report:
    """Yield findings about a gateway, its verifiers and its draft pools."""
    async for entry in _examined(f"gateway {address}", address, access, _ask_gateway):
        yield entry


async def examine_verifier(address: str, access: Access = ANYBODY) -> Report:
    """Yield findings about a verifier and its draft pools."""
    async for entry in _examined(f"verifier {address}", address, access, _ask_verifier):
        yield entry


async def examine_draft_service(address: str, access: Access = ANYBODY) -> Report:
    """Yield findings about a draft service."""
    async for entry in _examined(f"draft service {address}", address, access, _ask_draft_service):
        yield entry


async def _examined(subject: str, address: str, access: Access, ask: Asking) -> Report:
    async with open_link(address, access.tls) as channel:
        async for finding in _reachability(channel, subject):
            yield await _with_hint(finding, address, access)
            if finding.level is Level.WRONG:
                return
        try:
            entries = await ask(channel, subject, access)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            entries = [await _somebody_else(channel, subject)]
    for entry in entries:
        yield entry


async def _ask_gateway(channel: grpc.aio.Channel, subject: str, access: Access) -> list[Entry]:
    answer = await GenerationServiceStub(channel).ListModels(
        generation_service_pb2.ListModelsRequest(),
        timeout=TIMEOUT_SECONDS,
        metadata=credential_metadata(access.api_key),
    )
    entries: list[Entry] = []
    for model in answer.models:
        entries.append(Tokenizer(subject, model.tokenizer_fingerprint))
        entries.append(_verifiers(subject, model))
        entries.extend(_pool(subject, pool) for pool in model.draft_pools)
        if not model.draft_pools:
            told = f"{model.name} has no draft pool"
            entries.append(Finding(Level.WARNING, subject, told, "name one"))
    if not answer.models:
        fix = "check its verifiers' addresses and that they are ready"
        entries.append(Finding(Level.WRONG, subject, "serves no model", fix))
    return entries


async def _ask_verifier(channel: grpc.aio.Channel, subject: str, access: Access) -> list[Entry]:
    request = verify_service_pb2.GetModelInfoRequest()
    info = await VerifyServiceStub(channel).GetModelInfo(request, timeout=TIMEOUT_SECONDS)
    told = f"{info.model} on engine {info.engine}, version {info.version or 'unknown'}"
    entries = [_protocol(subject, info.protocol), Finding(Level.FINE, subject, told)]
    pools = (_pool(subject, pool) for pool in info.draft_pools)
    return [*entries, *_tokenizer(subject, info.tokenizer_fingerprint), *pools]


async def _ask_draft_service(
    channel: grpc.aio.Channel, subject: str, access: Access
) -> list[Entry]:
    request = draft_service_pb2.GetCapabilitiesRequest()
    able = await DraftServiceStub(channel).GetCapabilities(request, timeout=TIMEOUT_SECONDS)
    told = f"{able.name} (drafter {able.drafter}, version {able.version or 'unknown'})"
    entries = [_protocol(subject, able.protocol), Finding(Level.FINE, subject, told)]
    return [*entries, *_tokenizer(subject, able.tokenizer_fingerprint)]


def _tokenizer(subject: str, fingerprint: str) -> list[Entry]:
    return [] if fingerprint in {"", ANY_TOKENIZER} else [Tokenizer(subject, fingerprint)]


async def _somebody_else(channel: grpc.aio.Channel, subject: str) -> Finding:
    """Return what listens there instead, by the services that its health names."""
    for service, (kind, flag) in _SERVICES.items():
        if await knows_service(channel, service, TIMEOUT_SECONDS):
            fix = f"check it with {flag}, or correct the address"
            return Finding(Level.WRONG, subject, f"what listens there is {kind}", fix)
    fix = "correct the address"
    return Finding(Level.WRONG, subject, "what listens there serves something else", fix)


def compare_tokenizers(tokenizers: list[Tokenizer]) -> Finding | None:
    """Return whether all servers speak the same token ids; None when there is no pair."""
    if len(tokenizers) < 2:
        return None
    groups: dict[str, list[str]] = {}
    for tokenizer in tokenizers:
        groups.setdefault(tokenizer.fingerprint, []).append(tokenizer.subject)
    if len(groups) == 1:
        return Finding(Level.FINE, "tokenizers", f"all have {_short(tokenizers[0].fingerprint)}")
    told = "; ".join(f"{_short(key)}: {', '.join(names)}" for key, names in groups.items())
    fix = "give all of them the same tokenizer.json"
    return Finding(Level.WRONG, "tokenizers", f"they differ: {told}", fix)


async def guarded(report: Report, subject: str) -> Report:
    """Yield a report; a call that fails on the way becomes its last finding."""
    try:
        async for entry in report:
            yield entry
    except grpc.aio.AioRpcError as error:
        cause = f"a call failed: {error.code().name}: {error.details()}"
        yield Finding(Level.WRONG, subject, cause, _remedy(error))


def _remedy(error: grpc.aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return KEY_REMEDY
    return "read the server's log"


async def _reachability(channel: grpc.aio.Channel, subject: str) -> AsyncIterator[Finding]:
    try:
        serving = await is_serving(channel, TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError as error:
        yield _unreachable(subject, error)
        return
    if serving:
        yield Finding(Level.FINE, subject, "answers and is ready")
    else:
        fix = (
            "a verifier loads its model first, a gateway waits for a verifier of its --verifiers: "
            "wait, start what is missing, or read its log"
        )
        yield Finding(Level.WRONG, subject, "answers but is not ready", fix)


async def _with_hint(finding: Finding, address: str, access: Access) -> Finding:
    if not finding.cause.startswith(_SILENT):
        return finding
    hint = await asyncio.to_thread(tls_hint, address, access)
    cause, _, remedy = hint.partition("; ")
    return replace(finding, cause=f"{_SILENT}: {cause}", fix=remedy) if hint else finding


def _unreachable(subject: str, error: grpc.aio.AioRpcError) -> Finding:
    if error.code() in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND}:
        fix = "correct the address"
        return Finding(Level.WRONG, subject, "answers but is no Paceline server", fix)
    return Finding(
        Level.WRONG,
        subject,
        f"{_SILENT} ({error.code().name})",
        "start it, or correct the address",
    )


def _protocol(subject: str, spoken: types_pb2.ProtocolRange) -> Finding:
    told = f"speaks protocol {spoken.min_version} to {spoken.max_version}"
    if speaks_our_protocol(spoken):
        return Finding(Level.FINE, subject, told)
    fix = f"use versions that share a protocol; this command speaks {PROTOCOL_VERSION}"
    return Finding(Level.WRONG, subject, told, fix)


def _verifiers(subject: str, model: generation_service_pb2.Model) -> Finding:
    ready, known = model.num_ready_verifiers, model.num_verifiers
    told = f"{model.name}: {ready} of {known} verifiers ready"
    if known and ready == known:
        return Finding(Level.FINE, subject, told)
    level = Level.WARNING if ready else Level.WRONG
    return Finding(level, subject, told, "start the others, or correct the gateway's verifiers")


def _pool(
    subject: str, pool: generation_service_pb2.ModelDraftPool | verify_service_pb2.DraftPool
) -> Finding:
    if pool.available:
        told = f"draft pool {pool.name} can be used (drafter {pool.drafter})"
        return Finding(Level.FINE, subject, told)
    cause = fallback_name(pool.cause)
    told = ": ".join(filter(None, (f"draft pool {pool.name} cannot be used", cause, pool.detail)))
    return Finding(Level.WRONG, subject, told, _POOL_FIXES.get(cause, "read the verifier's log"))


def _short(fingerprint: str) -> str:
    return fingerprint[:12] or "no tokenizer"


EXAMINERS: Final[Mapping[str, Callable[[str, Access], Report]]] = {
    "gateway": examine_gateway,
    "verifier": examine_verifier,
    "draft": examine_draft_service,
}
