"""Write an ONNX file whose linear layers compute in int8, for CPUs: half the time and a quarter of the size.

Weights have a scale per output channel, activations one per tensor. ``static``: activation scales are calibrated beforehand
on images, and stored in the pairs of QuantizeLinear and DequantizeLinear that every runtime reads. ``dynamic``: each call
computes them from its whole batch, so an image's logits would depend on the others: the predictor runs images one by one.

A few layers may not tolerate it (in a real ViT-Ti/16, one of 48 causes all the loss). So the sensitivity of each is measured
alone; then, as long as more accuracy is lost than allowed, the most sensitive layer left is kept in float.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float32, Int, Int8, UInt8
from numpy import ndarray

from vitrail.data.prepare import normalise
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.export.check import agreement
from vitrail.export.even import even
from vitrail.export.onnx import graph_of, stored
from vitrail.export.session import INPUT, over
from vitrail.export.trial import Trial
from vitrail.models.build import Model

Activations = Literal["static", "dynamic"]
BATCH = 8
TRIED = 16  # images on which the sensitivity of each layer is measured
Range = tuple[float, float]


@dataclass(frozen=True)
class Quantised:
    """The layers' sensitivity to quantisation, by name, and which were kept in float."""

    activations: Activations
    layers: int
    sensitivity: dict[str, float]  # squared error of the logits with this layer alone in int8, relative to their variance
    in_float: tuple[str, ...]  # not quantised
    drop: float  # on the evaluation images, as in ``Checked.drop``


def quantise(
    model: Model,
    path: Path,
    calibration: UInt8[ndarray, "n height width c"],
    tried: Trial,
    activations: Activations = "static",
    max_drop: float = 0.005,
    progress: Progress | None = None,
    **export: Any,
) -> Quantised:
    """Write the file. ``calibration`` are representative images; ``max_drop`` is a fraction of the evaluation images."""
    graph = eight_bits(model, calibration, activations)
    if not graph.layers:
        raise VitrailError("the model has no linear layers that could be quantised to int8; try --to onnx")
    want, tell = graph.answers(tried.pictures, ()), progress or (lambda what, done, total: None)
    sensitivity = {}
    for place, layer in enumerate(graph.layers, 1):
        sensitivity[layer] = _error(graph.answers(tried.pictures[:TRIED], (layer,)), want[:TRIED])
        tell("measuring the sensitivity of each layer", place, len(graph.layers))
    worst_first = sorted(graph.layers, key=lambda layer: -sensitivity[layer])
    for count in range(len(worst_first) + 1):
        chosen = tuple(worst_first[count:])
        drop = _drop(graph.answers(tried.pictures, chosen), want, tried.labels, not model.config.classes)
        tell(f"{count} layers in float lose {100 * drop:.1f} points", count, None)
        if drop <= max_drop:
            break
    stored(graph.made(chosen), model, path, to="int8", activations=activations, float_layers=worst_first[:count], **export)
    return Quantised(activations, len(graph.layers), sensitivity, tuple(worst_first[:count]), drop)


def eight_bits(model: Model, calibration: UInt8[ndarray, "n height width c"], activations: Activations) -> "EightBits":
    """Build the graph of the smoothed model, of which any layers can be quantised."""
    return EightBits(graph_of(evened(model, calibration)), calibration, activations)


def evened(model: Model, calibration: UInt8[ndarray, "n height width c"]) -> Model:
    """Return a copy with the same outputs that is easier to quantise (SmoothQuant)."""
    images = normalise(rearrange(torch.tensor(calibration), "n h w c -> n c h w").float().contiguous(), preprocess_of(model))
    return even(model, images)


class EightBits:
    """A float ONNX graph from which graphs with some layers in int8 are built."""

    def __init__(self, proto: Any, calibration: UInt8[ndarray, "n height width c"], activations: Activations) -> None:
        self.proto, self.activations = proto, activations
        self.weights = {item.name: item for item in proto.graph.initializer}
        self.layers = {node.name.split("/")[0]: node.input[0] for node in proto.graph.node if self._linear(node)}
        self.ranges = self._ranges(calibration) if self.layers and activations == "static" else {}

    def _linear(self, node: Any) -> bool:
        """Return whether a node is a linear layer of a block; patch embedding and head stay in float."""
        return node.op_type == "MatMul" and node.name.startswith("blocks.") and node.input[1] in self.weights

    def _ranges(self, pictures: UInt8[ndarray, "n height width c"]) -> dict[str, Range]:
        """Return the minimum and maximum of each layer's input over all images; the range includes 0."""
        from onnx import helper

        opened, names = _copied(self.proto), sorted(set(self.layers.values()))
        opened.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
        run, found = over(opened.SerializeToString()), dict.fromkeys(names, (0.0, 0.0))
        for some in _some(pictures):
            for name, values in zip(names, run.run(names, {INPUT: some}), strict=True):
                low, high = found[name]
                found[name] = min(low, float(values.min())), max(high, float(values.max()))
        return found

    def answers(self, pictures: UInt8[ndarray, "n height width c"], chosen: tuple[str, ...]) -> Float32[ndarray, "n k"]:
        """Return the logits with these layers in int8."""
        run = over(self.made(chosen).SerializeToString())
        return np.concatenate([run.run(None, {INPUT: some})[0] for some in _some(pictures, self.activations == "dynamic")])

    def made(self, chosen: tuple[str, ...]) -> Any:
        from onnx import numpy_helper

        proto = _copied(self.proto)

        def add(name: str, value: ndarray) -> None:
            proto.graph.initializer.append(numpy_helper.from_array(value, name))

        nodes: list[Any] = []
        for node in proto.graph.node:
            if self._linear(node) and node.name.split("/")[0] in chosen:
                weight, scale = rounded(numpy_helper.to_array(self.weights[node.input[1]]))
                there = {name for made in nodes for name in made.output}
                write = _static if self.activations == "static" else _dynamic
                nodes += [made for made in write(node, weight, scale, self.ranges, add) if made.output[0] not in there]
            else:
                nodes.append(node)
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        return _lean(proto)


