"""
The gateway's policy against a step in load, in virtual time: 2, then 128, then 2 streams.

    python -m bench.flip

The policy is the gateway's own ``DraftingController``; it sees a load report after every step, as
it would on the wire, and its decisions reach the engine before the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import torch

from bench.bar import Bar
from bench.closed_loop import PLAIN, ClosedLoop
from bench.load_curve import roofline, virtual_line
from bench.simulated_drafter import WORKLOADS
from bench.virtual_line import POOL, VirtualLine
from gateway.counters import Counters
from gateway.drafting_controller import DraftingController
from gateway.drafting_policy import PolicyLimits
from gateway.generation import (
    Capabilities,
    DraftingChoice,
    DraftingWish,
    DraftPool,
    ModelInfo,
    PriorityClass,
    Sampling,
    Step,
    VerifierLoad,
)
from paceline.cli.terminal import say
from paceline.logs import configure_logging
from verify_service.engine.sampling import Fallback
from verify_service.engine.sequence import Drafting
from verify_service.engine.steps import ChangeDrafting, StepOutput

FEW: Final = 2
MANY: Final = 128
PHASES: Final = ((FEW, 12.0), (MANY, 12.0), (FEW, 12.0))
"""(streams, virtual seconds)"""
Phases = Sequence[tuple[int, float]]
WINDOW_SECONDS: Final = 2.0
"""Over which throughput is compared with that of plain decoding."""
REENTRY_STEPS: Final = 3
COMPARED_STEPS: Final = 200


@dataclass(eq=False)
class PolicyStream:
    """A running stream as the policy sees it."""

    line: VirtualLine
    sequence_id: int
    wish: DraftingWish = field(default_factory=DraftingWish)
    priority: PriorityClass = PriorityClass.STANDARD

    def set_drafting(self, choice: DraftingChoice) -> None:
        """Tell the engine."""
        self.line.apply(ChangeDrafting(self.sequence_id, _drafting(choice)))


@dataclass
class VerifierView:
    """The one verifier as the policy sees it."""

    info: ModelInfo | None
    address: str = "simulated"
    load: VerifierLoad = field(default_factory=VerifierLoad)
    num_sequences: int = 0


class PolicyLoop(ClosedLoop):
    """A closed loop whose drafting the gateway's policy decides."""

    def __init__(self, line: VirtualLine) -> None:
        super().__init__(line)
        self.verifier = VerifierView(_model_info(line))
        self.controller = DraftingController(
            PolicyLimits(), default_pool=POOL, counters=Counters(), clock=line.clock
        )
        self.flips: list[float] = []
        """When the gate turned."""
        self._policy_streams: dict[int, PolicyStream] = {}

    @property
    def is_drafting(self) -> bool:
        """Whether the gate is open."""
        return all(gate.is_open for gate in self.controller.gates().values())

    def drafting_of(self, sequence_id: int) -> Drafting:
        """Ask the policy."""
        stream = PolicyStream(self.line, sequence_id)
        self._policy_streams[sequence_id] = stream
        self.verifier.num_sequences += 1
        was_open = self.is_drafting
        choice = self.controller.admit(self.verifier, stream)
        self._note_flip(was_open)
        return _drafting(choice)

    def ended(self, sequence_id: int) -> None:
        """Let the policy forget a stream."""
        self.controller.forget(self.verifier, self._policy_streams.pop(sequence_id))
        self.verifier.num_sequences -= 1

    def step(self) -> StepOutput:
        """Do one step and report it to the policy."""
        output = super().step()
        for step in output.steps:
            stream = self._policy_streams.get(step.sequence_id)
            if stream is None:
                continue
            self.controller.observe_step(
                stream,
                Step(
                    step.token_ids,
                    num_drafted=step.num_drafted,
                    num_accepted=step.num_accepted,
                    is_prefill=step.is_prefill,
                ),
            )
        load = output.load
        self.verifier.load = VerifierLoad(
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            estimated_gain=load.estimated_gain,
        )
        was_open = self.is_drafting
        self.controller.refresh(self.verifier)
        self._note_flip(was_open)
        return output

    def _note_flip(self, was_open: bool) -> None:
        if was_open != self.is_drafting:
            self.flips.append(self.line.clock())


@dataclass(slots=True)
class Trace:
    """What a loop did over all phases."""

    phases: Phases
    starts: list[float] = field(default_factory=list)
    """When each phase began."""
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    """(end, tokens, sequences that emitted) of each step."""

    def throughputs(self) -> list[float]:
        """Return the tokens in each window since the start of its phase."""
        windows: list[float] = []
        for begun, (_, seconds) in zip(self.starts, self.phases, strict=True):
            for index in range(int(seconds / WINDOW_SECONDS)):
                start = begun + index * WINDOW_SECONDS
                inside = (n for at, n, _ in self.steps if start < at <= start + WINDOW_SECONDS)
                windows.append(float(sum(inside)))
        return windows

    def acceptance_length(self, after: float, skip: int, count: int) -> float:
        """Return tokens per sequence over ``count`` steps, some steps after a moment."""
        chosen = [step for step in self.steps if step[0] > after][skip : skip + count]
        return sum(step[1] for step in chosen) / max(sum(step[2] for step in chosen), 1)


