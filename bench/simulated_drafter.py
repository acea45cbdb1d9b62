"""
A drafter that agrees with a simulated target as often as a model of acceptance says.

Each position of a sequence has a difficulty of its own, drawn once: how sure a drafter can be of
its first choice there. So sequences, and places within them, differ as they do in real text, and
a budget has something to find.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from paceline.noise import mix64
from paceline.tree import TokenTree
from verify_service.targets.simulated import TokenStream


@dataclass(frozen=True, slots=True)
class Workload:
    """How predictable a kind of text is: its hit rates of the first choice are Beta(a, 1)."""

    name: str
    mean: float
    """Of the hit rates: a / (a + 1)."""
    depth_decay: float = 0.98
    """What a drafter loses with every token further ahead."""


# Chains of 7 accept as in the literature's tables for 70B targets and 1B to 3B drafters or EAGLE-3
# (mean acceptance lengths): chat 2.7, code 4.3, edits of given text 5.7.
WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload("chat", 0.655),
        Workload("code", 0.83),
        Workload("edit", 0.925),
    )
}

SIBLING_SHARES: Final = (0.35, 0.15)
"""What the second and the third choice catch of what the first one misses."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How large trees are."""

    max_nodes: int = 32
    max_depth: int = 12
    min_survival: float = 0.02


class SimulatedDrafter:
    """Trees for the sequences of one simulated target."""

    def __init__(
        self,
        stream: TokenStream,
        *,
        shape: TreeShape | None = None,
        overconfidence: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._stream = stream
        self._shape = shape or TreeShape()
        self._exponent = 1 / overconfidence
        """Stated probability = true one to this power; 1 is honest."""
        self._seed = seed

    def propose(self, workload: Workload, sequence_id: int, committed: Sequence[int]) -> TokenTree:
        """Return a tree that continues ``committed``, likeliest nodes first."""
        return _Growth(self, workload, sequence_id, committed).tree(self._shape)

    def shares(
        self, workload: Workload, sequence_id: int, position: int, depth: int
    ) -> tuple[tuple[float, ...], int | None]:
        """
        Return the hit rates of the choices at a position, ``depth`` tokens ahead, and which hits.

        The drafter knows the rates; which choice hits decides the target.
        """
        key = mix64(mix64(self._seed * 1_000_003 + sequence_id) + position)
        sure = _uniform(key) ** (1 / workload.mean - 1)
        first = sure * workload.depth_decay ** (depth - 1)
        rates = (first, *((1 - first) * share for share in SIBLING_SHARES))
        drawn, hit = _uniform(mix64(key)), None
        for index, rate in enumerate(rates):
            if drawn < rate:
                hit = index
                break
            drawn -= rate
        return rates, hit

    def stated(self, rate: float) -> float:
        """Return the log-probability that the drafter states for a hit rate."""
        return self._exponent * math.log(min(max(rate, 1e-9), 1.0))

    def choices(self, token_id: int, position: int, hit: int | None) -> list[int]:
        """Return the tokens of the choices after ``token_id``; the true one stands at ``hit``."""
        true = self._stream.after(token_id, position)
        wrong = [(true + offset) % self._stream.vocab_size for offset in (1, 2, 3)]
        return [true if index == hit else wrong[index] for index in range(len(SIBLING_SHARES) + 1)]


class _Growth:
    """One tree as it grows, best node first."""

    def __init__(
        self,
        drafter: SimulatedDrafter,
        workload: Workload,
        sequence_id: int,
        committed: Sequence[int],
    ) -> None:
        self._drafter = drafter
        self._workload = workload
        self._sequence_id = sequence_id
        self._last_token, self._base = committed[-1], len(committed)
        self._heap: list[tuple[float, int, int, int, int, float]] = []
        """(-survival, order, parent, depth, token id, log-probability)"""
        self._order = 0
        self._at_depth: list[tuple[tuple[float, ...], int | None]] = []

    def tree(self, shape: TreeShape) -> TokenTree:
        """Return the finished tree."""
        token_ids: list[int] = []
        parents: list[int] = []
        log_probs: list[float] = []
        self._expand(0, 0, self._last_token, 1.0, shape)
        while self._heap and len(token_ids) < shape.max_nodes:
            negative, _, parent, depth, token_id, log_prob = heapq.heappop(self._heap)
            token_ids.append(token_id)
            parents.append(parent)
            log_probs.append(log_prob)
            if depth < shape.max_depth:
                self._expand(len(token_ids), depth, token_id, -negative, shape)
        return TokenTree(tuple(token_ids), tuple(parents), tuple(log_probs))

    def _expand(
        self, node: int, depth: int, token_id: int, survival: float, shape: TreeShape
    ) -> None:
        # What follows a wrong node looks as likely as what follows a right one, to a drafter.
        drafter, position = self._drafter, self._base + depth
        while len(self._at_depth) <= depth:
            ahead = len(self._at_depth)
            self._at_depth.append(
                drafter.shares(self._workload, self._sequence_id, self._base + ahead, ahead + 1)
            )
        rates, hit = self._at_depth[depth]
        tokens = drafter.choices(token_id, position - 1, hit)
        for rate, choice in zip(rates, tokens, strict=True):
            if survival * rate >= shape.min_survival:
                entry = (-survival * rate, self._order, node, depth + 1, choice)
                heapq.heappush(self._heap, (*entry, drafter.stated(rate)))
                self._order += 1


def _uniform(key: int) -> float:
    return ((mix64(key) >> 11) + 0.5) * 2.0**-53
