"""Write an ONNX file whose linear layers compute in int8, for CPUs: half the time and a quarter of the size.

Weights have a scale per output channel, activations one per tensor. ``static``: activation scales are calibrated beforehand
on images, and stored in the pairs of QuantizeLinear and DequantizeLinear that every runtime reads. ``dynamic``: each call
computes them from its whole batch, so an image's logits would depend on the others: the predictor runs images one by one.

A few layers may not tolerate it (in a real ViT-Ti/16, one of 48 causes all the loss). So the sensitivity of each is measured
alone; then, as long as more accuracy is lost than allowed, the most sensitive layer left is kept in float. That takes a graph
per layer, so graphs are built here, in memory: onnxruntime's quantiser infers shapes and writes a file for each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float32, Int8, Num
from numpy import ndarray
from torch import nn

from vitrail.data.sources.dataset import Progress
from vitrail.data.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.exporters.onnx import save_onnx, to_onnx
from vitrail.exporters.output_scores import MAX_BATCH_NUMEL, OutputScorer, batch_size, output_scorer
from vitrail.exporters.sample_images import SampleImages
from vitrail.exporters.smoothquant import smooth_activations
from vitrail.inference.onnx_predictor import INPUT_NAME, create_inference_session
from vitrail.inference.predictor import require_preprocess
from vitrail.models.build import get_encoder
from vitrail.tasks.registry import model_task

Activations = Literal["static", "dynamic"]
BATCH_SIZE = 8
SENSITIVITY_IMAGES = 16  # images on which the sensitivity of each layer is measured
Range = tuple[float, float]


@dataclass(frozen=True)
class QuantisationReport:
    """The layers' sensitivity to quantisation, by name, and which were kept in float."""

    activations: Activations
    num_layers: int
    sensitivity: dict[str, float]  # squared error of the logits with this layer alone in int8, relative to their variance
    float_layers: tuple[str, ...]  # not quantised
    accuracy_drop: float  # on the evaluation images, as in ``ParityReport.accuracy_drop``


def quantise(
    model: nn.Module,
    path: Path,
    calibration: Num[ndarray, "n height width c"],
    samples: SampleImages,
    activations: Activations = "static",
    max_drop: float = 0.005,
    progress: Progress | None = None,
    **options: Any,
) -> QuantisationReport:
    """Write the file. ``calibration`` are representative images; ``max_drop`` is a fraction of the evaluation images."""
    graph = build_quantised_graph(model, calibration, activations)
    if not graph.layers:
        raise VitrailError("the model has no linear layers that could be quantised to int8; try --to onnx")
    report_progress = progress or (lambda description, done, total: None)
    encoder = get_encoder(model)
    scorer = output_scorer(model_task(encoder), samples, encoder is not model or encoder.config.classes > 0)
    sensitivity = _layer_sensitivity(graph, samples.images, scorer, report_progress)
    worst_first = sorted(graph.layers, key=lambda layer: -sensitivity[layer])

    def reduced_outputs(int8_layers: tuple[str, ...]) -> Any:
        return scorer.join(scorer.reduce(outputs, start) for start, outputs in graph.iter_outputs(samples.images, int8_layers))

    expected = reduced_outputs(())
    for num_float in range(len(worst_first) + 1):
        int8_layers = tuple(worst_first[num_float:])
        outputs = reduced_outputs(int8_layers)
        scores = scorer.scores(outputs, expected)
        drop = 1 - scorer.agreement(outputs, expected) if scores is None else scores[1] - scores[0]
        report_progress(f"{num_float} layers in float lose {100 * drop:.1f} points", num_float, None)
        if drop <= max_drop:
            break
    save_onnx(
        graph.build(int8_layers),
        model,
        path,
        to="int8",
        activations=activations,
        float_layers=worst_first[:num_float],
        **options,
    )
    return QuantisationReport(activations, len(graph.layers), sensitivity, tuple(worst_first[:num_float]), drop)


