"""What a sequence's output has to look like, as the engine sees it. No grammar library here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Constraint(Protocol):
    """
    The grammar state of one sequence; it advances with committed tokens and nothing else.

    Used by the engine thread alone.
    """

    def mask(self, path: Sequence[int]) -> torch.Tensor:
        """
        Return which ids may follow the committed tokens and ``path``  # bool [num_token_ids].

        ``path`` must itself be allowed.
        """
        ...

    def num_allowed(self, path: Sequence[int]) -> int:
        """Return how many leading tokens of ``path`` may follow the committed tokens."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Return tokens that spell what has to follow now; empty where there is a choice."""
        ...

    def commit(self, token_ids: Sequence[int]) -> None:
        """Advance along newly committed tokens."""
        ...
