"""The GPU script without a GPU: every part runs, and what is missing costs a line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench import gpu_step
from bench.gpu_check import Comparison
from bench.gpu_choices import KINDS

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
    wanted = ["correctness", "choices", "onnx", "copy", "model", "batch", "dry run", "took"]
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
