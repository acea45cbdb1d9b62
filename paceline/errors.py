"""
The exceptions of Paceline, sorted by who must act. No transport here (see ``status``).

    PacelineError
    ├── InvalidRequest          the caller: change the named field
    │   └── InvalidTree         the drafter: it sent no tree
    ├── NotFound                the caller: name something that exists
    ├── Unauthenticated         the caller: send a valid credential
    ├── PermissionDenied        the caller: not allowed
    ├── Overloaded              the caller: retry later
    ├── Unavailable             the caller: retry, here or elsewhere
    ├── DeadlineExceeded        the caller: allow more time
    ├── Cancelled               nobody: the caller went away
    ├── Mismatch                the operator: two parts do not fit together
    ├── ConfigurationError      the operator: change the named setting
    └── EngineFailed            the developers: a fault of ours
"""

from __future__ import annotations

from typing import ClassVar


class PacelineError(Exception):
    """The root of all errors that Paceline raises on purpose."""

    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        reason: str = "",
        retry_after_seconds: float | None = None,
        quota: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.reason = reason or self.default_reason
        self.retry_after_seconds = retry_after_seconds
        self.quota = quota


class InvalidRequest(PacelineError):
    """A request field holds something that cannot be served; ``field`` names it."""

    default_reason = "INVALID_REQUEST"


class InvalidTree(InvalidRequest):
    """A proposal is not a token tree; ``cause`` is a short name for counters."""

    default_reason = "INVALID_TREE"

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message, field="tree")
        self.cause = cause


class NotFound(PacelineError):
    """The named model, pool or session does not exist."""

    default_reason = "NOT_FOUND"


class Unauthenticated(PacelineError):
    """No valid credential came with the call."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(PacelineError):
    """The credential does not allow the call."""

    default_reason = "PERMISSION_DENIED"


class Overloaded(PacelineError):
    """A queue or quota is full: ``quota`` names it, ``retry_after_seconds`` when to come back."""

    default_reason = "OVERLOADED"


class Unavailable(PacelineError):
    """Nobody can serve the call right now."""

    default_reason = "UNAVAILABLE"


class DeadlineExceeded(PacelineError):
    """The caller's deadline passed; what was emitted stays valid."""

    default_reason = "DEADLINE_EXCEEDED"


class Cancelled(PacelineError):
    """The caller cancelled."""

    default_reason = "CANCELLED"


class Mismatch(PacelineError):
    """Two parts of an installation do not fit together (tokenizer, protocol, model)."""

    default_reason = "MISMATCH"


class ConfigurationError(PacelineError):
    """A setting cannot work; the message names it and the remedy."""

    default_reason = "CONFIGURATION"


class EngineFailed(PacelineError):
    """The engine met a fault of its own."""

    default_reason = "ENGINE_FAILED"
