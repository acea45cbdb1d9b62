"""
Verification steps on a CUDA GPU: ``python -m bench.gpu_step``, at most 6 minutes, no installs.

Checks that trees are verified as chains would be, the kernel with the heads of real models and a
drafting model on onnxruntime's CUDA provider, then prints for an 8B-shaped bf16 model with random
weights: whether ids are equal there too, the copy bandwidth, steps of 1 to 64 rows at batch 1, 8,
32 and 128, their share of that bandwidth, host overhead, the cost of choosing and of accepting;
choices by sampling options; the torch target at batch 1, and what the engine around it adds per
step. Steps run in the product's own graphs. Without a GPU it checks and says so; ``--dry-run`` goes
through every part on the CPU with a tiny model, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu_batches import (
    PREFILL_SPANS,
    blocks_per_span,
    path_to,
    prefill_batches,
    tree_batch,
)
from bench.gpu_check import (
    MAX_DEEP_TIE_GAP,
    Machine,
    check,
    check_kernel,
    chosen_tokens,
    compare,
    cuda_machine,
    graphs_of,
    greedy,
    host_machine,
    noisy,
)
from bench.gpu_choices import print_choices
from bench.gpu_decoder import LLAMA_8B, TINY, Decoder, DecoderGraphs, DecoderShape
from bench.gpu_engine import EngineSteps, TimedTarget
from bench.gpu_onnx import check_drafter
from bench.gpu_target import load_target
from paceline.tree import TokenTree
from verify_service.engine.acceptance import walk
from verify_service.engine.row_cuts import RowDraw
from verify_service.targets.kv_cache import PagedKv
from verify_service.targets.row_buckets import RowBuckets
from verify_service.targets.target import FlatBatch

BUDGET_SECONDS = 330.0
ENGINE_ROWS = 16
COPY_BYTES = 2 << 30
MIN_SHARE, MAX_16_ROWS, MAX_64_ROWS, MAX_ACCEPT = 0.80, 1.10, 1.25, 0.03
HEAD = "batch  rows/seq   step ms   x plain   share of copy   host ms   choose ms   accept ms"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    shape: DecoderShape
    dtype: torch.dtype
    context: int
    batches: tuple[int, ...]
    rows: tuple[int, ...]
    repeats: int
    copy_bytes: int
    engine_batches: tuple[int, ...]
    """Sequences of the engine's steps, each of ``ENGINE_ROWS`` rows."""


FULL = Plan(
    LLAMA_8B,
    torch.bfloat16,
    512,
    (1, 8, 32, 128),
    (1, 2, 4, 8, 16, 32, 64),
    15,
    COPY_BYTES,
    (1, 8, 32),
)
DRY = Plan(TINY, torch.float32, 9, (1, 2), (1, 16), 1, 1 << 20, (1, 2))


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one kind of step."""

    device: float
    host: float
    """Packing, launching and waiting beyond the device's own time."""
    choose: float
    """Choices with noise at every row, on the device, and their copy to the host."""
    accept: float
    """Walks of all trees and one move of the accepted paths' KV."""


