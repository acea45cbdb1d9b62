"""
Times one step of the torch target by number of rows, beside transformers' own float32 step.

    python -m bench.target_step --model DIR [--threads N] [--repeats N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan
from verify_service.targets.torch_model import TorchTarget

ROWS = (1, 2, 4, 6, 8, 12, 16, 24)
CONTEXTS = (64, 512)
BLOCK_SIZE = 16


def main() -> None:
    """Print one line per context length and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()

    target = TorchTarget.load(options.model, num_threads=options.threads)
    target.allocate_kv(64, BLOCK_SIZE)
    plain = _PlainSteps(options.model)
    print(f"{'context':>7} {'rows':>4} {'ms':>7} {'x 1 row':>7} {'plain ms':>8} {'plain/ours':>10}")
    for context_len in CONTEXTS:
        target.forward(FlatBatch((chain(0, context_len),)))
        plain.prefill(context_len)
        one_row = 0.0
        for num_rows in ROWS:
            batch = FlatBatch((chain(context_len, num_rows),))
            ours = _median_ms(partial(target.forward, batch), options.repeats)
            theirs = _median_ms(partial(plain.step, num_rows), options.repeats)
            one_row = one_row or ours
            print(
                f"{context_len:7} {num_rows:4} {ours:7.1f} {ours / one_row:7.2f} {theirs:8.1f} "
                f"{theirs / ours:10.2f}",
                flush=True,
            )


class _PlainSteps:
    """Transformers' own forward pass over its own cache, in float32."""

    def __init__(self, model_dir: Path) -> None:
        auto: Any = AutoModelForCausalLM
        self._model = auto.from_pretrained(model_dir, dtype=torch.float32, local_files_only=True)
        self._cache: Any = DynamicCache(config=self._model.config)

    @torch.inference_mode()
    def prefill(self, num_tokens: int) -> None:
        """Start over with a context of this length."""
        self._cache = DynamicCache(config=self._model.config)
        self._run(range(num_tokens))

    @torch.inference_mode()
    def step(self, num_rows: int) -> None:
        """Run rows after the context and take them back."""
        self._cache.activate_past_recording()
        self._run(range(num_rows))
        self._cache.crop(-num_rows)

    def _run(self, token_ids: Sequence[int]) -> None:
        self._model(torch.tensor([list(token_ids)]), cache=self._cache, use_cache=True)


def chain(context_len: int, num_rows: int) -> RowSpan:
    """Return rows that follow one another after a context, with logits for each."""
    num_blocks = -(-(context_len + num_rows) // BLOCK_SIZE)
    return RowSpan(
        token_ids=tuple(range(num_rows)),
        positions=tuple(range(context_len, context_len + num_rows)),
        parents=tuple(range(CONTEXT, num_rows - 1)),
        context_len=context_len,
        block_table=tuple(range(num_blocks)),
        logit_rows=tuple(range(num_rows)),
    )


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


if __name__ == "__main__":
    main()
