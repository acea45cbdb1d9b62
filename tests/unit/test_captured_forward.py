"""Which graph a batch is replayed in, and what lies in its buffers meanwhile."""

from __future__ import annotations

import pytest
import torch

from tests.doubles.recorded_graphs import RecordingGraphs
from tests.doubles.target_spans import SpanSource, with_logit_rows
from verify_service.targets.captured_forward import CapturedForward, KvRoom, PlainRuns
from verify_service.targets.row_buckets import GraphShape, RowBuckets
from verify_service.targets.static_inputs import StepInputs
from verify_service.targets.target import FlatBatch, RowSpan

CPU = torch.device("cpu")
BLOCK = 4
NUM_BLOCKS = 32
SPARE = NUM_BLOCKS * BLOCK
ROOM = KvRoom(BLOCK, SPARE, max_blocks=24)


class SlotStore:
    """A computation that stores each row's token in its slot and says what it read."""

    def __init__(self) -> None:
        self.slots = torch.zeros(SPARE + 1, dtype=torch.int64)
        self.num_rows_seen: list[int] = []

    def __call__(self, inputs: StepInputs, shape: GraphShape) -> torch.Tensor:
        self.num_rows_seen.append(shape.num_rows)
        self.slots.index_copy_(0, inputs.slots, inputs.token_ids)
        rows = torch.stack((inputs.token_ids, inputs.kernel.positions), dim=1)
        return rows[inputs.logit_rows].float()


def chain(*token_ids: int, at: int = 0, first_block: int = 0) -> RowSpan:
    source = SpanSource(tuple(range(first_block, first_block + 24)), list(range(at)))
    return source.chain(token_ids)


def made(
    graphs: RecordingGraphs | PlainRuns, compute: SlotStore, *, max_rows: int = 32, most: int = 48
) -> CapturedForward:
    buckets = RowBuckets(max_rows, max_spans=4, num_kv_heads=2, num_processors=8)
    return CapturedForward(compute, buckets, ROOM, graphs, CPU, max_graphs=most)


def test_a_batch_is_padded_up_to_the_next_captured_size() -> None:
    compute = SlotStore()
    forward = made(RecordingGraphs(), compute)

    output = forward.forward(FlatBatch((chain(5, 6, 7),)))

    assert compute.num_rows_seen == [4, 4]
    assert output is not None
    assert output.tolist() == [[5, 0], [6, 1], [7, 2]]


def test_padding_rows_write_to_the_slot_that_nobody_owns() -> None:
    """B012: what only fills a graph must never touch another sequence's KV."""
    compute = SlotStore()
    forward = made(RecordingGraphs(), compute)
    forward.capture_all()
    compute.slots.fill_(-7)

    forward.forward(FlatBatch((chain(5, 6, 7, at=2, first_block=3),)))

    written = (compute.slots != -7).nonzero().flatten().tolist()
    assert written == [3 * BLOCK + 2, 3 * BLOCK + 3, 4 * BLOCK, SPARE]


def test_a_size_is_captured_once_and_replayed_after_that() -> None:
    graphs = RecordingGraphs()
    forward = made(graphs, SlotStore())

    outputs = [forward.forward(FlatBatch((chain(*range(n, n + 3)),))) for n in (10, 20)]

    assert len(graphs.graphs) == 1
    assert graphs.num_replays == 2
    assert outputs[1] is not None
    assert outputs[1][:, 0].tolist() == [20, 21, 22]


def test_what_a_larger_step_left_in_the_buffers_does_not_show_in_a_smaller_one() -> None:
    compute = SlotStore()
    forward = made(RecordingGraphs(), compute)
    forward.capture_all()
    forward.forward(FlatBatch((chain(*range(40, 60)), chain(9, 9, first_block=8))))
    compute.slots.fill_(-7)

    output = forward.forward(FlatBatch((chain(5, at=1),)))

    assert output is not None
    assert output.tolist() == [[5, 1]]
    assert (compute.slots != -7).nonzero().flatten().tolist() == [1]


def test_only_wanted_rows_come_out() -> None:
    forward = made(RecordingGraphs(), SlotStore())
    spans = with_logit_rows(chain(5, 6, 7), [2]), with_logit_rows(chain(8, 9, first_block=8), [])

    output = forward.forward(FlatBatch(spans))

    assert output is not None
    assert output.tolist() == [[7, 2]]


@pytest.mark.parametrize(
    "batch",
    [
        FlatBatch((chain(*range(33)),)),
        FlatBatch(tuple(chain(1, first_block=index) for index in range(5))),
        FlatBatch((SpanSource(tuple(range(32)), list(range(96))).chain([1]),)),
    ],
    ids=["more rows than the largest", "more spans", "longer than a block table"],
)
def test_what_fits_no_graph_is_left_to_the_caller(batch: FlatBatch) -> None:
    graphs = RecordingGraphs()
    forward = made(graphs, SlotStore())
    forward.capture_all()

    assert forward.forward(batch) is None
    assert graphs.num_replays == 0


def test_no_more_graphs_than_allowed_and_the_next_larger_serves() -> None:
    graphs, compute = RecordingGraphs(), SlotStore()
    forward = made(graphs, compute, most=2)
    forward.capture_all()
    compute.num_rows_seen.clear()

    output = forward.forward(FlatBatch((chain(5, 6),)))

    assert forward.num_graphs == len(graphs.graphs) == 2
    assert compute.num_rows_seen == [32]
    assert output is not None
    assert output[:, 0].tolist() == [5, 6]


def test_a_long_chain_runs_as_pieces_in_the_order_of_its_rows() -> None:
    compute = SlotStore()
    forward = made(RecordingGraphs(), compute, max_rows=96)
    span = chain(*range(100, 180), at=3)

    output = forward.forward(FlatBatch((span,)))

    assert output is not None
    assert output[:, 0].tolist() == list(span.token_ids)
    assert output[:, 1].tolist() == list(span.positions)
    assert compute.slots[3:83].tolist() == list(span.token_ids)


def test_without_graphs_the_same_is_computed() -> None:
    forward = made(PlainRuns(), SlotStore())
    forward.capture_all()

    output = forward.forward(FlatBatch((chain(5, 6, 7),)))

    assert output is not None
    assert output.tolist() == [[5, 0], [6, 1], [7, 2]]
