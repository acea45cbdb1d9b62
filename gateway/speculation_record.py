"""The speculation figures of one output or request, kept so that their invariants hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.generation import DraftFallback, PoolCause, Step


@dataclass(slots=True)
class SpeculationRecord:
    """
    Counts of verification steps; the prefill is not one.

    A step cut short by a stop string counts the drafted tokens that were kept, so that accepted
    tokens never exceed emitted ones. Plain steps count as steps that accepted nothing.
    """

    num_draft_tokens: int = 0
    num_empty_steps: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    per_step_accepted: list[int] | None = None
    """None: not kept."""
    per_step_drafted: list[int] | None = None
    pool: str = ""
    pool_cause: PoolCause = PoolCause.UNSPECIFIED
    workload: str = ""
    fallbacks: list[DraftFallback] = field(default_factory=list)

    @classmethod
    def at_level(cls, *, with_steps: bool) -> SpeculationRecord:
        """Return an empty record, with or without one entry per step."""
        steps: list[int] | None = [] if with_steps else None
        return cls(per_step_accepted=steps, per_step_drafted=None if steps is None else [])

    @property
    def num_spec_steps(self) -> int:
        """Verification steps."""
        return sum(self.acceptance_histogram)

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(
            accepted * num_steps for accepted, num_steps in enumerate(self.acceptance_histogram)
        )

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / steps; 0 without steps."""
        num_steps = self.num_spec_steps
        return 1 + self.num_accepted_draft_tokens / num_steps if num_steps else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 without drafts."""
        drafted = self.num_draft_tokens
        return self.num_accepted_draft_tokens / drafted if drafted else 0.0

    def add(self, step: Step, num_kept: int) -> None:
        """Count one step of which ``num_kept`` tokens were emitted."""
        if step.is_prefill:
            return
        accepted = min(step.num_accepted, num_kept)
        drafted = max(step.num_drafted, accepted)
        self._count(accepted)
        self.num_draft_tokens += drafted
        self.num_empty_steps += bool(self.pool) and drafted == 0
        if self.per_step_accepted is not None and self.per_step_drafted is not None:
            self.per_step_accepted.append(accepted)
            self.per_step_drafted.append(drafted)

    def note_fallback(self, cause: DraftFallback) -> bool:
        """Remember a cause; return whether it is new to this output."""
        if cause is DraftFallback.UNSPECIFIED or cause in self.fallbacks:
            return False
        self.fallbacks.append(cause)
        return True

    def merge(self, other: SpeculationRecord) -> None:
        """Add the figures of another output of the same request."""
        for accepted, num_steps in enumerate(other.acceptance_histogram):
            if num_steps:
                self._count(accepted, num_steps)
        self.num_draft_tokens += other.num_draft_tokens
        self.num_empty_steps += other.num_empty_steps
        if self.per_step_accepted is not None and self.per_step_drafted is not None:
            self.per_step_accepted += other.per_step_accepted or []
            self.per_step_drafted += other.per_step_drafted or []
        self.workload = other.workload or self.workload
        if other.pool:
            self.pool, self.pool_cause = other.pool, other.pool_cause
        for cause in other.fallbacks:
            self.note_fallback(cause)

    def _count(self, accepted: int, num_steps: int = 1) -> None:
        histogram = self.acceptance_histogram
        if accepted >= len(histogram):
            histogram.extend([0] * (accepted + 1 - len(histogram)))
        histogram[accepted] += num_steps
