"""On a GPU: the tree kernel within captured steps, trees against chains, as on the CPU."""

from __future__ import annotations

import pytest
import torch

from bench.gpu_check import check, cuda_machine

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_a_tree_is_verified_as_its_paths_would_be(dtype: torch.dtype) -> None:
    """Every choice the same but for near ties."""
    machine = cuda_machine()
    if machine is None:
        pytest.skip("no CUDA device")

    assert check(machine, dtype)
