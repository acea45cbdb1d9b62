"""
The seam between the service and an engine: what any engine must do, whoever turns its crank.

``EngineThread`` (our own step engine) and ``engines.tensorrt_llm`` (an engine with a loop of its
own) implement it; the server, the router and the servicer know nothing else about either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from verify_service.engine.sampling import Rule
from verify_service.engine.steps import Command, StepOutput
from verify_service.targets.target import TargetInfo

OnOutput = Callable[[StepOutput], None]


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do; published by ``GetModelInfo``, never more than is proven."""

    max_running: int
    """Sequences in one batch."""
    max_draft_tokens: int
    """Most nodes that one step verifies per sequence."""
    trees: bool = True
    """False: only the best path of a tree is verified."""
    rules: tuple[Rule, ...] = (Rule.SAMPLE_AND_MATCH,)
    max_logprobs: int = 0
    penalties: bool = True
    logit_bias: bool = True
    structured_output: bool = True
    seeded_invariance: bool = True
    """The same seed gives the same ids whatever is drafted or batched."""
    prefix_caching: bool = True


class EngineBackend(Protocol):
    """
    An engine as the service sees it.

    Commands go in from any thread. Outputs leave through one callback, on a thread of the engine's
    choice; the engine holds back while too many of them are unread.
    """

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model, its context cut to what the engine can hold."""
        ...

    @property
    def capabilities(self) -> EngineCapabilities:
        """What the engine can do."""
        ...

    def start(self, on_output: OnOutput) -> None:
        """Start running; every output goes to ``on_output``."""
        ...

    def send(self, command: Command) -> None:
        """
        Hand over a command.

        Raises ``InvalidRequest`` for a request that this engine cannot serve as asked and
        ``Overloaded`` when it can take no more. Trees may be dropped, since they are only hints.
        """
        ...

    def output_read(self) -> None:
        """Say that one output was taken over."""
        ...

    def stop(self) -> None:
        """Stop for good; blocks until the engine's own threads have ended."""
        ...
