"""The GPU script without a GPU: every part runs, and what is missing costs a line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench import gpu_onnx, gpu_step
from bench.gpu_check import Comparison
from bench.gpu_choices import KINDS
from paceline.errors import ConfigurationError

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny operations only wait for each other on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.timeout(240)
def test_a_dry_run_goes_through_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_step.main(["--dry-run"]) == 0

    lines = capsys.readouterr().out.splitlines()
    starts = [line.split("  ")[0].strip() for line in lines]
    wanted = [
        *("correctness", "choices", "kernel", "onnx", "copy", "ids", "model", "batch"),
        *("dry run", "took"),
    ]
    assert [start for start in starts if start in wanted] == wanted
    table = [line.split() for line in lines if line.startswith("    ")]
    plan = gpu_step.DRY
    assert [(int(row[0]), int(row[1])) for row in table] == [
        (spans, rows) for spans in plan.batches for rows in plan.rows
    ]
    assert sum(line.startswith("torch target") for line in lines) == len(plan.rows)
    sampling = [line for line in lines if line.startswith("sampling")]
    assert len(sampling) == len(plan.engine_batches) * len(KINDS)
    assert sum(line.startswith("engine") for line in lines) == len(plan.engine_batches)


@WITHOUT_GPU
@pytest.mark.timeout(120)
def test_without_a_gpu_it_checks_and_says_that_nothing_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gpu_step.main([]) == 0

    printed = capsys.readouterr().out
    assert "no CUDA device: nothing is measured" in printed
    assert "0 wrong" in printed
    assert "GB/s" not in printed


def test_the_drafter_is_checked_on_cuda_where_that_provider_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With no folder named the tiny model is exported; here the CPU stands in for CUDA."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [gpu_onnx.CUDA])
    load = gpu_onnx._drafter
    monkeypatch.setattr(gpu_onnx, "_drafter", lambda folder, provider: load(folder, "cpu"))

    assert gpu_onnx.check_drafter(None)
    assert "onnx         tiny: 20 of 20 best paths as on the CPU" in capsys.readouterr().out


def test_a_cuda_provider_that_cannot_load_the_drafter_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listed as available, it may still lack its libraries."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [gpu_onnx.CUDA])

    def refuse(folder: object, provider: str) -> None:
        raise ConfigurationError("libcudnn is missing")

    monkeypatch.setattr(gpu_onnx, "_drafter", refuse)

    assert not gpu_onnx.check_drafter(None)
    assert "FAILED: the drafter cannot be loaded" in capsys.readouterr().out


def test_what_is_wrong_is_measured_all_the_same_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has a GPU for minutes wants all that can be had of it."""
    monkeypatch.setattr(gpu_step, "run_checks", lambda machine, onnx: False)
    monkeypatch.setattr(gpu_step.Bench, "steps", lambda bench: None)
    monkeypatch.setattr(gpu_step.Bench, "sampling", lambda bench: None)
    monkeypatch.setattr(gpu_step.Bench, "target", lambda bench: None)

    assert gpu_step.main(["--dry-run"]) == 1
    printed = capsys.readouterr().out
    assert "of something that is wrong" in printed
    assert "GB/s" in printed


def test_a_part_that_fails_costs_a_line_and_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def part() -> bool:
        raise RuntimeError("out of memory\nand a long story")

    assert not gpu_step.attempt("steps", part)
    assert capsys.readouterr().out.strip() == "steps        failed: RuntimeError: out of memory"


def test_a_choice_within_the_near_tie_is_no_fault_and_one_beyond_is() -> None:
    compared = Comparison()
    compared.add(torch.tensor([1.05, 1.0]), torch.tensor([1.0, 1.02]))
    compared.add(torch.tensor([1.5, 1.0]), torch.tensor([1.0, 1.5]))

    assert (compared.num_ties, compared.num_wrong) == (1, 1)
