"""
Verification steps on a CUDA GPU: ``python -m bench.gpu_step``, at most 6 minutes, no installs.

Checks that trees are verified as chains would be, then prints for an 8B-shaped bf16 model with
random weights: the copy bandwidth, steps of 1 to 64 rows at batch 1, 8, 32 and 128, their share of
that bandwidth, host overhead and the cost of accepting. Without a GPU it checks and says so.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from bench.gpu_decoder import LLAMA_8B, TINY, Decoder, DecoderShape, StaticStep
from paceline.tree import TokenTree
from verify_service.engine.acceptance import walk
from verify_service.targets.row_buckets import MAX_SPAN_ROWS, RowBuckets, num_tiles_of
from verify_service.targets.target import FlatBatch, RowSpan

BUDGET_SECONDS = 330.0
CONTEXT = 512
ROWS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = (1, 8, 32, 128)
MAX_TIE_GAP = 0.1
"""Logits this close count as tied; with random weights their standard deviation is about 1."""
COPY_BYTES = 2 << 30
MIN_SHARE, MAX_16_ROWS, MAX_64_ROWS, MAX_ACCEPT = 0.80, 1.10, 1.25, 0.03


def spans_of(
    shape: DecoderShape, num_spans: int, num_rows: int, context: int, *, tree: bool
) -> FlatBatch:
    """Return a batch of equal spans; ``tree``: two branches below each row, else one chain."""
    per_span = -(-(context + MAX_SPAN_ROWS) // shape.block_size)
    parents = [(row - 1) // 2 if tree and row else row - 1 for row in range(num_rows)]
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return FlatBatch(
        tuple(
            RowSpan(
                token_ids=tuple((17 * row + 5 * index + 1) % 97 for row in range(num_rows)),
                positions=tuple(context + depth for depth in depths),
                parents=tuple(parents),
                context_len=context,
                block_table=tuple(range(index * per_span, (index + 1) * per_span)),
                logit_rows=tuple(range(num_rows)),
            )
            for index in range(num_spans)
        )
    )


def step_for(decoder: Decoder, batch: FlatBatch, num_processors: int) -> StaticStep:
    """Return the static step that serves a batch."""
    tiles = sum(num_tiles_of(span.num_rows) for span in batch.spans)
    buckets = RowBuckets(
        max(batch.num_rows, 1), len(batch.spans), decoder.shape.num_kv_heads, num_processors
    )
    shape = buckets.shape_for(batch.num_rows, tiles)
    if shape is None:
        raise SystemExit(f"no graph fits {batch.num_rows} rows in {tiles} tiles")
    blocks = max(len(span.block_table) for span in batch.spans)
    return StaticStep(decoder, shape, len(batch.spans), blocks)


def prefill(decoder: Decoder, shape: DecoderShape, num_spans: int, length: int) -> None:
    """Store a context for every span, in chains as long as the kernel takes."""
    for start in range(0, length, MAX_SPAN_ROWS):
        rows = min(MAX_SPAN_ROWS, length - start)
        full = spans_of(shape, num_spans, rows, start, tree=False)
        tables = spans_of(shape, num_spans, 1, length, tree=False).spans
        spans = tuple(
            RowSpan(s.token_ids, s.positions, s.parents, start, t.block_table, s.logit_rows)
            for s, t in zip(full.spans, tables, strict=True)
        )
        for first in range(0, num_spans, 16):
            chunk = FlatBatch(spans[first : first + 16])
            step = step_for(decoder, chunk, 8)
            step.load(chunk)
            step.launch()


def check(device: torch.device, dtype: torch.dtype, num_processors: int) -> bool:
    """Verify a tree and each of its paths as a chain; say whether every choice is the same."""
    context, num_rows = 11, 31
    decoder = Decoder(TINY, 256, dtype, device)
    prefill(decoder, TINY, 3, context)
    tree = spans_of(TINY, 3, num_rows, context, tree=True)
    step = step_for(decoder, tree, num_processors)
    if device.type == "cuda":
        step.capture()
    step.load(tree)
    step.launch()
    step.choices()
    tree_logits = step.logits.float().clone()
    worst, num_ties, num_wrong = 0.0, 0, 0
    for leaf in range(num_rows // 2, num_rows):
        path = _path_to(leaf)
        chain = _chain(tree, path, context)
        single = step_for(decoder, chain, num_processors)
        single.load(chain)
        single.launch()
        for index, span in enumerate(tree.spans):
            rows = [index * span.num_rows + row for row in path]
            ours = tree_logits[rows]
            theirs = single.logits.float()[index * len(path) : (index + 1) * len(path)]
            worst = max(worst, float((ours - theirs).abs().max()))
            ties, wrong = _compare(ours, theirs)
            num_ties, num_wrong = num_ties + ties, num_wrong + wrong
    print(
        f"correctness  {device.type} {str(dtype).removeprefix('torch.')}: tree against chains, "
        f"largest logit difference {worst:.2g}, {num_ties} near ties, {num_wrong} wrong"
    )
    return num_wrong == 0


def _path_to(leaf: int) -> list[int]:
    path = [leaf]
    while path[-1] > 0:
        path.append((path[-1] - 1) // 2)
    return path[::-1]


def _chain(tree: FlatBatch, path: Sequence[int], context: int) -> FlatBatch:
    return FlatBatch(
        tuple(
            RowSpan(
                token_ids=tuple(span.token_ids[row] for row in path),
                positions=tuple(range(context, context + len(path))),
                parents=tuple(range(-1, len(path) - 1)),
                context_len=context,
                block_table=span.block_table,
                logit_rows=tuple(range(len(path))),
            )
            for span in tree.spans
        )
    )


def _compare(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[int, int]:
    """Return how many choices differ by a near tie, and how many by more."""
    ties = wrong = 0
    for row in range(ours.shape[0]):
        left, right = int(ours[row].argmax()), int(theirs[row].argmax())
        if left != right:
            gap = float(theirs[row][right] - theirs[row][left])
            ties, wrong = (ties + 1, wrong) if gap <= MAX_TIE_GAP else (ties, wrong + 1)
    return ties, wrong


def gpu_seconds(run: Callable[[], None], repeats: int) -> float:
    """Return the median time of one call on the GPU."""
    run()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = _event(), _event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has none


def copy_bandwidth(device: torch.device) -> float:
    """Return bytes per second of a large copy, read and written both counted."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return 2 * COPY_BYTES / gpu_seconds(copy, 10)


