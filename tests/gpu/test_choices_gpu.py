"""On a GPU: choices of all rows at once against the same rows asked one by one."""

from __future__ import annotations

import pytest
import torch

from tests.doubles.choice_cases import OPTIONS, TREE, selected
from verify_service.engine.row_choices import choose_all
from verify_service.engine.sampler import choose

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
VOCAB = 32_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_every_row_is_chosen_as_it_would_be_alone(dtype: torch.dtype) -> None:
    """Bfloat16 ties often: what ties at a cut is settled by id."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rows = [selected(seed, params) for seed in range(9) for params in OPTIONS]
    num_rows = len(rows) * (1 + TREE.num_nodes)
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn((num_rows, VOCAB), generator=generator) * 3).to(dtype).float().cuda()

    chosen = choose_all(logits, rows)

    assert chosen is not None
    num_sure = row = 0
    for each in rows:
        for node in range(1 + TREE.num_nodes):
            if chosen.is_sure(row):
                expected = choose(logits[row], each.turn.sequence, TREE.path(node))
                ours = chosen.at(row)
                assert (ours and ours.token_id) == (expected and expected.token_id)
                num_sure += 1
            row += 1
    assert num_sure >= 0.99 * num_rows
