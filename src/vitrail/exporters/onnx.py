"""Write a model as one ONNX file by torch's exporter: graph, weights and metadata.

Weights beyond 2 GB do not fit in one file, and a second file gets lost; such models are refused.
"""

import ast
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.errors import VitrailError, first_line
from vitrail.exporters.export_module import ExportModule
from vitrail.exporters.torch_export import trace_program
from vitrail.inference.export_metadata import EXPORT_METADATA_KEY, dump_metadata
from vitrail.inference.onnx_predictor import INPUT_NAME, import_onnxruntime
from vitrail.inference.program_predictor import suppress_warnings
from vitrail.models.build import get_encoder

MAX_WEIGHT_BYTES = 2**31 - 2**24  # what protobuf can hold, minus space for the graph


def write_onnx(model: nn.Module, path: Path, dynamic: bool = False, **options: Any) -> None:
    """Write an ONNX file; ``dynamic`` leaves height and width open, ``options`` are recorded in the file's metadata."""
    import_onnxruntime()  # fails early if it is not installed
    save_onnx(to_onnx(model, dynamic), model, path, to="onnx", dynamic=dynamic, **options)


def save_onnx(proto: Any, model: nn.Module, path: Path, **options: Any) -> None:
    """Write a graph with the model's metadata."""
    entry = proto.metadata_props.add()
    entry.key, entry.value = EXPORT_METADATA_KEY, dump_metadata(model, **options)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def check_model_size(model: nn.Module) -> None:
    weight_bytes = sum(weight.numel() * 4 for weight in model.parameters())
    if weight_bytes > MAX_WEIGHT_BYTES:
        raise VitrailError(
            f"the weights take {weight_bytes / 2**30:.2f} GiB, and one ONNX file holds less than 2; try --to program"
        )


def to_onnx(model: nn.Module, dynamic: bool = False) -> Any:
    """Convert the model to an ONNX graph; each node's name begins with its layer's."""
    check_model_size(model)
    _check_installed()
    names = _output_names(model)
    program = trace_program(model, dynamic)
    try:
        with torch.no_grad(), suppress_warnings(), _log_errors_only("torch.onnx", "onnxscript"):
            exported = torch.onnx.export(
                program, dynamo=True, input_names=[INPUT_NAME], output_names=names, verbose=False, external_data=False
            )
    except Exception as error:  # the exporter raises many types, with messages of pages
        raise VitrailError(f"the model cannot be written as ONNX: {first_line(error)}") from error
    assert exported is not None
    return _prevent_pad_pool_fusion(_strip_metadata(exported.model_proto))


@contextmanager
def _log_errors_only(*names: str) -> Iterator[None]:
    """Silence what the exporter logs of each step, such as a constant that it does not compute beforehand."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    try:
        for logger in levels:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@torch.no_grad()
def _output_names(model: nn.Module) -> list[str]:
    """Return the names of what the task exports, from the outputs of a blank image."""
    config = get_encoder(model).config
    return list(ExportModule(model).named_outputs(model(torch.zeros(1, config.channels, *config.image))))


def _check_installed() -> None:
    try:
        for name in ("onnx", "onnxscript"):
            import_module(name)
    except ImportError:
        raise VitrailError("writing ONNX needs onnx and onnxscript; try pip install 'vitrail[onnx]'") from None


def _strip_metadata(proto: Any) -> Any:
    """Remove the exporter's metadata, which contains local paths, and the value infos, which quantisers reject."""
    graph = proto.graph
    del graph.value_info[:], proto.metadata_props[:], graph.metadata_props[:]
    proto.doc_string = graph.doc_string = ""
    for node in graph.node:
        node.name = f"{_layer_name(node)}/{node.name}"
    for item in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        del item.metadata_props[:]
        item.doc_string = ""
    return proto


def _layer_name(node: Any) -> str:
    """Return the name of a node's layer in the model, such as blocks.3.mlp.up."""
    text = {item.key: item.value for item in node.metadata_props}.get("pkg.torch.onnx.name_scopes", "[]")
    scopes = [scope for scope in ast.literal_eval(text)[:-1] if scope]
    return str(scopes[-1]).removeprefix("model.").removeprefix("encoder.") if scopes else "graph"


def _prevent_pad_pool_fusion(proto: Any) -> Any:
    """Keep onnxruntime from fusing a zero pad with a max pool, as in a ResNet.

    Up to 1.31 at least, it replaces such a pair by a pool with its own padding, which is minus infinity; so another node is
    inserted between the two.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    graph = proto.graph
    padded = {node.output[0] for node in graph.node if node.op_type == "Pad" and len(node.input) < 3}
    for position, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in padded:
            separator = helper.make_node("Max", [node.input[0], "lowest"], [f"{node.input[0]}_apart"])
            node.input[0] = separator.output[0]
            graph.node.insert(position, separator)
    if any("lowest" in node.input for node in graph.node):
        graph.initializer.append(numpy_helper.from_array(np.array(np.finfo(np.float32).min), "lowest"))
    return proto
