"""What is explained of a segmentation model: a pixel, a rectangle, or the pixels that are predicted to be of a class."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.explain.test_region import NAMES, segmenter
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset
from vitrail.errors import VitrailError
from vitrail.evaluation.explanation_benchmark import benchmark_explanations
from vitrail.evaluation.explanations import explain_images
from vitrail.evaluation.region_selection import PixelSelection, largest_class, region_json
from vitrail.inference.preprocess_images import preprocess

WIDTH, HEIGHT = 30, 22  # of an image
PIXELS = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)


def explain(model: Any | None = None, image: Any = PIXELS, **options: Any) -> list[Any]:
    return list(explain_images(model or segmenter(), [image], **{"methods": ("rollout", "gradcam"), **options}))


def test_a_pixel_is_counted_in_the_upright_image() -> None:
    """An image that its EXIF turns by a quarter is as high as its file is wide."""
    sideways = Image.fromarray(PIXELS)
    sideways.getexif()[0x0112] = 6
    (turned,) = explain(image=sideways, pixels=PixelSelection((3, 25)))
    (upright,) = explain(image=np.rot90(PIXELS, -1).copy(), pixels=PixelSelection((3, 25)))
    assert turned.region.size == (HEIGHT, WIDTH)
    assert_close(turned.outputs, upright.outputs)
    with pytest.raises(VitrailError, match="which is 30x22, got 3,25; try 15,11"):
        explain(pixels=PixelSelection((3, 25)))


def test_regions_of_a_class_are_the_pixels_that_are_predicted_so() -> None:
    explanations = explain(target=[0, 1, 2])
    assert sum(each.region.num_pixels for each in explanations) == WIDTH * HEIGHT
    assert [each.target for each in explanations] == [0, 1, 2]
    (largest,) = explain()
    assert largest.region.num_pixels == max(each.region.num_pixels for each in explanations)
    assert largest.region.text == f"the {largest.region.num_pixels} pixels that are predicted as {NAMES[largest.target]}"


def test_background_is_explained_only_if_there_is_nothing_else() -> None:
    assert largest_class([70, 0, 9, 21], ("background", "a", "b", "c")) == 3
    assert largest_class([70, 0, 9, 21], ("sky", "a", "b", "c")) == 0
    assert largest_class([7, 0], ("Background", "a")) == 0


def test_several_classes_of_a_rectangle_share_its_pixels() -> None:
    first, second = explain(pixels=PixelSelection(box=(4, 3, 9, 8)), target=[2, 0])
    assert (first.target, second.target, first.region.num_pixels) == (2, 0, 72)
    assert second.is_another_target
    assert_close(first.outputs, second.outputs)
    values = region_json(first.region, first.curves)
    assert values["region"] == {"pixel": None, "box": (4, 3, 9, 8), "pixels": 72, "size": (WIDTH, HEIGHT)}
    assert set(values["curves"]) == {"random", "edges", "rollout", "gradcam"}
    assert_close(values["curves"]["gradcam"]["deletion"][0], float(first.probabilities[2]), rtol=1e-5, atol=1e-6)


def test_a_region_everywhere_has_no_context() -> None:
    (everywhere,) = explain(pixels=PixelSelection(box=(0, 0, WIDTH, HEIGHT)))
    assert everywhere.curves["rollout"].context is None
    (corner,) = explain(pixels=PixelSelection((0, 0)))
    assert corner.curves["rollout"].context is not None


def test_what_cannot_be_explained_is_named() -> None:
    model = segmenter()
    model.head.linear.bias.data.view(3, -1)[2] -= 100  # never predicted
    with pytest.raises(VitrailError, match="no pixel of the image is predicted as road"):
        explain(model, target=2)
    with pytest.raises(VitrailError, match="outside of the crop that the model gets"):
        explain(segmenter(Preprocess((12, 15), 0.5)), pixels=PixelSelection((0, 0)))
    with pytest.raises(VitrailError, match="must lie in the image, which is 30x22, got 28,3,3,1; try 15,11,8,6"):
        explain(pixels=PixelSelection(box=(28, 3, 3, 1)))


def test_faithfulness_on_a_dataset_is_that_of_the_largest_regions() -> None:
    """At the model's own size, the benchmark of one image is its explanation."""
    model, pixels = segmenter(), PIXELS[:12, :15].copy()
    data = ArrayDataset(pixels[None], np.zeros(1, np.int64), ("any",))
    scores = {row.method: row for row in benchmark_explanations(model, data, ["gradcam"], workers=0)}
    (explanation,) = explain(model, pixels, methods=("gradcam",))
    assert_close(scores["gradcam"].deletion_curve, tuple(explanation.curves["gradcam"].everywhere.deletion_curve[0].tolist()))
    assert torch.equal(explanation.image, preprocess(model, [pixels])[0])
    model.head.linear.bias.data.view(3, -1)[1] -= 100
    with pytest.raises(VitrailError, match="name another with --class"):
        benchmark_explanations(model, data, ["gradcam"], workers=0, target=1)
