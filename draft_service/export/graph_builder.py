"""Builds an ONNX graph node by node. It knows operators by name and no models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

OPSET = 18
CONTRIB = "com.microsoft"
_LARGEST_FILE_BYTES = 1_900_000_000
"""Protobuf messages end at 2 GiB; larger models keep their weights in a second file."""

Attribute = int | float | str | Sequence[int]
Dimension = int | str

_TYPES: dict[str, int] = {
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
    "float32": TensorProto.FLOAT,
}


class GraphBuilder:
    """Collects inputs, constants, nodes and outputs; values are referred to by name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._left_as: dict[str, str] = {}
        """From outputs of nodes to the names under which they leave the graph."""
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._num_bytes = 0

    def input(self, name: str, dtype: str, shape: Sequence[Dimension]) -> str:
        """Declare an input and return its name."""
        self._inputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], list(shape)))
        return name

    def output(self, value: str, name: str, dtype: str, shape: Sequence[Dimension]) -> None:
        """Declare that a node's output leaves the graph under a name."""
        self._left_as[value] = name
        self._outputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], list(shape)))

    def constant(self, values: npt.NDArray[np.generic], name: str = "") -> str:
        """Add a constant and return its name; equal small ones are added once."""
        key = (str(values.dtype), values.shape, values.tobytes()) if values.size <= 64 else None
        if key is not None and not name and key in self._small:
            return self._small[key]
        name = name or f"constant_{len(self._initializers)}"
        if key is not None:
            self._small[key] = name
        self._initializers.append(onnx.numpy_helper.from_array(values, name))
        self._num_bytes += values.nbytes
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of integers, as shapes and axes are given."""
        return self.constant(np.array(values, dtype=np.int64))

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        """Add a node with one output and return the output's name."""
        [output] = self.nodes(
            operator, *inputs, num_outputs=1, unused=(), domain=domain, **attributes
        )
        return output

    def nodes(
        self,
        operator: str,
        *inputs: str,
        num_outputs: int,
        unused: Collection[int] = (),
        domain: str = "",
        **attributes: Attribute,
    ) -> list[str]:
        """Add a node with several outputs and return their names; unused ones get none."""
        number = len(self._nodes)
        outputs = [
            "" if index in unused else f"{operator}_{number}_{index}"
            for index in range(num_outputs)
        ]
        node = helper.make_node(operator, list(inputs), outputs, f"{operator}_{number}")
        node.domain = domain
        for name, value in attributes.items():
            node.attribute.append(helper.make_attribute(name, value))
        self._nodes.append(node)
        return outputs

    def write(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the model with notes; very large weights go into a second file beside it."""
        for node in self._nodes:
            for values in (node.input, node.output):
                values[:] = [self._left_as.get(each, each) for each in values]
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._initializers
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)],
            ir_version=9,
            producer_name="paceline",
        )
        helper.set_model_props(model, dict(metadata))
        is_large = self._num_bytes > _LARGEST_FILE_BYTES
        onnx.save_model(
            model, str(path), save_as_external_data=is_large, location=f"{path.name}.data"
        )
