"""
The routing file: which draft pools there are, and how requests that name none are shared out.

Gateways and verifiers read the same file and take up changes while they run. It decides nothing
about a single request; that is the gateway's policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.address_settings import DialedAddress
from paceline.errors import ConfigurationError
from paceline.yaml_file import first_problem, read_yaml

log: structlog.stdlib.BoundLogger = structlog.get_logger()

LOOK_SECONDS: Final = 1.0
"""Time between two looks at the file; a cluster itself takes up to a minute to deliver one."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Draft pools with their addresses and weights."""

    default_pool: str = ""
    """Pool for requests that name none; empty: the weights decide."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)

    def pool_at(self, share: float) -> str:
        """
        Return the pool of a request that names none; empty when no pool has weight.

        ``share`` in [0, 1) is the request's own and stays the same: moving weight from one pool
        to another moves just as many requests and leaves the others where they are.
        """
        if self.default_pool:
            return self.default_pool
        position = share * sum(self.weights.values())
        for name in sorted(self.weights):
            position -= self.weights[name]
            if position < 0:
                return name
        return ""


class _PoolEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    address: DialedAddress
    weight: Annotated[int, Field(ge=0)] = 0


class _RoutingFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    default_pool: str = ""
    pools: Mapping[str, _PoolEntry]


def read_routing(path: Path) -> Routing:
    """Return what a routing file says; raises ``ConfigurationError``."""
    content = read_yaml(path, "routing file", "`pools: {}` stands for no pools")
    try:
        read = _RoutingFile.model_validate(content)
    except ValidationError as error:
        where, problem = first_problem(error)
        raise ConfigurationError(f"routing file {path}: {where}: {problem}") from None
    if read.default_pool and read.default_pool not in read.pools:
        raise ConfigurationError(
            f"routing file {path}: default_pool: there is no pool {read.default_pool}; "
            f"pools has {', '.join(sorted(read.pools)) or 'none'}"
        )
    return Routing(
        read.default_pool,
        {name: pool.address for name, pool in read.pools.items()},
        {name: pool.weight for name, pool in read.pools.items()},
    )


async def follow_routing(
    path: Path,
    current: Routing,
    apply: Callable[[Routing], Awaitable[None]],
    note_problem: Callable[[str], None] = lambda problem: None,
) -> None:
    """
    Apply every change of a routing file, for as long as the task lives.

    A file that makes no sense is logged once and leaves the last good one in force, and so does an
    empty one, which a file is while it is rewritten in place; ``note_problem`` is told what is
    wrong with it, and an empty text once it is read again.
    """
    problem = ""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            found = await asyncio.to_thread(read_routing, path)
        except ConfigurationError as error:
            if error.message != problem:
                problem = error.message
                log.error("routing_refused", detail=problem)
                note_problem(problem)
            continue
        if problem:
            problem = ""
            note_problem(problem)
        if found != current:
            current = found
            log.info("routing_changed", default_pool=found.default_pool, weights=found.weights)
            await apply(found)
