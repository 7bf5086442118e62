"""A model as one ONNX file by torch's exporter: its graph, its weights, and a note of all else that must be known.

Weights beyond 2 GB do not go into one file, and a second one beside it gets lost; those models are refused.
"""

import ast
import logging
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.export.session import INPUT, onnxruntime
from vitrail.export.trace import first_line, quiet, traced
from vitrail.export.travelling import NOTE, note, output_of
from vitrail.models.build import Model

LARGEST = 2**31 - 2**24  # bytes: what protobuf can hold, less room for the graph


def write_onnx(model: Model, path: Path, dynamic: bool = False, **export: Any) -> None:
    """``dynamic``: height and width are left open, too. ``export`` is told in the file's note."""
    onnxruntime()  # or a sentence, before the work
    stored(graph_of(model, dynamic), model, path, to="onnx", dynamic=dynamic, **export)


def stored(proto: Any, model: Model, path: Path, **export: Any) -> None:
    """A graph with the model's note."""
    kept = proto.metadata_props.add()
    kept.key, kept.value = NOTE, note(model, **export)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def check_size(model: Model) -> None:
    bytes_ = sum(weight.numel() * 4 for weight in model.parameters())
    if bytes_ > LARGEST:
        raise VitrailError(f"the weights take {bytes_ / 2**30:.2f} GiB, and one ONNX file holds less than 2; try --to program")


def graph_of(model: Model, dynamic: bool = False) -> Any:
    """The model as an ONNX graph; each node's name begins with the layer it belongs to."""
    check_size(model)
    _check_there()
    names = [output_of(model.config), "probabilities"] if model.config.classes else [output_of(model.config)]
    program, log = traced(model, dynamic), logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), quiet():
            made = torch.onnx.export(
                program, dynamo=True, input_names=[INPUT], output_names=names, verbose=False, external_data=False
            )
    except Exception as error:  # the exporter's own take many forms, and pages
        raise VitrailError(f"the model cannot be written as ONNX: {first_line(error)}") from error
    finally:
        log.setLevel(before)
    assert made is not None
    return _unfused(_plain(made.model_proto))


def _check_there() -> None:
    try:
        for name in ("onnx", "onnxscript"):
            import_module(name)
    except ImportError:
        raise VitrailError("writing ONNX needs onnx and onnxscript; try `pip install 'vitrail[onnx]'`") from None


def _plain(proto: Any) -> Any:
    """Without the exporter's diary, which names this machine's files, and the shapes in between, which quantisers trip over."""
    graph = proto.graph
    del graph.value_info[:], proto.metadata_props[:], graph.metadata_props[:]
    proto.doc_string = graph.doc_string = ""
    for node in graph.node:
        node.name = f"{_layer(node)}/{node.name}"
    for item in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        del item.metadata_props[:]
        item.doc_string = ""
    return proto


def _layer(node: Any) -> str:
    """As in the model's own names: blocks.3.mlp.up."""
    said = {item.key: item.value for item in node.metadata_props}.get("pkg.torch.onnx.name_scopes", "[]")
    scopes = [scope for scope in ast.literal_eval(said)[:-1] if scope]
    return str(scopes[-1]).removeprefix("model.") if scopes else "graph"


def _unfused(proto: Any) -> Any:
    """A pool that looks at zeros around its picture, as a ResNet's does, and goes on doing so.

    onnxruntime (1.31 still) takes such a pair for a pool with padding of its own, which is minus infinity; so it must not see
    one right behind the other.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    graph = proto.graph
    padded = {node.output[0] for node in graph.node if node.op_type == "Pad" and len(node.input) < 3}
    for place, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in padded:
            apart = helper.make_node("Max", [node.input[0], "lowest"], [f"{node.input[0]}_apart"])
            node.input[0] = apart.output[0]
            graph.node.insert(place, apart)
    if any("lowest" in node.input for node in graph.node):
        graph.initializer.append(numpy_helper.from_array(np.array(np.finfo(np.float32).min), "lowest"))
    return proto
