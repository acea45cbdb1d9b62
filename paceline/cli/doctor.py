"""``paceline doctor``: checks a deployment and says cause and fix, one line each."""

from __future__ import annotations

import argparse
import asyncio

from paceline.address import split_address
from paceline.cli.access import ANYBODY, Access, access_of, add_access_arguments
from paceline.cli.address import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    gateway_address,
)
from paceline.cli.checks import (
    EXAMINERS,
    Finding,
    Level,
    Report,
    Tokenizer,
    compare_tokenizers,
    guarded,
)
from paceline.cli.policy import examine_policy
from paceline.cli.terminal import show

_KINDS = (*EXAMINERS, "policy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the command."""
    for kind in EXAMINERS:
        fallback = f" (without any address: ${ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS})"
        default = fallback if kind == "gateway" else ""
        parser.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            metavar="HOST:PORT",
            help=f"a {kind} to check; repeatable{default}",
        )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="admin address of a gateway: show whether it drafts, and why not; repeatable",
    )
    add_access_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print all findings; return 1 if something is wrong."""
    addresses = [(kind, address) for kind in _KINDS for address in getattr(options, kind)]
    for kind, address in addresses:
        split_address(address, f"--{kind}")
    addresses = addresses or [("gateway", gateway_address(None))]
    findings = asyncio.run(examined(addresses, access_of(options)))
    return 1 if any(finding.level is Level.WRONG for finding in findings) else 0


async def examined(addresses: list[tuple[str, str]], access: Access = ANYBODY) -> list[Finding]:
    """Examine the servers, show each finding at once, and return all."""
    findings: list[Finding] = []
    tokenizers: list[Tokenizer] = []
    for kind, address in addresses:
        async for entry in guarded(_report(kind, address, access), f"{kind} {address}"):
            if isinstance(entry, Tokenizer):
                tokenizers.append(entry)
            else:
                findings.append(entry)
                _show(entry)
    comparison = compare_tokenizers(tokenizers)
    if comparison is not None:
        findings.append(comparison)
        _show(comparison)
    return findings


def _report(kind: str, address: str, access: Access) -> Report:
    return examine_policy(address) if kind == "policy" else EXAMINERS[kind](address, access)


def _show(finding: Finding) -> None:
    fix = f"; {finding.fix}" if finding.fix else ""
    show(f"{finding.level:7}  {finding.subject}: {finding.cause}{fix}\n")
