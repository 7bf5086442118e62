"""Images with regions from a COCO file: filled polygons and run lengths, as one mask of classes. h high, w wide, k classes.

Where no region is, the class is ``background``. Crowds, which do not tell objects apart, are ignored where no other region is,
and regions of a category that the file does not have are ignored.
"""

from dataclasses import dataclass

from jaxtyping import Int16, Int32
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import stored_size
from vitrail.data.sources.coco.coco_index import CocoIndex
from vitrail.data.sources.dataset import IGNORED, ImageFileDataset
from vitrail.data.sources.filled_regions import FilledRegion, fill_region, paint_classes, paint_objects
from vitrail.data.sources.masks.mask_file import as_its_image
from vitrail.errors import VitrailError


@dataclass(frozen=True, eq=False)
class CocoImages(ImageFileDataset):
    """Images that a COCO file describes. Subclasses draw their masks."""

    index: CocoIndex
    rows: ndarray  # of each image in the index
    classes: Int16[ndarray, " k"]  # class of each category; the last, ``IGNORED``, stands for none

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def has_mask_targets(self) -> bool:
        return True

    def upright(self, mask: ndarray, index: int) -> ndarray:
        """Return what was drawn on an image as it is stored as the upright image is."""
        try:
            return as_its_image(mask, self.read(index))
        except BadImage as error:
            raise BadImage(f"has a mask in {self.index.path} that {error}") from None

    def content_key(self) -> bytes:
        return super().content_key() + self.annotations_key()

    def cache_key(self) -> bytes:
        return super().cache_key() + self.annotations_key()

    def annotations_key(self) -> bytes:
        return self.index.digest.encode() + self.rows.astype("<i8").tobytes() + self.classes.astype("<i2").tobytes()


@dataclass(frozen=True, eq=False)
class CocoRegions(CocoImages):
    """Images with polygons and run lengths."""

    background: int = 0  # class of the pixels without a region

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        size, regions = self._read_regions(index)
        return self.upright(paint_classes(regions, size, self.background), index)

    def instances(self, index: int) -> Int32[ndarray, "h w"]:
        size, regions = self._read_regions(index)
        return self.upright(paint_objects(regions, size), index)

    def _read_regions(self, index: int) -> tuple[tuple[int, int], list[FilledRegion]]:
        """Return the size of the image as the file says, and its regions."""
        row = int(self.rows[index])
        annotations, categories = self.index.read(row), self.index.rows(row)[:, 0].tolist()
        height, width = self.index.sizes[row].tolist()
        if not height or not width:
            (height, width), _ = stored_size(self.read(index))
        regions = []
        for number, (annotation, category) in enumerate(zip(annotations, categories, strict=True), start=1):
            is_crowd = bool(annotation.get("iscrowd"))
            value = IGNORED if is_crowd else int(self.classes[category])
            number = 0 if is_crowd or category < 0 else number
            try:
                region = fill_region(annotation.get("segmentation"), (height, width), value, number, is_below=is_crowd)
            except VitrailError as error:
                where = f"{self.index.path}, annotation id {annotation.get('id')} of {self.paths[index]}"
                raise BadImage(f"cannot be used: {where}: {error}") from None
            if region is not None:
                regions.append(region)
        return (height, width), regions
