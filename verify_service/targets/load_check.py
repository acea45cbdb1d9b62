"""Runs a freshly loaded model through tree attention and compares it with transformers' own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from verify_service.targets.attention_step import LayerTraits
from verify_service.targets.kv_cache import LayerShape
from verify_service.targets.model_loading import refuse
from verify_service.targets.target import CONTEXT, FlatBatch, RowSpan
from verify_service.targets.tree_attention import TreeAttention, attach

_NUM_TOKENS = 8
_FIRST_CHUNK = 5


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """A passed check, with what it found out."""

    model: PreTrainedModel
    attention: TreeAttention
    traits: tuple[LayerTraits, ...]
    """What each layer asks for."""
    expected: torch.Tensor  # [_NUM_TOKENS - _FIRST_CHUNK, width]

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """What one token stores in each layer."""
        return tuple(each.shape for each in self.traits)

    def repeat(self, tolerance: float) -> None:
        """Compare again, relative to the largest value; raises ``ConfigurationError``."""
        _compare(self, tolerance)

    def head_has_the_last_word(self) -> bool:
        """Return whether logits are what the output head makes of hidden states, and no more."""
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers
        self.attention.begin(_chunk(0, _FIRST_CHUNK))
        hidden = _hidden(self.model, self.attention.device, 0, _FIRST_CHUNK)
        self.attention.begin(_chunk(0, _FIRST_CHUNK))
        logits = self.model(**_inputs(self.model, self.attention.device, 0, _FIRST_CHUNK)).logits
        return torch.equal(head(hidden), logits[0])


def check_tree_attention(model: PreTrainedModel, attention: TreeAttention) -> LoadCheck:
    """Attach ``attention`` to ``model`` and compare; raises ``ConfigurationError``."""
    expected = _hidden(model, attention.device, 0, _NUM_TOKENS)[_FIRST_CHUNK:]
    check = LoadCheck(model, attention, _layer_traits(model, attention), expected)
    _compare(check, 1e-3 if attention.dtype == torch.float32 else 0.1)
    return check


def _layer_traits(model: PreTrainedModel, attention: TreeAttention) -> tuple[LayerTraits, ...]:
    try:
        attach(model, attention)
        with attention.measuring() as traits:
            _hidden(model, attention.device, 0, 1)
    except (ValueError, KeyError, TypeError) as error:
        raise refuse(model.config, f"it takes no registered attention ({error})") from error
    if sorted(traits) != list(range(model.config.get_text_config().num_hidden_layers)):
        raise refuse(model.config, f"only {len(traits)} of its layers use plain attention")
    return tuple(traits[layer] for layer in sorted(traits))


def _compare(check: LoadCheck, tolerance: float) -> None:
    """Run the tokens in two chunks over a small cache, so that the stored context counts too."""
    model, attention = check.model, check.attention
    attention.allocate(check.layer_shapes, 2, _NUM_TOKENS)
    for start, stop in ((0, _FIRST_CHUNK), (_FIRST_CHUNK, _NUM_TOKENS)):
        attention.begin(_chunk(start, stop))
        hidden = _hidden(model, attention.device, start, stop)
    scale = float(check.expected.abs().max())
    difference = float((hidden - check.expected).abs().max())
    if not difference <= tolerance * scale:
        raise refuse(
            model.config,
            f"over tree attention it computes something else (off by {difference / scale:.2g})",
        )


def _chunk(start: int, stop: int) -> FlatBatch:
    num_rows = stop - start
    span = RowSpan(
        token_ids=tuple(range(start, stop)),
        positions=tuple(range(start, stop)),
        parents=tuple(range(CONTEXT, num_rows - 1)),
        context_len=start,
        block_table=(1,),
        logit_rows=(),
    )
    return FlatBatch((span,))


def _hidden(model: PreTrainedModel, device: torch.device, start: int, stop: int) -> torch.Tensor:
    """Return the last hidden states of tokens ``start`` to ``stop - 1``  # [num_tokens, width]."""
    inputs = _inputs(model, device, start, stop)
    hidden: torch.Tensor = model.base_model(**inputs).last_hidden_state
    return hidden[0].float()


def _inputs(
    model: PreTrainedModel, device: torch.device, start: int, stop: int
) -> dict[str, torch.Tensor | bool]:
    ids = torch.arange(start, stop, device=device)[None]
    token_ids = ids % model.config.get_text_config().vocab_size
    return {"input_ids": token_ids, "position_ids": ids, "use_cache": False}