def rounded(weight: Float32[ndarray, "i o"]) -> tuple[Int8[ndarray, "i o"], Float32[ndarray, " o"]]:
    """Quantise symmetrically to -127 ... 127 with a scale per output channel."""
    scale = np.abs(weight).max(axis=0) / 127
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


def _static(
    node: Any, weight: ndarray, scale: ndarray, ranges: dict[str, Range], add: Callable[[str, ndarray], None]
) -> Iterator[Any]:
    """Yield the nodes of x W with both quantised and dequantised; a runtime fuses them into an int8 product."""
    from onnx import helper

    x, w = node.input[0], f"{node.name}/weight"
    low, high = ranges[x]
    step = np.float32(max(high - low, 1e-12) / 255)
    names = [x, f"{x}/scale", f"{x}/zero"]
    add(names[1], np.asarray(step))
    add(names[2], np.asarray(np.rint(-low / step), np.uint8))
    add(f"{w}/8", weight)
    add(f"{w}/scale", scale)
    add(f"{w}/zero", np.zeros(scale.shape, np.int8))
    yield helper.make_node("QuantizeLinear", names, [f"{x}/8"])
    yield helper.make_node("DequantizeLinear", [f"{x}/8", *names[1:]], [f"{x}/rounded"])
    yield helper.make_node("DequantizeLinear", [f"{w}/8", f"{w}/scale", f"{w}/zero"], [f"{w}/rounded"], axis=1)
    yield helper.make_node("MatMul", [f"{x}/rounded", f"{w}/rounded"], list(node.output), name=node.name)


def _dynamic(
    node: Any, weight: ndarray, scale: ndarray, ranges: dict[str, Range], add: Callable[[str, ndarray], None]
) -> Iterator[Any]:
    """Yield the nodes of x W in integers, multiplied by both scales."""
    from onnx import TensorProto, helper

    x, w, y = node.input[0], f"{node.name}/weight", f"{node.name}/whole"
    add(f"{w}/8", weight)
    add(f"{w}/scale", scale)
    add(f"{w}/zero", np.zeros(scale.shape, np.int8))
    yield helper.make_node("DynamicQuantizeLinear", [x], [f"{x}/8", f"{x}/scale", f"{x}/zero"])
    yield helper.make_node("MatMulInteger", [f"{x}/8", f"{w}/8", f"{x}/zero", f"{w}/zero"], [y], name=node.name)
    yield helper.make_node("Cast", [y], [f"{y}/float"], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [f"{x}/scale", f"{w}/scale"], [f"{y}/scale"])
    yield helper.make_node("Mul", [f"{y}/float", f"{y}/scale"], list(node.output))


def _error(got: Float32[ndarray, "n k"], want: Float32[ndarray, "n k"]) -> float:
    return float(np.square(got - want).mean() / max(float(want.var()), 1e-12))


def _drop(got: Float32[ndarray, "n k"], want: Float32[ndarray, "n k"], labels: Int[ndarray, " n"], features: bool) -> float:
    """Return the accuracy lost; without labels, the fraction of changed predictions; for features, 1 - cosine."""
    known = labels >= 0
    first, before = got.argmax(1), want.argmax(1)
    if features or not known.any():
        return 1 - agreement(got, want, features)
    return float((before == labels)[known].mean() - (first == labels)[known].mean())


def _some(pictures: UInt8[ndarray, "n height width c"], alone: bool = False) -> Iterator[ndarray]:
    batch = 1 if alone else BATCH
    for start in range(0, len(pictures), batch):
        yield np.ascontiguousarray(pictures[start : start + batch])


def _copied(proto: Any) -> Any:
    made = type(proto)()
    made.CopyFrom(proto)
    return made


def _lean(proto: Any) -> Any:
    """Remove unused and duplicate initializers."""
    read = {name for node in proto.graph.node for name in node.input}
    kept = {item.name: item for item in proto.graph.initializer if item.name in read}
    items = [_copied(item) for item in kept.values()]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(items)
    return proto
