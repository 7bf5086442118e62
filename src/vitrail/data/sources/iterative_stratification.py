"""Iterative stratification of images with several labels each (Sechidis, Tsoumakas and Vlahavas 2011).

A random or hashed split leaves a rare label to chance. Here the rarest label comes first, while there is still room everywhere:
each of its images goes to the part that lacks most of that label, and the labels that the image brings along are taken off what
the part lacks of them. With one label per image, this deals the images of each class evenly.

Two things go beyond the paper, for images that have many labels: of parts that lack equally much of the rarest label, the one
that lacks most of the others is taken, not any; and at the end, images are moved where that brings the labels closer to what is
wanted. All numbers are whole, so that the result is the same on every machine. n images, k labels, p parts.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vitrail.data.sources.label_sets import LabelSets

MAX_PASSES = 5  # over all images, to move some
WEIGHT_SCALE = 2**20


def stratify(
    label_sets: LabelSets, sizes: Int[ndarray, " n"], wanted: Int[ndarray, "k p"], totals: Int[ndarray, " p"]
) -> Int[ndarray, " n"]:
    """Return the part of each image, from 0.

    ``sizes``: how much each image counts, such as the number of its copies. ``wanted``: how much of each label a part shall
    have; ``totals``: how much of all images.
    """
    lacks = np.vstack([wanted, totals])  # the last row stands for a label that every image has
    part = np.full(len(sizes), -1, np.int64)
    for image, label in _rarest_label_first(label_sets, sizes):
        labels = np.array([*label_sets.classes_of(image), len(wanted)])
        best = int(np.lexsort((-lacks[-1], -lacks[labels[:-1]].sum(0), -lacks[label]))[0])
        lacks[labels, best] -= sizes[image]
        part[image] = best
    if label_sets.sizes().max(initial=0) > 1:
        _move_images(label_sets, sizes, part, lacks)
    return part


def _rarest_label_first(label_sets: LabelSets, sizes: Int[ndarray, " n"]) -> Iterator[tuple[int, int]]:
    """Yield every image with the label that it is dealt by, the one with the fewest images left; those without any last.

    Of equally rare labels the first is taken, and of the images of a label first those with many copies.
    """
    owners = np.repeat(np.arange(len(sizes)), label_sets.sizes())
    images_by_label = np.split(owners[np.argsort(label_sets.members, kind="stable")], np.cumsum(label_sets.counts()))
    left, is_left = label_sets.counts(sizes), np.ones(len(sizes), bool)
    while left.any():
        label = int(np.where(left > 0, left, np.iinfo(np.int64).max).argmin())
        images = _largest_first(images_by_label[label][is_left[images_by_label[label]]], sizes)
        is_left[images] = False
        left -= label_sets[images].counts(sizes[images])
        yield from ((image, label) for image in images.tolist())
    yield from ((image, -1) for image in _largest_first(np.flatnonzero(is_left), sizes).tolist())


def _largest_first(images: Int[ndarray, " m"], sizes: Int[ndarray, " n"]) -> Int[ndarray, " m"]:
    return images[np.argsort(-sizes[images], kind="stable")]


def _move_images(
    label_sets: LabelSets, sizes: Int[ndarray, " n"], part: Int[ndarray, " n"], lacks: Int[ndarray, "labels p"]
) -> None:
    """Move images, one at a time, as long as that lessens the sum of the squared deviations from what is wanted.

    A label counts by one over the square root of its images, so that rare labels are not given up for common ones.
    """
    counts = np.append(label_sets.counts(sizes), sizes.sum())
    weights = np.maximum(WEIGHT_SCALE / np.sqrt(np.maximum(counts, 1)), 1).astype(np.int64)
    for _ in range(MAX_PASSES):
        num_moved = 0
        for image, size in enumerate(sizes.tolist()):
            labels = np.array([*label_sets.classes_of(image), len(counts) - 1])
            need = weights[labels] @ lacks[labels]
            gain = need - need[part[image]] - size * weights[labels].sum()  # what the sum lessens by, over 2 * size
            gain[part[image]] = 0
            best = int(gain.argmax())
            if gain[best] > 0:
                lacks[labels, part[image]] += size
                lacks[labels, best] -= size
                part[image] = best
                num_moved += 1
        if not num_moved:
            return
