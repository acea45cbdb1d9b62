"""
Steps of the whole engine around the torch target for ``bench.gpu_step``: what the host adds to the
device's time, with bookkeeping and messages beside the next pass and with all of it between two.
"""

from __future__ import annotations

import queue
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.gpu_batches import NUM_TOKENS
from paceline.tree import TokenTree
from verify_service.engine.draft_selection import BudgetMode
from verify_service.engine.engine_thread import SWITCH_INTERVAL_SECONDS
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.step_engine import EngineConfig, StepEngine
from verify_service.engine.steps import CancelSequence, PoolUp, StepOutput, Submit, TreeFact
from verify_service.targets.target import FlatBatch, TargetInfo, TargetModel

POOL = "bench"
MESSAGE_SECONDS = 90e-6
"""What one message to a gateway costs the event loop."""
PARAMS = SamplingParams(temperature=0.8, top_p=0.95)


class TimedTarget:
    """A target whose KV is there already; says how long each pass keeps its device busy."""

    def __init__(self, target: TargetModel, device: torch.device) -> None:
        self._target = target
        self._is_cuda = device.type == "cuda"
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: list[float] = []

    @property
    def info(self) -> TargetInfo:
        """What is fixed about the model."""
        return self._target.info

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Do nothing: other measurements share the blocks."""

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """Launch, between two marks."""
        if not self._is_cuda:
            begun = time.perf_counter()
            logits = self._target.forward(batch)
            self._seconds.append(time.perf_counter() - begun)
            return logits
        begin, end = _event(), _event()
        begin.record()
        logits = self._target.forward(batch)
        end.record()
        self._marks.append((begin, end))
        return logits

    def move_kv(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Move on."""
        self._target.move_kv(sources, destinations)

    def take_seconds(self) -> list[float]:
        """Wait for all passes; return, and forget, how long each took."""
        if self._is_cuda:
            torch.cuda.synchronize()
            self._seconds = [begin.elapsed_time(end) / 1000 for begin, end in self._marks]
        taken, self._seconds, self._marks = self._seconds, [], []
        return taken


class Listener:
    """Takes outputs on a thread, as the event loop does, and spends what their messages cost."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._switch_interval = sys.getswitchinterval()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Listener:
        """Start listening, with the interpreter shared as the engine's thread wants it."""
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after what was told."""
        self._inbox.put(None)
        self._thread.join()
        sys.setswitchinterval(self._switch_interval)

    def tell(self, output: StepOutput) -> None:
        """Hand over an output."""
        self._inbox.put(len(output.steps))

    def _run(self) -> None:
        while (num_messages := self._inbox.get()) is not None:
            until = time.thread_time() + num_messages * MESSAGE_SECONDS
            while time.thread_time() < until:
                pass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Median seconds of the engine's steps."""

    wall: float
    """Trees of all sequences merged before it included."""
    host: float
    """Of that, while the target's device has nothing to do."""
    merge: float


class EngineSteps:
    """An engine that decodes equal sequences, each with a tree of nodes that never hit."""

    def __init__(
        self, target: TimedTarget, num_blocks: int, block_size: int, most: int, num_nodes: int
    ) -> None:
        self._target = target
        self._num_nodes = num_nodes
        self._tree = TokenTree(
            tuple(11 * node % NUM_TOKENS for node in range(num_nodes)),
            tuple(node // 2 for node in range(num_nodes)),
            (-1.0,) * num_nodes,
        )
        config = EngineConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_running=most,
            max_prefill_rows=256,
            max_draft_tokens=num_nodes,
            budget=BudgetMode.FIXED,
            prefix_caching=True,
            draft_pools=(POOL,),
        )
        self._engine = StepEngine(target, config)
        self._engine.apply(PoolUp(POOL))
        self._lengths: dict[int, int] = {}
        self._next_id = 1

    def print_steps(self, num_sequences: int, context: int, num_steps: int) -> None:
        """Print the medians of ``num_steps`` steps one way and as many the other."""
        self._start(num_sequences, context)
        with Listener() as listener:
            self._steps(num_steps, listener, is_beside=True)
            beside = self._steps(num_steps, listener, is_beside=True)
            between = self._steps(num_steps, listener, is_beside=False)
        print(
            f"engine       batch {num_sequences:3}, {1 + self._num_nodes} rows/seq  "
            f"step {beside.wall * 1e3:8.3f} ms, of which the host alone "
            f"{beside.host * 1e3:7.3f} ms, or {between.host * 1e3:7.3f} ms with bookkeeping and "
            f"messages between passes; merging trees, in both, {beside.merge * 1e3:7.3f} ms"
        )
        self._stop()

    def _steps(self, num_steps: int, listener: Listener, *, is_beside: bool) -> StepTimes:
        """Return the medians over some steps."""
        walls: list[float] = []
        merges: list[float] = []
        output = StepOutput()
        self._target.take_seconds()
        for _ in range(num_steps):
            begun = time.perf_counter()
            if is_beside and self._engine.runs_apart:
                self._engine.beside = partial(listener.tell, output)
            else:
                self._engine.beside = None
                listener.tell(output)
            merges.append(self._offer())
            output = self._step()
            if not is_beside:
                self._engine.settle()
            walls.append(time.perf_counter() - begun)
        passes = self._target.take_seconds()
        alone = [wall - own for wall, own in zip(walls, passes, strict=True)]
        return StepTimes(*map(statistics.median, (walls, alone, merges)))

    def _step(self) -> StepOutput:
        output = self._engine.step()
        for step in output.steps:
            self._lengths[step.sequence_id] += len(step.token_ids)
        return output

    def _start(self, num_sequences: int, context: int) -> None:
        for index in range(num_sequences):
            number = self._next_id + index
            prompt = tuple((5 * place + number) % NUM_TOKENS for place in range(context))
            self._lengths[number] = context
            request = Request(
                number, prompt, sampling=PARAMS, limits=TokenLimits(max_tokens=100_000)
            )
            self._engine.apply(Submit(request, Drafting(POOL)))
        self._next_id += num_sequences
        while len(self._step().steps) < num_sequences:
            pass

    def _offer(self) -> float:
        """Send every sequence a tree; return the seconds that merging takes."""
        begun = time.perf_counter()
        for number, length in self._lengths.items():
            self._engine.apply(TreeFact(number, length, self._tree, POOL))
        return time.perf_counter() - begun

    def _stop(self) -> None:
        for number in self._lengths:
            self._engine.apply(CancelSequence(number))
        self._engine.step()
        self._lengths.clear()
        self._engine.forget_cached_prefixes()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has none