def _layer_sensitivity(
    graph: "QuantisedGraph", images: Num[ndarray, "n height width c"], scorer: OutputScorer, report_progress: Progress
) -> dict[str, float]:
    """Return the squared error of the outputs of a few images with each layer alone in int8, relative to their variance."""
    images = images[: max(min(SENSITIVITY_IMAGES, MAX_BATCH_NUMEL // graph.output_numel), 2)]
    expected, sensitivity = scorer.parts(graph.outputs(images, ())), {}
    for number, layer in enumerate(graph.layers, 1):
        pairs = zip(scorer.parts(graph.outputs(images, (layer,))), expected, strict=True)
        sensitivity[layer] = sum(_relative_error(outputs, wanted) for outputs, wanted in pairs) / len(expected)
        report_progress("measuring the sensitivity of each layer", number, len(graph.layers))
    return sensitivity


def build_quantised_graph(
    model: nn.Module, calibration: Num[ndarray, "n height width c"], activations: Activations
) -> "QuantisedGraph":
    """Build the graph of the smoothed model, of which any layers can be quantised."""
    return QuantisedGraph(to_onnx(smooth_model(model, calibration)), calibration, activations)


def smooth_model(model: nn.Module, calibration: Num[ndarray, "n height width c"]) -> Any:
    """Return a copy with the same outputs that is easier to quantise (SmoothQuant)."""
    images = normalise(
        rearrange(torch.tensor(calibration), "n h w c -> n c h w").float().contiguous(), require_preprocess(get_encoder(model))
    )
    return smooth_activations(model, images)


class QuantisedGraph:
    """A float ONNX graph from which graphs with some layers in int8 are built."""

    def __init__(self, proto: Any, calibration: Num[ndarray, "n height width c"], activations: Activations) -> None:
        self.proto, self.activations = proto, activations
        self.weights = {item.name: item for item in proto.graph.initializer}
        linear = [node for node in proto.graph.node if self._is_linear(node)]
        self.layers = tuple(dict.fromkeys(node.name.split("/")[0] for node in linear))
        self._inputs = sorted({node.input[0] for node in linear})
        self.output_numel = prod(side.dim_value for side in proto.graph.output[0].type.tensor_type.shape.dim[1:])  # of an image
        self.ranges = self._calibrate(calibration) if self.layers and activations == "static" else {}

    def _is_linear(self, node: Any) -> bool:
        """Return whether a node is a linear layer of a block; patch embedding and head stay in float."""
        return node.op_type == "MatMul" and node.name.startswith("blocks.") and node.input[1] in self.weights

    def _calibrate(self, images: Num[ndarray, "n height width c"]) -> dict[str, Range]:
        """Return the minimum and maximum of each layer's input over all images; the range includes 0."""
        from onnx import helper

        observed, names = _copy_proto(self.proto), self._inputs
        observed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
        session, ranges = create_inference_session(observed.SerializeToString()), dict.fromkeys(names, (0.0, 0.0))
        for batch in _iter_batches(images):
            for name, values in zip(names, session.run(names, {INPUT_NAME: batch}), strict=True):
                low, high = ranges[name]
                ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        return ranges

    def outputs(self, images: Num[ndarray, "n height width c"], int8_layers: tuple[str, ...]) -> Float32[ndarray, "n ..."]:
        """Return the outputs with these layers in int8."""
        return np.concatenate([outputs for _, outputs in self.iter_outputs(images, int8_layers)])

    def iter_outputs(
        self, images: Num[ndarray, "n height width c"], int8_layers: tuple[str, ...]
    ) -> Iterator[tuple[int, Float32[ndarray, "b ..."]]]:
        """Yield the outputs of a batch with these layers in int8, and the index of its first image."""
        session = create_inference_session(self.build(int8_layers).SerializeToString())
        output = self.proto.graph.output[0].name
        start = 0
        for batch in _iter_batches(images, 1 if self.activations == "dynamic" else batch_size(self.output_numel)):
            yield start, session.run([output], {INPUT_NAME: batch})[0]
            start += len(batch)

    def build(self, int8_layers: tuple[str, ...]) -> Any:
        from onnx import numpy_helper

        proto = _copy_proto(self.proto)

        def add_initializer(name: str, value: ndarray) -> None:
            proto.graph.initializer.append(numpy_helper.from_array(value, name))

        nodes: list[Any] = []
        for node in proto.graph.node:
            if self._is_linear(node) and node.name.split("/")[0] in int8_layers:
                weight, scale = quantise_weight(numpy_helper.to_array(self.weights[node.input[1]]))
                existing = {name for new_node in nodes for name in new_node.output}
                make_nodes = _static_nodes if self.activations == "static" else _dynamic_nodes
                nodes += [
                    new_node
                    for new_node in make_nodes(node, weight, scale, self.ranges, add_initializer)
                    if new_node.output[0] not in existing
                ]
            else:
                nodes.append(node)
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        return _drop_unused_initializers(proto)


def quantise_weight(weight: Float32[ndarray, "i o"]) -> tuple[Int8[ndarray, "i o"], Float32[ndarray, " o"]]:
    """Quantise symmetrically to -127 ... 127 with a scale per output channel."""
    scale = np.abs(weight).max(axis=0) / 127
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


def _static_nodes(
    node: Any, weight: ndarray, scale: ndarray, ranges: dict[str, Range], add_initializer: Callable[[str, ndarray], None]
) -> Iterator[Any]:
    """Yield the nodes of x W with both quantised and dequantised; a runtime fuses them into an int8 product."""
    from onnx import helper

    x, w = node.input[0], f"{node.name}/weight"
    low, high = ranges[x]
    step = np.float32(max(high - low, 1e-12) / 255)
    names = [x, f"{x}/scale", f"{x}/zero"]
    add_initializer(names[1], np.asarray(step))
    add_initializer(names[2], np.asarray(np.rint(-low / step), np.uint8))
    add_initializer(f"{w}/8", weight)
    add_initializer(f"{w}/scale", scale)
    add_initializer(f"{w}/zero", np.zeros(scale.shape, np.int8))
    yield helper.make_node("QuantizeLinear", names, [f"{x}/8"])
    yield helper.make_node("DequantizeLinear", [f"{x}/8", *names[1:]], [f"{x}/rounded"])
    yield helper.make_node("DequantizeLinear", [f"{w}/8", f"{w}/scale", f"{w}/zero"], [f"{w}/rounded"], axis=1)
    yield helper.make_node("MatMul", [f"{x}/rounded", f"{w}/rounded"], list(node.output), name=node.name)


def _dynamic_nodes(
    node: Any, weight: ndarray, scale: ndarray, ranges: dict[str, Range], add_initializer: Callable[[str, ndarray], None]
) -> Iterator[Any]:
    """Yield the nodes of x W in integers, multiplied by both scales."""
    from onnx import TensorProto, helper

    x, w, y = node.input[0], f"{node.name}/weight", f"{node.name}/whole"
    add_initializer(f"{w}/8", weight)
    add_initializer(f"{w}/scale", scale)
    add_initializer(f"{w}/zero", np.zeros(scale.shape, np.int8))
    yield helper.make_node("DynamicQuantizeLinear", [x], [f"{x}/8", f"{x}/scale", f"{x}/zero"])
    yield helper.make_node("MatMulInteger", [f"{x}/8", f"{w}/8", f"{x}/zero", f"{w}/zero"], [y], name=node.name)
    yield helper.make_node("Cast", [y], [f"{y}/float"], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [f"{x}/scale", f"{w}/scale"], [f"{y}/scale"])
    yield helper.make_node("Mul", [f"{y}/float", f"{y}/scale"], list(node.output))


def _relative_error(outputs: Float32[ndarray, "n ..."], expected: Float32[ndarray, "n ..."]) -> float:
    return float(np.square(outputs - expected).mean() / max(float(expected.var()), 1e-12))


def _iter_batches(images: Num[ndarray, "n height width c"], size: int = BATCH_SIZE) -> Iterator[ndarray]:
    for start in range(0, len(images), size):
        yield np.ascontiguousarray(images[start : start + size])


def _copy_proto(proto: Any) -> Any:
    copied = type(proto)()
    copied.CopyFrom(proto)
    return copied


def _drop_unused_initializers(proto: Any) -> Any:
    """Remove unused and duplicate initializers."""
    used = {name for node in proto.graph.node for name in node.input}
    initializers = {item.name: item for item in proto.graph.initializer if item.name in used}
    items = [_copy_proto(item) for item in initializers.values()]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(items)
    return proto
