"""Tiles cover every pixel of an image, and their joined outputs are those of the image where the model's outputs are local."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.small_models import small_config
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import to_pixels
from vitrail.errors import VitrailError
from vitrail.inference.dense import image_bands
from vitrail.inference.predictor import Predictor
from vitrail.inference.tiles import TileOutputs, Tiling, choose_tiling, cut_tile, joined_bands
from vitrail.models.config import ModelConfig
from vitrail.tasks import dense
from vitrail.tasks.registry import build_task

NAMES = ("sky", "tree", "road")
INPUT = (16, 24)


class LocalPredictor(Predictor):
    """A model whose outputs for a pixel are its three channels."""

    backend = "torch"

    def __init__(self, preprocess: Preprocess | None = None, **metadata: Any) -> None:
        config: ModelConfig = replace(small_config(classes=0), image=INPUT, patch=(8, 8))
        recorded = {"recipe": {"task": {"kind": "segmentation", "classes": 3}}, **metadata}
        preprocess = preprocess or Preprocess(INPUT, 1.0, "stretch", "bilinear")
        super().__init__("local", config, preprocess, NAMES, recorded, has_decoder=True)
        self.num_inputs: list[int] = []

    def outputs(self, images: ndarray) -> ndarray:
        self.num_inputs.append(len(images))
        return images.transpose(0, 3, 1, 2).astype(np.float32)

    def hash(self) -> str:
        return "local"


def image(height: int, width: int) -> ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def outputs_of(predictor: Predictor, pixels: ndarray, tiling: Tiling | None) -> Tensor:
    bands = list(image_bands(predictor, pixels, tiling))
    assert [band.start for band, _ in bands] == [0, *(band.stop for band, _ in bands[:-1])]
    assert bands[-1][0].stop == len(pixels)
    return torch.cat([values for _, values in bands], dim=1)


@pytest.mark.parametrize("size", [(16, 24), (17, 61), (90, 50), (16, 100), (40, 24)])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.6])
@pytest.mark.parametrize("band_numel", [2**24, 500])
def test_outputs_that_are_local_are_those_of_every_pixel(
    size: tuple[int, int], overlap: float, band_numel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles of the input's size each pixel is an input pixel, so the joined outputs are the image itself."""
    monkeypatch.setattr(dense, "MAX_BAND_NUMEL", band_numel)
    pixels = image(*size)
    joined = outputs_of(LocalPredictor(), pixels, Tiling(INPUT, overlap, (2, 3)))
    assert_close(joined, torch.from_numpy(pixels).permute(2, 0, 1).float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", [(4, 60), (60, 9), (15, 70)])
def test_an_image_that_is_narrower_than_a_tile_lies_in_its_middle(size: tuple[int, int]) -> None:
    pixels = image(*size)
    joined = outputs_of(LocalPredictor(), pixels, Tiling(INPUT, 0.25, (2, 3)))
    assert_close(joined, torch.from_numpy(pixels).permute(2, 0, 1).float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("fit", ["stretch", "pad", "crop"])
def test_an_image_that_is_no_larger_than_a_tile_is_predicted_as_a_whole(fit: Any) -> None:
    predictor = LocalPredictor(Preprocess(INPUT, 1.0, fit, "bilinear"))
    pixels = image(30, 41)
    whole = outputs_of(predictor, pixels, None)
    assert torch.equal(outputs_of(predictor, pixels, Tiling((30, 41), 0.25, (2, 3))), whole)
    if fit == "stretch":
        inputs = predictor.outputs(_input(predictor, pixels))
        assert_close(whole, F.interpolate(torch.from_numpy(inputs), (30, 41), mode="bilinear")[0], rtol=1e-5, atol=1e-3)


def _input(predictor: Predictor, pixels: ndarray) -> ndarray:
    return to_pixels(pixels, predictor.preprocess)[None]


def test_a_tile_of_another_size_than_the_input_is_resized() -> None:
    preprocess = Preprocess(INPUT, 1.0, "stretch", "bilinear")
    pixels = image(64, 96)
    tile = cut_tile(pixels, (48, 32, 96, 64), preprocess)
    assert np.array_equal(tile, _input(LocalPredictor(preprocess), np.ascontiguousarray(pixels[32:, 48:]))[0])
    beyond = cut_tile(pixels, (-12, -8, 12, 8), preprocess)
    assert np.array_equal(beyond[8:, 12:], pixels[:8, :12])
    assert (beyond[:8] == preprocess.pad_colour).all()


@pytest.mark.parametrize(("overlap", "stride"), [(0.0, (16, 24)), (0.25, (8, 16)), (0.9, (8, 8))])
def test_tiles_lie_whole_patches_apart_and_cover_the_image(overlap: float, stride: tuple[int, int]) -> None:
    tiling, (height, width) = Tiling(INPUT, overlap, (2, 3)), (70, 93)
    rows = tiling.rows((height, width))
    covered = np.zeros((height, width), bool)
    for row in rows:
        assert len({window[1] for window in row}) == 1
        for left, top, right, bottom in row:
            assert (bottom - top, right - left) == INPUT
            covered[int(top) : int(bottom), int(left) : int(right)] = True
    assert covered.all()
    tops, lefts = [row[0][1] for row in rows], [window[0] for window in rows[0]]
    assert set(np.diff(tops[:-1])) == {stride[0]}
    assert set(np.diff(lefts[:-1])) == {stride[1]}
    assert (tops[-1], lefts[-1]) == (height - 16, width - 24)


def test_where_tiles_overlap_the_one_whose_centre_is_nearer_counts_more() -> None:
    outputs = [torch.full((1, 16, 24), value) for value in (0.0, 1.0)]
    tiles = [TileOutputs((left, 0, left + 24, 16), value) for left, value in zip((0, 16), outputs, strict=True)]
    ((_, joined),) = joined_bands([tiles], (16, 40))
    row = joined[0, 5]
    assert (row[:16] == 0).all()
    assert (row[24:] == 1).all()
    assert (row[16:24].diff() > 0).all()
    assert_close(row[19] + row[20], torch.tensor(1.0))


def test_only_rows_of_tiles_that_are_needed_are_kept() -> None:
    """So the memory does not depend on the height of the image."""
    tiling, size = Tiling(INPUT, 0.5, (2, 3)), (400, 60)
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def rows() -> Iterator[list[TileOutputs]]:
        nonlocal most
        for windows in tiling.rows(size):
            row = [TileOutputs(window, torch.zeros(2, *INPUT)) for window in windows]
            alive.update(tile.outputs for tile in row)
            most = max(most, len(alive) // len(windows))
            yield row
            del row

    assert sum(band.stop - band.start for band, _ in joined_bands(rows(), size)) == 400
    assert 2 <= most <= 4
    assert len(tiling.rows(size)) > 40


def test_auto_takes_the_size_of_the_training_images() -> None:
    predictor = LocalPredictor(dataset={"image_size": [300, 400]})
    tiling = choose_tiling("auto", 0.25, predictor)
    assert tiling is not None
    assert tiling.size == (300, 400)
    assert not tiling.applies_to((600, 800))
    assert tiling.applies_to((601, 400))
    padded = LocalPredictor(Preprocess(INPUT, 1.0, "pad"), dataset={"image_size": [320, 400]})
    tiling = choose_tiling("auto", 0.25, padded)
    assert tiling is not None
    assert tiling.size == (320, 480)  # the model has seen the image with its margins


def test_batches_of_tiles_have_the_size_that_was_asked_for() -> None:
    predictor = LocalPredictor()
    list(image_bands(predictor, image(16, 24 * 5), Tiling(INPUT, 0.0, (2, 3)), batch_size=2))
    assert predictor.num_inputs == [2, 2, 1]


@pytest.mark.parametrize(
    ("tile", "overlap", "message"),
    [
        ("auto", 0.25, r"local does not record how large its training images were, which tile=auto needs; .* tile=96"),
        (4, 0.25, r"tile must be auto, none, or height and width from 8 pixels on, got 4; try tile=512"),
        ("big", 0.25, r"tile must be auto, none, .* got 'big'"),
        (64, 1.0, r"overlap must be from 0 to 0.9, got 1.0; try overlap=0.25"),
    ],
)
def test_wrong_tiles_are_refused(tile: Any, overlap: float, message: str) -> None:
    with pytest.raises(VitrailError, match=message):
        vitrail.predict(LocalPredictor(), image(64, 64), tile=tile, overlap=overlap)


def test_a_classifier_has_no_tiles() -> None:
    model = vitrail.build("mu/16", image=32, classes=3)
    model.preprocess = Preprocess((32, 32))
    with pytest.raises(
        VitrailError, match="tiles are for models that predict masks or boxes, and the model is a model for classification"
    ):
        vitrail.predict(model, image(64, 64), tile=32)


def test_predictions_have_masks_of_the_sizes_of_the_images_in_tiles_or_not() -> None:
    tiled, small = image(64, 90), image(16, 24)
    predictor, images = LocalPredictor(), [image(20, 30), tiled, b"", image(7, 200), small]
    task = build_task(predictor.task.config, predictor.config, predictor.preprocess, NAMES)
    assert type(predictor.task) is type(task)
    for batch in (1, 3, 10):
        for workers in (0, 2):
            rows = vitrail.predict(predictor, images, batch_size=batch, workers=workers, tile=INPUT)
            assert [row.error is None for row in rows] == [True, True, False, True, True]
            for pixels, row in zip(images, rows, strict=True):
                if isinstance(pixels, ndarray):
                    assert row.mask.shape == pixels.shape[:2]
                    assert sum(row.classes.values()) == pytest.approx(1)
            for number, pixels in ((1, tiled), (4, small)):
                assert np.array_equal(rows[number].mask, pixels.argmax(2))


def test_outputs_that_are_not_finite_are_an_error_of_their_image_alone() -> None:
    class Broken(LocalPredictor):
        def outputs(self, images: ndarray) -> ndarray:
            outputs = super().outputs(images)
            outputs[images.min((1, 2, 3)) > 200] = np.nan
            return outputs

    bright = np.full((40, 40, 3), 250, np.uint8)
    for tile in (None, INPUT):
        rows = vitrail.predict(Broken(), [image(40, 40), bright], tile=tile)
        assert rows[0].error is None
        assert rows[1].error == "makes the model's logits non-finite (NaN/Inf)"
