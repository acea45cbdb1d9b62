"""
The graph of a decoder: the usual signature, and trees of tokens in one pass.

Inputs are ``input_ids`` and ``position_ids`` [batch, rows], ``past_key_values.N.key`` and
``.value`` [batch, kv heads, slots, head dim], and ``attention_mask`` [batch, rows, slots + rows]:
what each row sees, the past and the new rows. Models with sliding windows have a second mask,
``sliding_attention_mask``. ``logit_rows`` names the rows, counted through the batch, that get
``logits`` [rows, head tokens]. ``present.N.key`` and ``.value`` hold the new rows only, so that
no pass copies the past.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from draft_service.export.decoder_shape import DecoderShape, Layer
from draft_service.export.graph_builder import CONTRIB, Dimension, GraphBuilder
from draft_service.export.linear_weights import LinearWeights
from draft_service.export.rotary import Rotary
from draft_service.export.source_weights import Matrix, SourceWeights
from draft_service.onnx_signature import SLIDING_WINDOW
from paceline.errors import ConfigurationError

_UNSEEN = -1e9
"""Added to scores of what a row does not see. Finite: padding rows see nothing."""


@dataclass(frozen=True, slots=True)
class DecoderPlan:
    """What is written, and how."""

    shape: DecoderShape
    weights: LinearWeights
    head_weights: LinearWeights
    head_token_ids: npt.NDArray[np.int64] | None
    """Tokens that get logits; ``None``: all."""


def write_decoder(plan: DecoderPlan, source: SourceWeights, path: Path) -> None:
    """Write the graph with its weights; raises ``ConfigurationError`` for missing weights."""
    _DecoderWriter(plan, source).write(path)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Values that every layer reads."""

    masks: dict[bool, str]
    """By whether the layer slides: what to add to the scores of a key head
    # [batch, 1, queries per key * rows, slots + rows]."""
    angles: dict[Rotary, tuple[str, str]]
    """Cosines and sines  # [batch * rows, head_dim / 2]."""
    row_numbers: str
    """Where a row's angles are  # [batch, rows]."""
    sizes: str
    """How many slots and new rows there are  # [2]."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """What flows from layer to layer; it is added up together with the norm that follows."""

    hidden: str
    added: str | None
    """``None``: nothing yet, before the first layer."""


class _DecoderWriter:
    """One graph as it grows."""

    def __init__(self, plan: DecoderPlan, source: SourceWeights) -> None:
        self._plan = plan
        self._shape = plan.shape
        self._source = source
        self._graph = GraphBuilder("drafter")

    def write(self, path: Path) -> None:
        graph, shape = self._graph, self._shape
        token_ids = graph.input("input_ids", "int64", ["batch", "rows"])
        positions = graph.input("position_ids", "int64", ["batch", "rows"])
        embeddings = self._embeddings()
        hidden = self._plan.weights.look_up(graph, token_ids, embeddings)
        if shape.embedding_scale != 1.0:
            hidden = graph.node("Mul", hidden, self._scalar(shape.embedding_scale))
        past = [self._past_input(layer) for layer in range(len(shape.layers))]
        inputs = self._inputs(positions, past[0][0])
        stream = _Sum(hidden, None)
        for number, layer in enumerate(shape.layers):
            stream = self._layer(number, layer, stream, inputs, past[number])
        self._logits(stream, embeddings)
        graph.write(path, {SLIDING_WINDOW: str(shape.window)} if shape.window else {})

    def _embeddings(self) -> Matrix:
        embeddings = self._source.get("model.embed_tokens.weight")
        stated = (self._shape.num_embeddings, self._shape.hidden_size)
        if embeddings.shape != stated:
            raise ConfigurationError(
                f"the embedding is {list(embeddings.shape)} and config.json states "
                f"{list(stated)} (vocab_size, hidden_size); use a complete copy of the model"
            )
        return embeddings

    def _past_input(self, layer: int) -> tuple[str, str]:
        dims: list[Dimension] = ["batch", self._shape.num_kv_heads, "slots", self._shape.head_dim]
        key, value = (
            self._graph.input(f"past_key_values.{layer}.{part}", "float32", dims)
            for part in ("key", "value")
        )
        return key, value

    def _inputs(self, positions: str, past_key: str) -> _Inputs:
        graph = self._graph
        slides = self._shape.window is not None
        names = {False: "attention_mask"} | ({True: "sliding_attention_mask"} if slides else {})
        flat = graph.node("Reshape", graph.node("Cast", positions, to=1), graph.integers(-1, 1))
        rows = graph.node("Shape", positions)
        count = graph.node("ReduceProd", rows, keepdims=0)
        zero, one = (graph.constant(np.array(value, dtype=np.int64)) for value in (0, 1))
        return _Inputs(
            masks={slides: self._mask(name) for slides, name in names.items()},
            angles={rotary: self._angles(flat, rotary) for rotary in self._rotaries()},
            row_numbers=graph.node("Reshape", graph.node("Range", zero, count, one), rows),
            sizes=graph.node(
                "Concat",
                graph.node("Shape", past_key, start=2, end=3),
                graph.node("Shape", positions, start=1, end=2),
                axis=0,
            ),
        )

    def _mask(self, name: str) -> str:
        graph = self._graph
        sees = graph.input(name, "bool", ["batch", "rows", "slots + rows"])
        added = graph.node("Where", sees, self._scalar(0.0), self._scalar(_UNSEEN))
        of_any_head = graph.node("Unsqueeze", added, graph.integers(1))
        queries_per_key = self._shape.num_heads // self._shape.num_kv_heads
        return graph.node("Tile", of_any_head, graph.integers(1, 1, queries_per_key, 1))

    def _rotaries(self) -> Iterable[Rotary]:
        return dict.fromkeys(layer.rotary for layer in self._shape.layers)

    def _angles(self, flat_positions: str, rotary: Rotary) -> tuple[str, str]:
        frequencies = np.array([rotary.frequencies], dtype=np.float32)
        angles = self._graph.node("Mul", flat_positions, self._graph.constant(frequencies))
        return self._graph.node("Cos", angles), self._graph.node("Sin", angles)

    def _layer(
        self, number: int, layer: Layer, stream: _Sum, inputs: _Inputs, past: tuple[str, str]
    ) -> _Sum:
        prefix = f"model.layers.{number}."
        normed, hidden = self._normed_sum(stream, prefix + "input_layernorm.weight")
        attended = self._attention(number, layer, normed, inputs, past)
        if self._shape.norms_outputs:
            attended = self._norm(attended, prefix + "post_attention_layernorm.weight")
        norm = "pre_feedforward" if self._shape.norms_outputs else "post_attention"
        stream = _Sum(hidden, attended)
        normed, hidden = self._normed_sum(stream, f"{prefix}{norm}_layernorm.weight")
        fed = self._feed_forward(prefix, normed)
        if self._shape.norms_outputs:
            fed = self._norm(fed, prefix + "post_feedforward_layernorm.weight")
        return _Sum(hidden, fed)

    def _attention(
        self, number: int, layer: Layer, normed: str, inputs: _Inputs, past: tuple[str, str]
    ) -> str:
        graph, shape = self._graph, self._shape
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        prefix = f"model.layers.{number}.self_attn."
        projected = self._linear(normed, *(f"{prefix}{each}_proj" for each in "qkv"))
        by_row = graph.node("Reshape", projected, graph.integers(0, 0, -1, dim))
        by_head = graph.node("Transpose", by_row, perm=[0, 2, 1, 3])
        sizes = graph.integers(heads + kv_heads, kv_heads)
        queries_and_keys, value = graph.nodes("Split", by_head, sizes, num_outputs=2, axis=1)
        if shape.norms_queries_and_keys:
            queries_and_keys = self._head_norms(prefix, queries_and_keys)
        turned = graph.node(
            "RotaryEmbedding",
            queries_and_keys,
            inputs.row_numbers,
            *inputs.angles[layer.rotary],
            domain=CONTRIB,
        )
        sizes = graph.integers(heads, kv_heads)
        query, key = graph.nodes("Split", turned, sizes, num_outputs=2, axis=1)
        for part, fresh in (("key", key), ("value", value)):
            dims: list[Dimension] = ["batch", kv_heads, "rows", dim]
            graph.output(fresh, f"present.{number}.{part}", "float32", dims)
        seen = self._weighted(query, (past[0], key), (past[1], value), inputs, layer)
        rows_first = graph.node("Transpose", seen, perm=[0, 2, 1, 3])
        joined = graph.node("Reshape", rows_first, graph.integers(0, 0, heads * dim))
        return self._linear(joined, f"{prefix}o_proj")

    def _weighted(
        self,
        query: str,
        keys: tuple[str, str],
        values: tuple[str, str],
        inputs: _Inputs,
        layer: Layer,
    ) -> str:
        """Return the attention-weighted values; past and new rows are never joined in memory."""
        graph, shape = self._graph, self._shape
        # All queries of a key head are rows of one product.
        grouped = graph.node(
            "Reshape", query, graph.integers(0, shape.num_kv_heads, -1, shape.head_dim)
        )
        scores = graph.node(
            "Concat",
            *(
                graph.node(
                    "FusedMatMul", grouped, key, domain=CONTRIB, transB=1, alpha=shape.query_scale
                )
                for key in keys
            ),
            axis=-1,
        )
        masked = graph.node("Add", scores, inputs.masks[layer.window is not None])
        shares = graph.node("Softmax", masked, axis=-1)
        split = graph.nodes("Split", shares, inputs.sizes, num_outputs=2, axis=-1)
        parts = zip(split, values, strict=True)
        seen = graph.node("Add", *(graph.node("MatMul", share, value) for share, value in parts))
        return graph.node("Reshape", seen, graph.integers(0, shape.num_heads, -1, shape.head_dim))

    def _head_norms(self, prefix: str, queries_and_keys: str) -> str:
        """Norm each head of the queries and keys; both kinds of weights in one product."""
        graph, shape = self._graph, self._shape
        plain = graph.constant(np.ones(shape.head_dim, dtype=np.float32))
        normed = self._normed(queries_and_keys, plain)
        query, key = (
            self._source.get(f"{prefix}{each}_norm.weight") + np.float32(shape.norm_offset)
            for each in "qk"
        )
        counts = [shape.num_heads, shape.num_kv_heads]
        weights = np.repeat([query, key], counts, axis=0)[:, None]
        return graph.node("Mul", normed, graph.constant(weights))

    def _feed_forward(self, prefix: str, normed: str) -> str:
        graph = self._graph
        joined = self._linear(normed, f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj")
        size = self._shape.intermediate_size
        gate, up = graph.nodes("Split", joined, graph.integers(size, size), num_outputs=2, axis=-1)
        if self._shape.activation == "silu":
            gate = graph.node("QuickGelu", gate, domain=CONTRIB, alpha=1.0)
        else:
            gate = graph.node("FastGelu", gate, domain=CONTRIB)
        return self._linear(graph.node("Mul", gate, up), f"{prefix}mlp.down_proj")

    def _linear(self, value: str, *names: str) -> str:
        """Multiply by one matrix, or by several that read the same value, as one."""
        matrix = np.concatenate([self._source.get(f"{name}.weight") for name in names])
        product = self._plan.weights.multiply(self._graph, value, matrix)
        return self._biased(product, names)

    def _biased(self, product: str, names: Sequence[str]) -> str:
        if not any(f"{name}.bias" in self._source for name in names):
            return product
        biases = [
            self._source.get(f"{name}.bias")
            if f"{name}.bias" in self._source
            else np.zeros(len(self._source.get(f"{name}.weight")), dtype=np.float32)
            for name in names
        ]
        return self._graph.node("Add", product, self._graph.constant(np.concatenate(biases)))

    def _logits(self, stream: _Sum, embeddings: Matrix) -> None:
        graph, shape = self._graph, self._shape
        wanted = graph.input("logit_rows", "int64", ["logits"])
        normed, _ = self._normed_sum(stream, "model.norm.weight")
        flat = graph.node("Reshape", normed, graph.integers(-1, shape.hidden_size))
        rows = graph.node("Gather", flat, wanted, axis=0)
        head = embeddings if shape.ties_embeddings else self._source.get("lm_head.weight")
        if self._plan.head_token_ids is not None:
            head = head[self._plan.head_token_ids]
        logits = self._plan.head_weights.multiply(graph, rows, head)
        graph.output(logits, "logits", "float32", ["logits", len(head)])

    def _norm(self, value: str, name: str) -> str:
        return self._normed(value, self._norm_weights(name))

    def _normed_sum(self, stream: _Sum, name: str) -> tuple[str, str]:
        """Return the norm of a sum, and the sum."""
        if stream.added is None:
            return self._norm(stream.hidden, name), stream.hidden
        normed, _, _, hidden = self._graph.nodes(
            "SkipSimplifiedLayerNormalization",
            stream.hidden,
            stream.added,
            self._norm_weights(name),
            num_outputs=4,
            unused=(1, 2),
            domain=CONTRIB,
            epsilon=self._shape.epsilon,
        )
        return normed, hidden

    def _norm_weights(self, name: str) -> str:
        weights = self._source.get(name) + np.float32(self._shape.norm_offset)
        return self._graph.constant(weights)

    def _normed(self, value: str, weights: str) -> str:
        return self._graph.node(
            "SimplifiedLayerNormalization", value, weights, axis=-1, epsilon=self._shape.epsilon
        )

    def _scalar(self, value: float) -> str:
        return self._graph.constant(np.array(value, dtype=np.float32))
