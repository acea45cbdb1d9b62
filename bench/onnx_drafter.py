"""
Measures the ONNX drafter, made from the demonstration model, against that model.

What a draft pass costs beside a plain step of the target, and how many tokens its trees get
accepted on prose: greedy, sampled with the shared noise, and sampled without it. The target's
texts are generated once and replayed, one step at a time.

    python -m bench.onnx_drafter
"""

from __future__ import annotations

import asyncio
import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from bench.bar import Bar
from bench.prompts import BAR_PROMPTS
from draft_service.drafter import Drafter, DraftLimits, SessionSpec
from draft_service.export.exporter import ExportOptions, export_model
from draft_service.export.head_tokens import load_tokenizer
from draft_service.registry import create_drafter
from draft_service.settings import DraftSettings
from paceline.cli.model_source import demo_model
from paceline.cli.terminal import say
from verify_service.engine.sampler import pick
from verify_service.engine.sampling import SamplingParams
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan
from verify_service.targets.torch_model import TorchTarget

ISSUE: Final = 4
BLOCK_SIZE: Final = 16
MAX_BLOCKS: Final = 32
NUM_TOKENS: Final = 96
"""Generated for each prompt."""
DEPTH: Final = 5
SIBLINGS: Final = 3
LIMITS: Final = DraftLimits(max_draft_tokens=DEPTH * SIBLINGS, max_tree_depth=DEPTH)
MAX_CALLS: Final = 8
"""More than a tree of this depth needs."""
SEED: Final = 20_11
NUM_TIMED: Final = 25


@dataclass(frozen=True, slots=True)
class Replay:
    """What a drafter achieves on texts of the target."""

    num_steps: int
    num_accepted: int
    num_calls: int
    stated: float
    """How many first choices should have been right by what the trees say."""
    num_right: int
    """How many were."""

    @property
    def mean_acceptance_length(self) -> float:
        """Accepted tokens per step and the target's own."""
        return 1 + self.num_accepted / max(self.num_steps, 1)


async def measure() -> list[Bar]:
    """Return the bars for cost and acceptance."""
    model = await demo_model()
    return await asyncio.to_thread(_measure, model)


