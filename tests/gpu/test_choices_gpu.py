"""On a GPU: choices of all rows at once against the same rows asked one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.tree import TokenTree
from verify_service.engine.draft_selection import Selected
from verify_service.engine.row_choices import choose_all
from verify_service.engine.sampler import choose
from verify_service.engine.sampling import SamplingParams, TokenLimits
from verify_service.engine.scheduler import Turn
from verify_service.engine.sequence import Drafting, Request, Sequence

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
VOCAB = 32_000
TREE = TokenTree((5, 6, 7, 8), (0, 0, 1, 3))
SAMPLED = SamplingParams(temperature=0.8)
KINDS = [
    SamplingParams(),
    SAMPLED,
    replace(SAMPLED, top_k=40),
    replace(SAMPLED, top_p=0.9),
    replace(SAMPLED, top_k=50, top_p=0.95, min_p=0.01),
    replace(SAMPLED, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2),
    replace(SAMPLED, logit_bias={3: 4.0, 9: -100.0}),
]


def _selected(params: SamplingParams, seed: int) -> Selected:
    limits = TokenLimits(max_tokens=90, min_tokens=3, stop_token_ids=frozenset({2}))
    request = Request(
        seed,
        (3, 4, 5, 4),
        (5, 6),
        sampling=replace(params, seed=seed),
        limits=limits,
        num_logprobs=seed % 3 or None,
    )
    return Selected(Turn(Sequence(request, Drafting(), 0.0, 8), 1, is_decode=True), TREE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_every_row_is_chosen_as_it_would_be_alone(dtype: torch.dtype) -> None:
    """Bfloat16 ties often: what ties at a cut is settled by id."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    selected = [_selected(params, seed) for seed in range(9) for params in KINDS]
    num_rows = len(selected) * (1 + TREE.num_nodes)
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn((num_rows, VOCAB), generator=generator) * 3).to(dtype).float().cuda()

    chosen = choose_all(logits, selected)

    assert chosen is not None
    num_sure = row = 0
    for each in selected:
        for node in range(1 + TREE.num_nodes):
            if chosen.is_sure(row):
                expected = choose(logits[row], each.turn.sequence, TREE.path(node))
                ours = chosen.at(row)
                assert (ours and ours.token_id) == (expected and expected.token_id)
                num_sure += 1
            row += 1
    assert num_sure >= 0.99 * num_rows
