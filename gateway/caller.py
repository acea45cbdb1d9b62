"""Who calls and what that allows, as values. How it is proved: ``door``."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.generation import PriorityClass
from paceline.errors import PermissionDenied


class Grant(BaseModel):
    """
    What a credential allows, as key files and tokens say it. Unknown keys are errors.

    Limits that are not set do not exist.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: str = Field(min_length=1, max_length=256)
    """Namespace of the prefix cache and of drafts: tenants learn nothing of each other."""

    max_priority: Literal["batch", "standard", "interactive"] = "standard"
    """Highest class that a request may ask for."""

    requests_per_second: float | None = Field(default=None, gt=0, le=1e6)
    """Calls of any kind, with a burst of one second's worth, at least one."""

    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Prompt and completion tokens, with a burst of one minute's worth."""

    concurrent_streams: int | None = Field(default=None, ge=1)
    """Generations at a time."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose credential was valid, or anybody when none is asked for."""

    name: str
    """For logs, and what quotas are counted by: the key's id, or a token's subject."""
    grant: Grant | None
    """None: everything is allowed, nothing is counted, and the tenant has no name."""

    @property
    def tenant(self) -> str:
        """The tenant's name; empty when no credential is asked for."""
        return self.grant.tenant if self.grant else ""

    def priority(self, wanted: PriorityClass | None) -> PriorityClass:
        """
        Return the class of a request that asks for one, or for none.

        Raises ``PermissionDenied`` above the ceiling.
        """
        if self.grant is None:
            return wanted or PriorityClass.STANDARD
        ceiling = PriorityClass[self.grant.max_priority.upper()]
        if wanted is not None and wanted > ceiling:
            raise PermissionDenied(
                f"priority: {wanted.name} is above {ceiling.name}, the highest class of this "
                "credential; ask for less or leave it unset",
                field="priority",
                reason="PRIORITY_NOT_ALLOWED",
            )
        return wanted or min(PriorityClass.STANDARD, ceiling)


ANYBODY = Caller("", None)

CURRENT: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)
"""The caller of the running call, set at the door."""