def _measure(model: Path) -> list[Bar]:
    options = ExportOptions(reports=False)
    folder = export_model(model, model.parent / options.folder_name(model), options, say)
    settings = DraftSettings(
        drafter="onnx", onnx_model=folder, onnx_siblings=SIBLINGS, onnx_chunk_tokens=256
    )
    drafter = create_drafter(settings)
    drafter.warm_up()
    target = TorchTarget.load(model)
    target.allocate_kv(MAX_BLOCKS, BLOCK_SIZE)
    ratio = step_ratio(drafter, target)
    tokenizer = load_tokenizer(model)
    prompts = [tokenizer.encode(p.text).ids for p in BAR_PROMPTS if p.category == "prose"]
    greedy = [generated(target, prompt, 0.0) for prompt in prompts]
    sampled = [generated(target, prompt, 1.0) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    at_zero = replayed(drafter, greedy, lengths, temperature=0.0)
    with_noise = replayed(drafter, sampled, lengths, temperature=1.0)
    without = replayed(drafter, sampled, lengths, temperature=0.0)
    for name, replay in (("T=0", at_zero), ("T=1", with_noise), ("T=1, no noise", without)):
        steps = replay.num_steps
        say(
            f"{name}: mean acceptance length {replay.mean_acceptance_length:.2f}; first choice "
            f"right in {replay.num_right / steps:.2f} of {steps} steps, "
            f"expected {replay.stated / steps:.2f}"
        )
    base = at_zero.mean_acceptance_length
    return [
        Bar(ISSUE, "ONNX draft pass / plain step of the target", ratio, 0.35, "at most"),
        Bar(ISSUE, "ONNX mean acceptance length, prose, T=0, depth 5", base, 3.0),
        Bar(
            ISSUE,
            "ONNX mean acceptance length, T=1 with shared noise / T=0",
            with_noise.mean_acceptance_length / base,
            0.85,
        ),
        Bar(
            ISSUE,
            "ONNX mean acceptance length, T=1 with / without shared noise",
            with_noise.mean_acceptance_length / without.mean_acceptance_length,
            1.0,
        ),
    ]


def step_ratio(drafter: Drafter, target: TorchTarget) -> float:
    """Return a draft pass's time over a plain step's, in turns, both after about 256 tokens."""
    context = 256
    target.forward(FlatBatch((_rows(range(context), 0),)))
    plain = functools.partial(target.forward, FlatBatch((_rows([7], context),)))
    session = drafter.open(SessionSpec(list(range(100, 100 + context))))
    session.propose(LIMITS)
    seconds: list[tuple[float, float]] = []
    for index in range(NUM_TIMED):
        # A token that no tree expects costs exactly one pass of one row.
        session.commit(context + index, [9_000 + index])
        seconds.append((_seconds(lambda: session.propose(LIMITS)), _seconds(plain)))
    draft, step = (statistics.median(each) for each in zip(*seconds[2:], strict=True))
    say(f"draft pass {draft * 1e3:.1f} ms, plain step {step * 1e3:.1f} ms")
    return float(draft / step)


def generated(
    target: TorchTarget,
    prompt: Sequence[int],
    temperature: float,
    *,
    seed: int = SEED,
    num_tokens: int = NUM_TOKENS,
) -> list[int]:
    """Return a prompt and what the target says next, chosen with the shared noise."""
    token_ids = list(prompt)
    params = SamplingParams(temperature=temperature, seed=seed)
    num_stored = 0
    while len(token_ids) < len(prompt) + num_tokens:
        with torch.inference_mode():
            span = _rows(token_ids[num_stored:], num_stored)
            logits = target.forward(FlatBatch((span,)))[-1]
            num_stored = len(token_ids)
            token_id = pick(logits, params, len(token_ids))
        if token_id is None:
            break
        token_ids.append(token_id)
    return token_ids


def replayed(
    drafter: Drafter, texts: Sequence[list[int]], prompt_lens: Sequence[int], temperature: float
) -> Replay:
    """Return how a drafter does on texts; each tree grows until it is done."""
    num_steps = num_accepted = num_calls = num_right = 0
    stated = 0.0
    for text, prompt_len in zip(texts, prompt_lens, strict=True):
        spec = SessionSpec(text[:prompt_len], seed=SEED, temperature=temperature)
        session = drafter.open(spec)
        base_len = prompt_len
        while base_len + DEPTH < len(text):
            for _ in range(MAX_CALLS):
                draft = session.propose(LIMITS)
                num_calls += 1
                if not draft.may_grow:
                    break
            if draft.tree.num_nodes:
                stated += math.exp(draft.tree.log_probs[0])
                num_right += draft.tree.token_ids[0] == text[base_len]
            num_held = draft.tree.num_held(text[base_len:])
            session.commit(base_len, text[base_len : base_len + num_held + 1])
            base_len += num_held + 1
            num_accepted += num_held
            num_steps += 1
        session.close()
    return Replay(num_steps, num_accepted, num_calls, stated, num_right)


def _rows(token_ids: Sequence[int], context_len: int) -> RowSpan:
    num_rows = len(token_ids)
    num_blocks = -(-(context_len + num_rows) // BLOCK_SIZE)
    return RowSpan(
        token_ids=tuple(token_ids),
        positions=tuple(range(context_len, context_len + num_rows)),
        parents=tuple(range(CONTEXT, num_rows - 1)),
        context_len=context_len,
        block_table=tuple(range(num_blocks)),
        logit_rows=(num_rows - 1,),
    )


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    """Print the figures."""
    for bar in asyncio.run(measure()):
        say(f"{bar.bar}: {bar.figure:.3f} ({bar.shown_target})")


if __name__ == "__main__":
    main()
