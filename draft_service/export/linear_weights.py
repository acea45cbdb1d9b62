"""How matrices get into the graph: quantized in blocks, or as floats. One class per way."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np

from draft_service.export.graph_builder import CONTRIB, GraphBuilder
from draft_service.export.quantization import (
    Bits,
    Matrix,
    quantize_blocks,
    quantize_rows,
)

WeightKind = Literal["int4", "int8", "float16", "float32"]
WEIGHT_KINDS: tuple[WeightKind, ...] = get_args(WeightKind)

_INT8_ARITHMETIC = 4
"""onnxruntime's accuracy level at which activations, too, are rounded to 8 bits, per block."""


class LinearWeights(Protocol):
    """A way to store matrices."""

    def multiply(self, graph: GraphBuilder, value: str, matrix: Matrix) -> str:
        """Return ``value @ matrix.T``; the matrix is [outputs, inputs]."""
        ...

    def look_up(self, graph: GraphBuilder, indices: str, table: Matrix) -> str:
        """Return the table's rows at the indices."""
        ...


def linear_weights(kind: WeightKind) -> LinearWeights:
    """Return the way that a kind names."""
    if kind == "int4":
        return QuantizedWeights(4)
    if kind == "int8":
        return QuantizedWeights(8)
    return FloatWeights(kind)


class QuantizedWeights:
    """Blocks of 4 or 8 bits for products, rows of 8 bits for tables."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits

    def multiply(self, graph: GraphBuilder, value: str, matrix: Matrix) -> str:
        """Return the product with the quantized matrix."""
        blocks = quantize_blocks(matrix, self._bits)
        zero_points = blocks.zero_points
        zeros = () if zero_points is None else (graph.constant(zero_points.reshape(-1)),)
        return graph.node(
            "MatMulNBits",
            value,
            graph.constant(blocks.values),
            graph.constant(blocks.scales.reshape(-1)),
            *zeros,
            domain=CONTRIB,
            K=blocks.num_columns,
            N=blocks.num_rows,
            bits=self._bits,
            block_size=blocks.block_size,
            accuracy_level=_INT8_ARITHMETIC,
        )

    def look_up(self, graph: GraphBuilder, indices: str, table: Matrix) -> str:
        """Return rows of bytes times their scales."""
        rows = quantize_rows(table)
        values = graph.node("Gather", graph.constant(rows.values), indices, axis=0)
        scales = graph.node("Gather", graph.constant(rows.scales), indices, axis=0)
        return graph.node("Mul", graph.node("Cast", values, to=1), scales)


class FloatWeights:
    """Floats of 16 or 32 bits; arithmetic is float32 either way."""

    def __init__(self, kind: WeightKind) -> None:
        self._is_half = kind == "float16"

    def multiply(self, graph: GraphBuilder, value: str, matrix: Matrix) -> str:
        """Return the product with the matrix."""
        return graph.node("MatMul", value, self._stored(graph, np.ascontiguousarray(matrix.T)))

    def look_up(self, graph: GraphBuilder, indices: str, table: Matrix) -> str:
        """Return the table's rows."""
        return graph.node("Gather", self._stored(graph, table), indices, axis=0)

    def _stored(self, graph: GraphBuilder, matrix: Matrix) -> str:
        if not self._is_half:
            return graph.constant(matrix)
        # onnxruntime unpacks this once, when it loads the graph.
        return graph.node("Cast", graph.constant(matrix.astype(np.float16)), to=1)
