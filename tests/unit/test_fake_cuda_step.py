"""
A whole step on a CUDA device that computes nothing: what would fail on a real one only.

Host and device tensors in one operation, a number that the host would wait for, copies within a
captured region, and types and strides that the kernel does not take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from tests.doubles.choice_cases import OPTIONS, selected
from tests.doubles.fake_cuda import CUDA, FakeCuda, FakeEvent, NoCopies
from tests.doubles.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from verify_service.engine.row_choices import DrawnChoices
from verify_service.targets.fused_layers import fuse_layers
from verify_service.targets.load_check import check_tree_attention
from verify_service.targets.model_graphs import ModelStep
from verify_service.targets.model_loading import load_model
from verify_service.targets.packed_attention import Workspace, kernel_traits
from verify_service.targets.row_buckets import RowBuckets
from verify_service.targets.static_inputs import views_of
from verify_service.targets.tree_attention import TreeAttention
from verify_service.targets.tree_kernel import KernelInputs, KernelTraits, Partials
from verify_service.targets.tree_kernel_inputs import InputLayout

MAX_ROWS = 24
NUM_BLOCKS, BLOCK_SIZE = 8, 16


class StrictKernel:
    """Looks at what the kernel is given, as a launch would: addresses and nothing else."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.num_calls = 0

    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        inputs: KernelInputs,
        traits: KernelTraits,
        partials: Partials,
        out: torch.Tensor,
    ) -> None:
        rows = (queries, keys, values, out)
        integers = [getattr(inputs, field.name) for field in fields(inputs)]
        floats = (partials.outputs, partials.maxima, partials.sums)
        assert {each.dtype for each in rows} == {self.dtype}
        assert {each.dtype for each in integers} == {torch.int64}
        assert {each.dtype for each in floats} == {torch.float32}
        for each in (*rows, *integers, *floats):
            assert each.device == CUDA
            assert each.is_contiguous()
        assert queries.shape[1:] == (traits.num_heads, traits.head_dim)
        self.num_calls += 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in sorted(CONFIGS)), ("qwen3", torch.float16)],
)
def test_a_captured_step_never_leaves_the_device(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    save_tiny_model(CONFIGS[name], tmp_path)
    with torch.inference_mode():
        model = load_model(tmp_path, dtype)
        attention = TreeAttention(dtype, torch.device("cpu"), exact=False)
        traits = check_tree_attention(model, attention).traits
        fuse_layers(model, attention, None)
    attention.allocate([each.shape for each in traits], 1, BLOCK_SIZE)
    cuda, kernel = FakeCuda(), StrictKernel(dtype)
    model, attention = cuda.moved((model, attention))
    attention.device = CUDA
    heads = max(each.shape.num_kv_heads for each in traits)
    every = tuple(RowBuckets(MAX_ROWS, 4, heads).shapes())
    shapes = (every[0], every[-1])

    with cuda.running():
        attention.allocate([each.shape for each in traits], NUM_BLOCKS, BLOCK_SIZE)
        workspace = Workspace(kernel_traits(traits, BLOCK_SIZE), every, CUDA)
        logits = torch.zeros((MAX_ROWS, VOCAB_SIZE), device=CUDA)
        step = ModelStep(model, attention, workspace, kernel, logits)
        for shape in shapes:
            layout = InputLayout(shape, 4, 16)
            packed = torch.zeros(layout.size, dtype=torch.int64, device=CUDA)
            with NoCopies():
                output = step(views_of(packed, layout), shape)

            assert (output.device, output.dtype) == (CUDA, torch.float32)
            assert output.shape == (shape.num_rows, VOCAB_SIZE)
    assert kernel.num_calls == len(shapes) * len(traits)


@pytest.mark.timeout(120)
def test_choosing_for_all_rows_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option but those left to the host; the one copy back is read by nobody yet."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    rows = [selected(number, params) for number, params in enumerate(OPTIONS)]

    with FakeCuda().running():
        logits = torch.zeros((5 * len(rows), 3000), device=CUDA)
        chosen = DrawnChoices(logits, rows)

    assert not chosen.is_here()


@pytest.mark.parametrize(
    "fault",
    [
        lambda values: values.sum().item(),
        lambda values: values.nonzero(),
        lambda values: values[0] if values[0] > 0 else values[1],
        lambda values: values + torch.ones(4),
        lambda values: values[torch.tensor([1, 2])],
        lambda values: torch.arange(4).to(CUDA),
        lambda values: values.to("cpu"),
    ],
    ids=["item", "nonzero", "branch", "mixed", "host index", "copied in", "copied out"],
)
def test_the_fake_device_finds_what_a_real_one_would(
    fault: Callable[[torch.Tensor], object],
) -> None:
    """Host round trips, mixed devices and copies: the double has teeth."""
    with FakeCuda().running(), NoCopies():
        values = torch.zeros(4, device=CUDA)
        with pytest.raises(Exception, match=r"cuda|item|scalar|shape|device|copy|nonzero"):
            fault(values)