def measure(device: torch.device, started: float) -> bool:
    """Print the table; say whether all bars were met."""
    properties = torch.cuda.get_device_properties(device)
    bandwidth = copy_bandwidth(device)
    print(f"gpu          {properties.name}, {properties.multi_processor_count} processors")
    print(f"copy         {bandwidth / 1e9:.0f} GB/s")
    shape = LLAMA_8B
    num_blocks = BATCHES[-1] * -(-(CONTEXT + MAX_SPAN_ROWS) // shape.block_size)
    decoder = Decoder(shape, num_blocks, torch.bfloat16, device)
    prefill(decoder, shape, BATCHES[-1], CONTEXT)
    torch.cuda.synchronize()
    print(f"model        8B-shaped bf16, {decoder.step_bytes / 1e9:.1f} GB read per step")
    print("batch  rows/seq   step ms   x plain   share of copy bandwidth   host ms   accept ms")
    bars: dict[str, bool] = {}
    for num_spans in BATCHES:
        plain = 0.0
        for num_rows in ROWS:
            if time.monotonic() - started > BUDGET_SECONDS:
                print("out of time: the rest is not measured")
                return False
            seconds, host, accept = _one(decoder, num_spans, num_rows, properties)
            plain = plain or seconds
            share = decoder.step_bytes / seconds / bandwidth
            print(
                f"{num_spans:5}  {num_rows:8}  {seconds * 1e3:8.3f}  {seconds / plain:8.3f}  "
                f"{share:24.1%}  {host * 1e3:8.3f}  {accept * 1e3:10.3f}"
            )
            if num_spans == 1:
                bars |= _bars(num_rows, share, seconds / plain, accept / seconds)
    for name, is_met in bars.items():
        print(f"bar          {name}: {'met' if is_met else 'MISSED'}")
    return all(bars.values())


def _one(
    decoder: Decoder, num_spans: int, num_rows: int, properties: object
) -> tuple[float, float, float]:
    """Return GPU time, host overhead and the cost of accepting, in seconds, of one kind of step."""
    batch = spans_of(decoder.shape, num_spans, num_rows, CONTEXT, tree=num_rows > 1)
    step = step_for(decoder, batch, int(getattr(properties, "multi_processor_count", 132)))
    step.load(batch)
    step.capture()
    seconds = gpu_seconds(step.launch, 15)
    begun = time.perf_counter()
    for _ in range(10):
        step.load(batch)
        step.launch()
        choices = step.choices()
    host = max((time.perf_counter() - begun) / 10 - seconds, 0.0)
    begun = time.perf_counter()
    for _ in range(10):
        _accept(decoder, batch, choices)
        torch.cuda.synchronize()
    accept = (time.perf_counter() - begun) / 10
    del step
    torch.cuda.empty_cache()
    return seconds, host, accept


def _accept(decoder: Decoder, batch: FlatBatch, choices: Sequence[int]) -> None:
    """Walk every tree and move the KV of a path of the usual length to where it belongs."""
    sources: list[int] = []
    first_row = 0
    for span in batch.spans:
        parents = tuple(parent for parent in span.parents[1:])
        tree = TokenTree(tuple(range(span.num_rows - 1)), parents)
        of_span = choices[first_row : first_row + span.num_rows]
        _walk(tree, of_span)
        first = span.block_table[0] * decoder.shape.block_size + span.context_len
        sources += [first + row for row in _path_to(span.num_rows - 1)]
        first_row += span.num_rows
    decoder.kv.move(sources, sources)


def _walk(tree: TokenTree, choices: Sequence[int]) -> None:
    def choose(node: int, path: Sequence[int]) -> int:
        del path
        return choices[node]

    walk(tree, choose, int, len(choices))


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


def report_onnx() -> None:
    """Say whether an ONNX drafter could run on the GPU."""
    try:
        import onnxruntime
    except ImportError:
        print("onnx         onnxruntime is absent")
        return
    providers = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" in providers:
        print("onnx         CUDA provider present; no drafter model was timed")
    else:
        print(f"onnx         no CUDA provider, only {', '.join(providers)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure where there is a GPU, and return 0 unless something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check-only", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with torch.inference_mode():
        is_right = check(torch.device("cpu"), torch.float32, 8)
        if not torch.cuda.is_available():
            print("no CUDA device: nothing was measured, the Triton kernel did not run")
            report_onnx()
            return 0 if is_right else 1
        device = torch.device("cuda")
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        for dtype in (torch.float16, torch.bfloat16):
            is_right = check(device, dtype, processors) and is_right
        report_onnx()
        if is_right and not options.check_only:
            is_right = measure(device, started)
    print(f"took         {time.monotonic() - started:.0f} s")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