class Bench:
    """Measures one plan on one machine."""

    def __init__(self, machine: Machine, plan: Plan, started: float) -> None:
        self.machine = machine
        self.plan = plan
        self._started = started
        self._is_cuda = machine.device.type == "cuda"
        self.bandwidth = 0.0
        self.bars: dict[str, bool] = {}

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() - self._started > BUDGET_SECONDS

    def copy(self) -> None:
        """Print bytes per second of a large copy, read and written both counted."""
        count, device = self.plan.copy_bytes, self.machine.device
        source = torch.zeros(count, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        self.bandwidth = 2 * count / self.seconds(partial(_ignore, target.copy_, source))
        print(f"copy         {self.bandwidth / 1e9:.0f} GB/s, read and written")

    def steps(self) -> None:
        """Print the table of steps of the decoder."""
        plan, size = self.plan, self.plan.shape.block_size
        num_blocks = plan.batches[-1] * blocks_per_span(plan.context, size)
        decoder = Decoder(plan.shape, num_blocks, plan.dtype, self.machine.device)
        most = tree_batch(1, 64, plan.context, size)
        graphs = self._graphs(decoder, most, min(plan.batches[-1], PREFILL_SPANS))
        for chunk in prefill_batches(plan.batches[-1], plan.context, size):
            graphs.captured.forward(chunk)
        del graphs
        self._ids(decoder)
        print(f"model        {decoder.step_bytes / 1e9:.3g} GB of weights read per step")
        print(HEAD)
        for num_spans in plan.batches:
            plain = 0.0
            for num_rows in plan.rows:
                if self.is_late:
                    print("out of time: the rest is not measured")
                    self.bars["measured in time"] = False
                    return
                cost = self._cost(decoder, num_spans, num_rows)
                plain = plain or cost.device
                self._row(num_spans, num_rows, cost, plain, decoder.step_bytes)

    def _ids(self, decoder: Decoder) -> None:
        """Compare ids of trees and chains on the model that is measured."""
        plan, size = self.plan, decoder.shape.block_size
        num_spans = min(plan.batches[-1], 2)
        graphs = graphs_of(self.machine, decoder, num_spans, blocks_per_span(plan.context, size))
        compared, _ = compare(graphs, self.machine, num_spans, plan.context, size, MAX_DEEP_TIE_GAP)
        print(f"ids          {compared}")
        self.bars["ids equal but for near ties"] = compared.num_wrong == 0

    def target(self) -> None:
        """Print steps of the torch target at batch 1, transformers' own layers and all."""
        plan, shape = self.plan, self.plan.shape
        most = plan.engine_batches[-1]
        num_blocks = (1 + most) * 2 * blocks_per_span(plan.context, shape.block_size)
        loaded = load_target(
            shape,
            self.machine,
            plan.dtype,
            context=plan.context,
            max_rows=max(most * ENGINE_ROWS, plan.rows[-1]),
            num_blocks=num_blocks,
        )
        plain = 0.0
        for num_rows in plan.rows:
            batch = tree_batch(1, num_rows, plan.context, shape.block_size)
            seconds = self.seconds(partial(_ignore, loaded.target.forward, batch))
            plain = plain or seconds
            share = loaded.step_bytes / seconds / self.bandwidth
            print(
                f"torch target {num_rows:3} rows  {seconds * 1e3:8.3f} ms  {seconds / plain:6.3f} "
                f"x plain  {share:6.1%} of copy, packing and launching included"
            )
        timed = TimedTarget(loaded.target, self.machine.device)
        engine = EngineSteps(timed, num_blocks, shape.block_size, most, ENGINE_ROWS - 1)
        for num_sequences in plan.engine_batches:
            if not self.is_late:
                engine.print_steps(num_sequences, plan.context, plan.repeats)

    def sampling(self) -> None:
        """Print what choices cost, by sampling options."""
        plan, device = self.plan, self.machine.device
        print_choices(self._wall, device, plan.shape.vocab, plan.engine_batches, ENGINE_ROWS)

    def seconds(self, run: Callable[[], None]) -> float:
        """Return the median time of one call on the device."""
        run()
        return statistics.median(self._timed(run) for _ in range(self.plan.repeats))

    def _timed(self, run: Callable[[], None]) -> float:
        if not self._is_cuda:
            begun = time.perf_counter()
            run()
            return time.perf_counter() - begun
        begin, end = _event(), _event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def _graphs(self, decoder: Decoder, like: FlatBatch, num_spans: int) -> DecoderGraphs:
        """Return graphs up to ``num_spans`` spans like that of a batch."""
        span = like.spans[0]
        buckets = RowBuckets(
            num_spans * span.num_rows,
            num_spans,
            decoder.shape.num_kv_heads,
            num_processors=self.machine.num_processors,
        )
        machine = self.machine
        blocks = len(span.block_table)
        return DecoderGraphs(decoder, buckets, blocks, machine.graphs, machine.kernel)

    def _cost(self, decoder: Decoder, num_spans: int, num_rows: int) -> StepCost:
        plan = self.plan
        batch = tree_batch(num_spans, num_rows, plan.context, decoder.shape.block_size)
        captured = self._graphs(decoder, batch, num_spans).captured
        graph = captured.prepare(batch)
        if graph is None:
            raise RuntimeError(f"no graph fits {batch.num_rows} rows")
        device = self.seconds(graph.replay)
        count = batch.num_logit_rows

        def step(draws: Sequence[RowDraw]) -> list[int]:
            logits = captured.forward(batch)
            return [] if logits is None else chosen_tokens(logits, draws)

        with_host = self._wall(lambda: step(greedy(count)))
        with_noise = self._wall(lambda: step(noisy(count)))
        choices = step(greedy(count))
        accept = self._wall(lambda: _accept(decoder.kv, batch, choices))
        host = max(with_host - device, 0.0)
        return StepCost(device, host, max(with_noise - with_host, 0.0), accept)

    def _wall(self, run: Callable[[], object]) -> float:
        run()
        self._wait()
        times: list[float] = []
        for _ in range(self.plan.repeats):
            begun = time.perf_counter()
            run()
            self._wait()
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def _wait(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()

    def _row(
        self, num_spans: int, num_rows: int, cost: StepCost, plain: float, step_bytes: int
    ) -> None:
        share, ratio = step_bytes / cost.device / self.bandwidth, cost.device / plain
        print(
            f"{num_spans:5}  {num_rows:8}  {cost.device * 1e3:8.3f}  {ratio:8.3f}  {share:14.1%}  "
            f"{cost.host * 1e3:8.3f}  {cost.choose * 1e3:10.3f}  {cost.accept * 1e3:10.3f}"
        )
        if num_spans == 1:
            self.bars |= _bars(num_rows, share, ratio, cost.accept / cost.device)


def _bars(num_rows: int, share: float, ratio: float, accept: float) -> dict[str, bool]:
    match num_rows:
        case 1:
            return {f"plain step >= {MIN_SHARE:.0%} of the copy bandwidth": share >= MIN_SHARE}
        case 16:
            return {
                f"16 rows <= {MAX_16_ROWS:.2f} plain steps": ratio <= MAX_16_ROWS,
                f"accept and commit <= {MAX_ACCEPT:.0%} of the step": accept <= MAX_ACCEPT,
            }
        case 64:
            return {f"64 rows <= {MAX_64_ROWS:.2f} plain steps": ratio <= MAX_64_ROWS}
        case _:
            return {}


def _accept(kv: PagedKv, batch: FlatBatch, choices: Sequence[int]) -> None:
    """Walk every tree and move the KV of a path of the usual length to where it belongs."""
    sources: list[int] = []
    first_row = 0
    for span in batch.spans:
        tree = TokenTree(tuple(range(span.num_rows - 1)), span.parents[1:])
        of_span = choices[first_row : first_row + span.num_rows]
        walk(tree, partial(_choice_at, of_span), int, len(of_span))
        first = span.block_table[0] * kv.block_size + span.context_len
        sources += [first + row for row in path_to(span.num_rows - 1)]
        first_row += span.num_rows
    kv.move(sources, sources)


def _choice_at(choices: Sequence[int], node: int, path: Sequence[int]) -> int:
    del path
    return choices[node]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has none


def _ignore(run: Callable[[Any], object], argument: object) -> None:
    """Call for its time alone."""
    run(argument)


def attempt(name: str, part: Callable[[], bool | None]) -> bool:
    """Run one part; a part that cannot run costs a line, not the rest."""
    try:
        return part() is not False
    except Exception as error:  # compilers, drivers and torch raise kinds of their own
        lines = str(error).strip().splitlines() or ["no cause given"]
        print(f"{name:12} failed: {type(error).__name__}: {lines[0][:160]}")
        return False


def run_checks(machine: Machine | None, onnx: Path | None) -> bool:
    """Compare without measuring; False: something is wrong."""
    kinds = [(host_machine(), torch.float32)]
    if machine is not None and machine.device.type == "cuda":
        kinds += [(machine, torch.float16), (machine, torch.bfloat16)]
    results = [attempt("correctness", partial(check, *kind)) for kind in kinds]
    if machine is not None:
        results.append(attempt("kernel", partial(check_kernel, machine)))
    results.append(attempt("onnx", partial(check_drafter, onnx)))
    return all(results)


def run_parts(
    machine: Machine | None, plan: Plan, started: float, options: argparse.Namespace
) -> bool:
    """Run every part that the machine allows; False: something is wrong or missed its bar."""
    results = [run_checks(machine, options.onnx)]
    if machine is None or options.check_only:
        return all(results)
    if not all(results):
        print("figures      follow all the same, of something that is wrong: see above")
    bench = Bench(machine, plan, started)
    parts = {
        "copy": bench.copy,
        "steps": bench.steps,
        "sampling": bench.sampling,
        "torch target": bench.target,
    }
    for name, part in parts.items():
        if bench.is_late:
            print(f"{name:12} out of time: not measured")
        else:
            results.append(attempt(name, part))
    if machine.device.type != "cuda":
        print("dry run      every part ran on the CPU; no figure above means anything")
        return all(results)
    for name, is_met in bench.bars.items():
        print(f"bar          {name}: {'met' if is_met else 'MISSED'}")
    return all(results) and all(bench.bars.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure where there is a GPU, and return 0 unless something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check-only", action="store_true", help="measure nothing")
    parser.add_argument("--dry-run", action="store_true", help="every part on the CPU, tiny")
    parser.add_argument("--onnx", type=Path, default=None, help="an exported draft model's folder")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with torch.inference_mode():
        machine = host_machine() if options.dry_run else cuda_machine()
        plan = DRY if options.dry_run else FULL
        is_right = run_parts(machine, plan, started, options)
    print(f"took         {time.monotonic() - started:.0f} s")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