def run(loop: ClosedLoop, phases: Phases = PHASES) -> Trace:
    """Take a loop through all phases."""
    trace, clock = Trace(phases), loop.line.clock
    begun = clock()
    for number, (num_streams, seconds) in enumerate(phases, start=1):
        trace.starts.append(begun)
        loop.resize(num_streams, first_id=number * 100_000)
        while clock() < begun + seconds:
            output = loop.step()
            tokens = sum(len(step.token_ids) for step in output.steps)
            emitted = sum(bool(step.token_ids) for step in output.steps)
            trace.steps.append((clock(), tokens, emitted))
        begun += seconds
        say(f"{num_streams} streams for {seconds:g} s: {len(trace.steps)} steps so far")
    return trace


@dataclass(frozen=True, slots=True)
class Flip:
    """What a step in load did."""

    num_flips: tuple[int, ...]
    """After each change of load."""
    settled_seconds: tuple[float, ...]
    acceptance_before: float
    acceptance_after: float
    """From the third step after drafting came back."""
    ratios: tuple[float, ...]
    """Throughput divided by that of plain decoding, by window."""


def code_line() -> VirtualLine:
    """Return a line whose requests are all alike, so that phases can be compared."""
    line = virtual_line(roofline("llama-3.3-70b", "h100"))
    line.workload_of = lambda sequence_id: WORKLOADS["code"]
    return line


def measure_flip(phases: Phases = PHASES) -> Flip:
    """Take the policy and plain decoding through the same phases."""
    torch.set_num_threads(1)
    loop = PolicyLoop(code_line())
    trace = run(loop, phases)
    plain = run(ClosedLoop(code_line(), drafting=PLAIN), phases)
    edges = [*trace.starts[1:], trace.steps[-1][0]]
    flips = [[at for at in loop.flips if low <= at <= high] for low, high in pairwise(edges)]
    reopened = flips[-1][-1] if flips[-1] else edges[-2]
    windows = zip(trace.throughputs(), plain.throughputs(), strict=True)
    return Flip(
        num_flips=tuple(map(len, flips)),
        settled_seconds=tuple(
            max((at - low for at in ats), default=0.0)
            for ats, low in zip(flips, edges, strict=False)
        ),
        acceptance_before=trace.acceptance_length(edges[0] / 3, 0, COMPARED_STEPS),
        acceptance_after=trace.acceptance_length(reopened, REENTRY_STEPS, COMPARED_STEPS),
        ratios=tuple(ours / off for ours, off in windows),
    )


async def measure() -> list[Bar]:
    """Return the promises about a step in load."""
    flip = measure_flip()
    say(
        f"turns {flip.num_flips}, settled after {[round(s, 3) for s in flip.settled_seconds]} s, "
        f"acceptance length {flip.acceptance_before:.2f}, then {flip.acceptance_after:.2f}, "
        f"throughput / plain {[round(ratio, 2) for ratio in flip.ratios]}"
    )
    kept = flip.acceptance_after / flip.acceptance_before
    settled = max(flip.settled_seconds)
    return [
        Bar(5, f"flip {FEW}-{MANY}-{FEW}: seconds to settle", settled, 2.0, "at most"),
        Bar(5, "flip: turns per step in load", max(flip.num_flips), 2, "at most"),
        Bar(5, f"flip: acceptance {REENTRY_STEPS} steps after / before", kept, 0.95),
        Bar(5, "flip: throughput / plain, worst window", min(flip.ratios), 0.95),
    ]


def _model_info(line: VirtualLine) -> ModelInfo:
    info = line.engine.info
    return ModelInfo(
        model=info.name,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        engine=info.engine,
        eos_token_ids=frozenset(info.eos_token_ids),
        capabilities=Capabilities(max_draft_tokens=line.config.max_draft_tokens),
        speaks_our_protocol=True,
        draft_pools=(DraftPool(POOL, available=True),),
        default_sampling=Sampling(),
        version="",
    )


def _drafting(choice: DraftingChoice) -> Drafting:
    fallback = Fallback[choice.fallback.name] if choice.fallback else None
    return Drafting(choice.pool, choice.max_draft_tokens, fallback)


def main() -> None:
    """Print the figures."""
    configure_logging("bench", "warning")
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.3f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
