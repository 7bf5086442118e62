"""Cost of the convolutional models: the stem of a hybrid and the BiT ResNets. Torch-free."""

from collections.abc import Iterator
from math import prod

from vitrail.models.settings import ResNetConfig, Stem
from vitrail.models.tally import Stage, Tally

Side = tuple[int, int]


def root(stem: Stem, channels: int, image: Side, batch: int) -> Iterator[Stage]:
    """Cost of a hybrid's stem: post-activation; SAME padding copies its input."""
    tally, side = Tally(), _halve(image)
    tally.conv(channels, stem.width, 7, side)
    tally.kept_once += stem.width * 2
    tally.group_norm(stem.width, side)
    full, padded, after = stem.width * prod(side), stem.width * prod(_padded(side, 3, 2)), _halve(side)
    tally.kept += channels * prod(_padded(image, 7, 2)) + full + padded + 2 * stem.width * prod(after)
    pooled = stem.width * prod(after)
    tally.peak(2 * full, full + padded + pooled, channels * prod(_padded(image, 7, 2)) + full)
    yield tally.stage("root", batch, stem.width, *after)
    channels, side = stem.width, after
    for index, depth in enumerate(stem.stages):
        width, tally, held = stem.width * 2**index, Tally(), pooled
        for unit in range(depth):
            stride = 2 if unit == 0 and index else 1
            x = channels * prod(side)
            side = _post_unit(tally, channels, width, stride, side, held)
            channels, held = 4 * width, held if unit else held + x  # the stages and the current stage hold their inputs
        yield tally.stage(f"stage {index + 1}", batch, channels, *side)


def _post_unit(tally: Tally, channels: int, width: int, stride: int, side: Side, held: int) -> Side:
    out = _halve(side) if stride == 2 else side
    narrow, small, wide = width * prod(side), width * prod(out), 4 * width * prod(out)
    x = channels * prod(side)
    for inputs, outputs, kernel, at in ((channels, width, 1, side), (width, width, 3, out), (width, 4 * width, 1, out)):
        tally.conv(inputs, outputs, kernel, at)
        tally.kept_once += 2 * outputs
        tally.group_norm(outputs, at)
    tally.kept += x + narrow + width * prod(_padded(side, 3, stride)) + small
    shortcut = channels != 4 * width or stride == 2
    if shortcut:
        tally.conv(channels, 4 * width, 1, out)
        tally.kept_once += 8 * width
        tally.group_norm(4 * width, out)
    tally.peak(held + x + small + (3 if shortcut else 2) * wide, held + x + 2 * narrow)
    return out


def resnet(c: ResNetConfig, batch: int) -> Iterator[Stage]:
    image = prod((c.channels, *c.image))
    yield Tally(kept=image, alive=image).stage("image", batch, c.channels, *c.image)
    sides = map_sides(c)
    tally, half = Tally(), _halve(c.image)
    tally.conv(c.channels, c.width, 7, half)
    tally.kept_once += c.width
    padded = c.width * (half[0] + 2) * (half[1] + 2)
    tally.kept += padded + 2 * c.width * prod(sides[0])
    tally.peak(c.width * prod(half) + padded, padded + c.width * prod(sides[0]))
    yield tally.stage("root", batch, c.width, *sides[0])
    channels, side = c.width, sides[0]
    for index, depth in enumerate(c.stages):
        width, tally, held = c.width * 2**index, Tally(), c.width * prod(sides[0])
        for unit in range(depth):
            stride = 2 if unit == 0 and index else 1
            x = channels * prod(side)
            side = _pre_unit(tally, channels, width, stride, side, held)
            channels, held = 4 * width, held if unit else held + x
        yield tally.stage(f"stage {index + 1}", batch, channels, *side)
    norm = Tally(alive=2 * channels * prod(side))
    norm.group_norm(channels, side)
    norm.kept += channels * prod(side)
    yield norm.stage("norm", batch, channels, *side)
    yield Tally(kept=channels if c.classes else 0, alive=channels * (prod(side) + 1)).stage("pool (gap)", batch, channels)
    if c.classes:
        head = Tally(alive=channels + c.classes)
        head.dense(1, channels, c.classes)
        yield head.stage("head", batch, c.classes)


def _pre_unit(tally: Tally, channels: int, width: int, stride: int, side: Side, held: int) -> Side:
    out = _halve(side) if stride == 2 else side
    before = ((channels, side), (width, side), (width, out))
    after = ((width, 1, side), (width, 3, out), (4 * width, 1, out))
    for (inputs, here), (outputs, kernel, there) in zip(before, after, strict=True):
        tally.group_norm(inputs, here)
        tally.kept += inputs * prod(here)  # the output of the ReLU
        tally.conv(inputs, outputs, kernel, there)
        tally.kept_once += outputs
    x, narrow, small, wide = channels * prod(side), width * prod(side), width * prod(out), 4 * width * prod(out)
    if channels != 4 * width or stride == 2:
        tally.conv(channels, 4 * width, 1, out)
        tally.kept_once += 4 * width
        tally.peak(held + 2 * x + 3 * wide)
    tally.peak(*(held + 2 * x + more for more in (2 * narrow, narrow + 2 * small, 2 * wide, x)))
    return out


def map_sides(c: ResNetConfig) -> list[Side]:
    """Return height and width after the root and after every stage."""
    sides = [_halve(_halve(c.image))]
    for index in range(len(c.stages)):
        sides.append(_halve(sides[-1]) if index else sides[-1])
    return sides


def _halve(side: Side) -> Side:
    """Return the side after stride 2, rounded up with either padding."""
    return -(-side[0] // 2), -(-side[1] // 2)


def _padded(side: Side, kernel: int, stride: int) -> Side:
    high, wide = (max(length, (-(-length // stride) - 1) * stride + kernel) for length in side)
    return high, wide
