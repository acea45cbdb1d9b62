"""
Paged tree attention for GPUs: packing and reference against the CPU's attention, and the Triton
kernel, in Triton's interpreter, against the reference. Where ``triton`` is missing (CPU-only builds
of torch) the last part is skipped.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.interpreter_run import needs_interpreter, needs_triton, run_inner_tests
from tests.doubles.kernel_case import BLOCK, NUM_BLOCKS, SHAPES, TRAITS, Case
from verify_service.targets.row_buckets import MAX_SPAN_ROWS
from verify_service.targets.target import RowSpan
from verify_service.targets.tree_kernel import KernelTraits
from verify_service.targets.tree_kernel_inputs import ALIGNMENT, ancestor_bits


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**16), shapes=SHAPES, traits=TRAITS)
def test_the_reference_attends_as_the_cpu_does(
    seed: int, shapes: list[tuple[int, int]], traits: KernelTraits
) -> None:
    case = Case(seed, shapes, traits)
    rows = case.batch.num_rows

    torch.testing.assert_close(case.reference()[:rows], case.on_cpu(), rtol=1e-4, atol=1e-5)


def test_padding_rows_touch_nothing() -> None:
    case = Case(1, [(5, 5)], KernelTraits(4, 2, 16, BLOCK, 0.25))
    spare = case.packed[case.where["slots"]][case.batch.num_rows :]

    assert case.shape.num_rows == 8
    assert set(spare.tolist()) == {NUM_BLOCKS * BLOCK}
    assert not case.reference()[5:].any()


def test_every_part_of_the_packed_integers_starts_at_an_aligned_address() -> None:
    """One pattern of addresses, whatever the graph: the kernel is compiled once for all of them."""
    case = Case(1, [(5, 3)], KernelTraits(4, 2, 16, BLOCK, 0.25))
    starts = {where.start % ALIGNMENT for where in case.where.values()}
    used = [case.layout.used(count) for count in range(3)]

    assert starts == {0}
    assert used[0] == case.where["block_tables"].start
    assert used[2] - used[1] == used[1] - used[0] == case.layout.max_blocks


def test_the_last_of_64_rows_keeps_its_sign_bit() -> None:
    rows = MAX_SPAN_ROWS
    chain = RowSpan((1,) * rows, tuple(range(rows)), tuple(range(-1, rows - 1)), 0, (0,), ())

    assert int(ancestor_bits(chain)[-1]) == -1


@needs_triton
@pytest.mark.timeout(300)
def test_the_kernel_agrees_with_the_reference_in_the_interpreter() -> None:
    run_inner_tests(__file__, num_tests=1)


@needs_interpreter
@pytest.mark.timeout(240)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**16), shapes=SHAPES, traits=TRAITS)
def test_inner_kernel_equals_reference(
    seed: int, shapes: list[tuple[int, int]], traits: KernelTraits
) -> None:
    case = Case(seed, shapes, traits)

    torch.testing.assert_close(case.kernel(), case.reference(), rtol=1e-4, atol=1e-5)
