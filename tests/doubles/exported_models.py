"""Drafting models made from the tiny trained model, as this project and as others export them."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import onnx
from onnx import TensorProto, helper

from draft_service.export.exporter import ExportOptions, export_model
from draft_service.export.linear_weights import WeightKind
from draft_service.onnx_drafter import OnnxDrafter
from draft_service.onnx_manifest import GRAPH, OnnxModelFolder, read_onnx_folder
from draft_service.onnx_runtime import load_graph
from draft_service.onnx_session import OnnxOptions

TINY = Path(__file__).parent.parent / "models" / "tiny"


@cache
def exported_tiny_model(weights: WeightKind = "float32", num_head_tokens: int = 1024) -> Path:
    """Return an export of the tiny model, written once per run; takes a tenth of a second."""
    folder = Path(mkdtemp(prefix="paceline-test-")) / "tiny"
    options = ExportOptions(weights, num_head_tokens, reports=False)
    return export_model(TINY, folder, options, lambda line: None)


@cache
def usual_tiny_model(kv_type: int = TensorProto.FLOAT, padded_rows: int = 0) -> Path:
    """Return the tiny model with the signature that other exporters give a decoder."""
    folder = Path(mkdtemp(prefix="paceline-test-")) / "usual"
    folder.mkdir()
    model = onnx.load(exported_tiny_model() / GRAPH)
    _make_usual(model.graph, kv_type, padded_rows)
    onnx.save_model(model, folder / GRAPH)
    shutil.copy(TINY / "tokenizer.json", folder)
    return folder


def tiny_drafter(folder: Path | None = None, options: OnnxOptions | None = None) -> OnnxDrafter:
    """Return a drafter on an export of the tiny model; one chunk takes in a whole test prompt."""
    model: OnnxModelFolder = read_onnx_folder(folder or exported_tiny_model())
    graph, signature = load_graph(model.graph, "cpu", 1)
    return OnnxDrafter(model, graph, signature, options or OnnxOptions(chunk_tokens=256))


def _make_usual(graph: onnx.GraphProto, kv_type: int, padded_rows: int) -> None:
    """Give a graph of ours a mask per token, logits of every row, and a past that grows."""
    before = [
        _node("Shape", ["input_ids"], "u_shape"),
        _node("Shape", ["input_ids"], "u_rows", start=1, end=2),
        _node("ReduceProd", ["u_shape"], "u_count", keepdims=0),
        _constant("u_zero", 0),
        _constant("u_one", 1),
        _node("Range", ["u_zero", "u_count", "u_one"], "logit_rows"),
        _node("Shape", ["usual_mask"], "u_seen", start=1, end=2),
        _node("Squeeze", ["u_seen"], "u_seen_count"),
        _node("Squeeze", ["u_rows"], "u_row_count"),
        _node("Range", ["u_zero", "u_seen_count", "u_one"], "u_columns"),
        _node("Sub", ["u_seen_count", "u_row_count"], "u_past"),
        _node("Range", ["u_past", "u_seen_count", "u_one"], "u_row_places"),
        helper.make_node("Unsqueeze", ["u_row_places", "u_axis"], ["u_row_column"]),
        _node("LessOrEqual", ["u_columns", "u_row_column"], "u_causal"),
        helper.make_node("Cast", ["usual_mask"], ["u_bool"], to=TensorProto.BOOL),
        helper.make_node("Unsqueeze", ["u_bool", "u_axis"], ["u_wide"]),
        _node("And", ["u_wide", "u_causal"], "attention_mask"),
    ]
    graph.initializer.append(helper.make_tensor("u_axis", TensorProto.INT64, [1], [1]))
    after = [_node("Concat", ["u_shape", "u_minus"], "u_by_row", axis=0)]
    graph.initializer.append(helper.make_tensor("u_minus", TensorProto.INT64, [1], [-1]))
    after.append(_node("Reshape", ["logits", "u_by_row"], "u_logits"))
    graph.initializer.append(helper.make_tensor("u_low", TensorProto.FLOAT, [], [9.0]))
    pads = helper.make_tensor("u_pads", TensorProto.INT64, [6], [0, 0, 0, 0, 0, padded_rows])
    graph.initializer.append(pads)
    # Padding of a vocabulary may well have the largest logits: nothing has trained it.
    after.append(_node("Pad", ["u_logits", "u_pads", "u_low"], "usual_logits"))
    inputs = [value for value in graph.input if value.name in ("input_ids", "position_ids")]
    inputs.append(
        helper.make_tensor_value_info("usual_mask", TensorProto.INT64, ["batch", "past + rows"])
    )
    outputs = [
        helper.make_tensor_value_info("usual_logits", TensorProto.FLOAT, ["batch", "rows", "vocab"])
    ]
    for value in [each for each in graph.input if each.name.startswith("past")]:
        present = value.name.replace("past_key_values", "present")
        dims: list[str | int] = ["batch", 2, "past", 32]
        before.append(
            helper.make_node("Cast", [f"usual_{value.name}"], [value.name], to=TensorProto.FLOAT)
        )
        inputs.append(helper.make_tensor_value_info(f"usual_{value.name}", kv_type, dims))
        after.append(_node("Concat", [value.name, present], f"u_{present}", axis=2))
        after.append(helper.make_node("Cast", [f"u_{present}"], [f"usual_{present}"], to=kv_type))
        outputs.append(helper.make_tensor_value_info(f"usual_{present}", kv_type, dims))
    nodes = [*before, *graph.node, *after]
    for field in (graph.node, graph.input, graph.output):
        del field[:]
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    _rename(graph)


def _rename(graph: onnx.GraphProto) -> None:
    """Let the inner values step aside and the outer ones take their usual names."""
    outer = {value.name for value in (*graph.input, *graph.output)}
    inner = {name.removeprefix("usual_") for name in outer if name.startswith("usual_")}
    inner |= {"attention_mask"}
    usual = {"usual_mask": "attention_mask"}

    def renamed(name: str) -> str:
        if name in usual:
            return usual[name]
        if name.startswith("usual_"):
            return name.removeprefix("usual_")
        return f"inner_{name}" if name in inner else name

    for node in graph.node:
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    for value in (*graph.input, *graph.output):
        value.name = renamed(value.name)


def _node(operator: str, inputs: list[str], output: str, **attributes: int) -> onnx.NodeProto:
    node = helper.make_node(operator, inputs, [output])
    node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
    return node


def _constant(name: str, value: int) -> onnx.NodeProto:
    return helper.make_node(
        "Constant", [], [name], value=helper.make_tensor(name, TensorProto.INT64, [], [value])
    )
