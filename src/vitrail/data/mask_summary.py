"""Summary of the masks of a dataset: how many pixels of each class each split has, and which masks say little."""

from collections.abc import Mapping
from dataclasses import dataclass

from vitrail.data.mask_index import MaskIndex


@dataclass(frozen=True)
class MaskSummary:
    """Summary of the usable masks, each by split."""

    pixels: dict[str, dict[str, int]]  # class: split: pixels
    images: dict[str, dict[str, int]]  # class: split: images in which it occurs
    ignored: dict[str, int]  # pixels
    uniform: dict[str, int]  # masks of a single class, such as an image without any object
    empty: dict[str, int]  # masks all of whose pixels are ignored
    absent: dict[str, tuple[str, ...]]  # classes that never occur in a split that has images

    def fraction(self, name: str, split: str) -> float:
        """Return the fraction of the counted pixels of a split that a class has."""
        total = sum(by_split[split] for by_split in self.pixels.values())
        return self.pixels[name][split] / max(total, 1)


def summarise_masks(names: tuple[str, ...], indexes: Mapping[str, MaskIndex]) -> MaskSummary:
    """Summarise the masks of the splits, whose classes have these names."""
    pixels = {split: index.pixels_per_class(len(names)) for split, index in indexes.items()}
    images = {split: index.masks_per_class(len(names)) for split, index in indexes.items()}
    present = {split: index.classes_per_mask() for split, index in indexes.items()}
    absent = {
        split: tuple(name for name, count in zip(names, images[split].tolist(), strict=True) if not count)
        for split, index in indexes.items()
        if len(index.errors)
    }
    return MaskSummary(
        {name: {split: int(pixels[split][label]) for split in indexes} for label, name in enumerate(names)},
        {name: {split: int(images[split][label]) for split in indexes} for label, name in enumerate(names)},
        {split: index.ignored_pixels() for split, index in indexes.items()},
        {split: int((counts == 1).sum()) for split, counts in present.items()},
        {split: int((counts == 0).sum()) for split, counts in present.items()},
        {split: missing for split, missing in absent.items() if missing},
    )
