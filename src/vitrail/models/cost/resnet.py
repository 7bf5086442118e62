"""Cost of the convolutional models: the stem of a hybrid and the BiT ResNets. Torch-free."""

from collections.abc import Iterator
from math import prod

from vitrail.models.config import ResNetConfig, StemConfig
from vitrail.models.cost.counter import OpCounter, Stage

MapSize = tuple[int, int]


def stem_stages(stem: StemConfig, channels: int, image: MapSize, batch: int) -> Iterator[Stage]:
    """Cost of a hybrid's stem: post-activation; SAME padding copies its input."""
    counter, side = OpCounter(), _halve(image)
    counter.conv(channels, stem.width, 7, side)
    counter.saved_floats_fixed += stem.width * 2
    counter.group_norm(stem.width, side)
    full, padded, after = stem.width * prod(side), stem.width * prod(_padded(side, 3, 2)), _halve(side)
    counter.saved_floats += channels * prod(_padded(image, 7, 2)) + full + padded + 2 * stem.width * prod(after)
    pooled = stem.width * prod(after)
    counter.update_peak(2 * full, full + padded + pooled, channels * prod(_padded(image, 7, 2)) + full)
    yield counter.to_stage("root", batch, stem.width, *after)
    channels, side = stem.width, after
    for index, depth in enumerate(stem.stages):
        width, counter, live = stem.width * 2**index, OpCounter(), pooled
        for unit in range(depth):
            stride = 2 if unit == 0 and index else 1
            x = channels * prod(side)
            side = _bottleneck(counter, channels, width, stride, side, live)
            channels, live = 4 * width, live if unit else live + x  # the stages and the current stage hold their inputs
        yield counter.to_stage(f"stage {index + 1}", batch, channels, *side)


def _bottleneck(counter: OpCounter, channels: int, width: int, stride: int, side: MapSize, live: int) -> MapSize:
    out = _halve(side) if stride == 2 else side
    narrow, small, wide = width * prod(side), width * prod(out), 4 * width * prod(out)
    x = channels * prod(side)
    for inputs, outputs, kernel, at in ((channels, width, 1, side), (width, width, 3, out), (width, 4 * width, 1, out)):
        counter.conv(inputs, outputs, kernel, at)
        counter.saved_floats_fixed += 2 * outputs
        counter.group_norm(outputs, at)
    counter.saved_floats += x + narrow + width * prod(_padded(side, 3, stride)) + small
    shortcut = channels != 4 * width or stride == 2
    if shortcut:
        counter.conv(channels, 4 * width, 1, out)
        counter.saved_floats_fixed += 8 * width
        counter.group_norm(4 * width, out)
    counter.update_peak(live + x + small + (3 if shortcut else 2) * wide, live + x + 2 * narrow)
    return out


def resnet_stages(c: ResNetConfig, batch: int) -> Iterator[Stage]:
    image = prod((c.channels, *c.image))
    yield OpCounter(saved_floats=image, peak_floats=image).to_stage("image", batch, c.channels, *c.image)
    sides = feature_map_sizes(c)
    counter, half = OpCounter(), _halve(c.image)
    counter.conv(c.channels, c.width, 7, half)
    counter.saved_floats_fixed += c.width
    padded = c.width * (half[0] + 2) * (half[1] + 2)
    counter.saved_floats += padded + 2 * c.width * prod(sides[0])
    counter.update_peak(c.width * prod(half) + padded, padded + c.width * prod(sides[0]))
    yield counter.to_stage("root", batch, c.width, *sides[0])
    channels, side = c.width, sides[0]
    for index, depth in enumerate(c.stages):
        width, counter, live = c.width * 2**index, OpCounter(), c.width * prod(sides[0])
        for unit in range(depth):
            stride = 2 if unit == 0 and index else 1
            x = channels * prod(side)
            side = _preact_bottleneck(counter, channels, width, stride, side, live)
            channels, live = 4 * width, live if unit else live + x
        yield counter.to_stage(f"stage {index + 1}", batch, channels, *side)
    norm = OpCounter(peak_floats=2 * channels * prod(side))
    norm.group_norm(channels, side)
    norm.saved_floats += channels * prod(side)
    yield norm.to_stage("norm", batch, channels, *side)
    yield OpCounter(saved_floats=channels if c.classes else 0, peak_floats=channels * (prod(side) + 1)).to_stage(
        "pool (gap)", batch, channels
    )
    if c.classes:
        head = OpCounter(peak_floats=channels + c.classes)
        head.linear(1, channels, c.classes)
        yield head.to_stage("head", batch, c.classes)


def _preact_bottleneck(counter: OpCounter, channels: int, width: int, stride: int, side: MapSize, live: int) -> MapSize:
    out = _halve(side) if stride == 2 else side
    before = ((channels, side), (width, side), (width, out))
    after = ((width, 1, side), (width, 3, out), (4 * width, 1, out))
    for (inputs, here), (outputs, kernel, there) in zip(before, after, strict=True):
        counter.group_norm(inputs, here)
        counter.saved_floats += inputs * prod(here)  # the output of the ReLU
        counter.conv(inputs, outputs, kernel, there)
        counter.saved_floats_fixed += outputs
    x, narrow, small, wide = channels * prod(side), width * prod(side), width * prod(out), 4 * width * prod(out)
    if channels != 4 * width or stride == 2:
        counter.conv(channels, 4 * width, 1, out)
        counter.saved_floats_fixed += 4 * width
        counter.update_peak(live + 2 * x + 3 * wide)
    counter.update_peak(*(live + 2 * x + more for more in (2 * narrow, narrow + 2 * small, 2 * wide, x)))
    return out


def feature_map_sizes(c: ResNetConfig) -> list[MapSize]:
    """Return height and width after the root and after every stage."""
    sides = [_halve(_halve(c.image))]
    for index in range(len(c.stages)):
        sides.append(_halve(sides[-1]) if index else sides[-1])
    return sides


def _halve(side: MapSize) -> MapSize:
    """Return the side after stride 2, rounded up with either padding."""
    return -(-side[0] // 2), -(-side[1] // 2)


def _padded(side: MapSize, kernel: int, stride: int) -> MapSize:
    high, wide = (max(length, (-(-length // stride) - 1) * stride + kernel) for length in side)
    return high, wide
