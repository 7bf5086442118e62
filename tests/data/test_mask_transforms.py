"""A mask is cropped, flipped and warped exactly as its image, and is never interpolated."""

import numpy as np
import pytest
import torch
from numpy import ndarray

from vitrail.augment.policy import POLICIES, Policy, get_policy
from vitrail.augment.randaugment import RandAugmentOps, draw_randaugment
from vitrail.data import batch_transforms
from vitrail.data.batch_transforms import EvalTransform, TrainTransform
from vitrail.data.loader import build_train_loader
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.data.sources.dataset import IGNORED, ArrayDataset
from vitrail.data.transforms import mask_to_input
from vitrail.errors import VitrailError

LEVELS = np.array([30, 110, 190], np.uint8)  # the grey of each class
PREPROCESS = Preprocess((48, 56), crop_pct=1.0, fit="stretch", mean=(0.0,) * 3, std=(1.0,) * 3)


class GreyByClass(ArrayDataset):
    """Images whose grey is the class of the pixel, so that the mask can be read from the image."""

    @property
    def mask_names(self) -> tuple[str, ...]:
        return "dark", "grey", "light"

    @property
    def has_mask_targets(self) -> bool:
        return True

    def mask(self, index: int) -> ndarray:
        return np.searchsorted(LEVELS, self.images[index][..., 0]).astype(np.int16)


def make_images(size: tuple[int, int] = (80, 70)) -> GreyByClass:
    """Images of a few large rectangles."""
    rng = np.random.default_rng(0)
    images = np.full((5, *size, 3), LEVELS[0])
    for image in images:
        for grey in (LEVELS[1], LEVELS[2], LEVELS[1]):
            top, left = rng.integers(0, size[0] - 30), rng.integers(0, size[1] - 30)
            image[top : top + rng.integers(20, 30), left : left + rng.integers(20, 30)] = grey
    return GreyByClass(images, np.full(5, -1), ("dark", "grey", "light"))


def agreement(images: torch.Tensor, masks: torch.Tensor) -> float:
    """The fraction of the counted pixels whose class is that of the nearest grey; edges are interpolated in the image only."""
    greys = (images[:, :1] * 255 - torch.from_numpy(LEVELS).float()[None, :, None, None]).abs()
    counted = masks != IGNORED
    return float((greys.argmin(1) == masks)[counted].float().mean())


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize(
    "policy",
    [
        Policy(crop_scale=(0.3, 1.0)),
        Policy(crop="scale-jitter"),
        Policy(crop="pad", pad=9),
        Policy(crop="none", hflip=1.0),
        Policy(crop="scale-jitter", max_class_fraction=0.7),
    ],
    ids=["random-resized", "scale-jitter", "pad", "none", "several classes"],
)
def test_image_and_mask_are_cropped_and_flipped_together(policy: Policy, fit: Fit) -> None:
    dataset = make_images()
    transform = TrainTransform(PREPROCESS.with_fit(fit), policy, seed=3)
    batch = transform(dataset, np.full(5, 2), np.arange(5))
    assert batch.targets is not None
    assert agreement(torch.as_tensor(batch.images), batch.targets.long()) > 0.96
    padded = fit == "pad" or policy.crop in ("scale-jitter", "pad")
    assert padded or not (batch.targets == IGNORED).any()
    assert set(batch.targets.unique().tolist()) <= {IGNORED, 0, 1, 2}


@pytest.mark.parametrize("operation", ["Rotate", "ShearX", "TranslateY"])
def test_a_mask_is_warped_as_its_image(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, strength = draw_randaugment, 0.2 if "Shear" in operation else 7.0

    def only_one(u: ndarray, layers: int, magnitude: float) -> RandAugmentOps:
        """The drawn operations, all of one kind."""
        found = draw(u, layers, magnitude)
        kind = found.names.index(operation)
        return found._replace(indices=np.full_like(found.indices, kind), strengths=np.full_like(found.strengths, strength))

    monkeypatch.setattr(batch_transforms, "draw_randaugment", only_one)
    transform = TrainTransform(PREPROCESS, Policy(crop="none", randaug_layers=1, randaug_magnitude=9.0), seed=1)
    batch = transform(make_images(), np.zeros(5, int), np.arange(5))
    assert batch.targets is not None
    assert agreement(torch.as_tensor(batch.images), batch.targets.long()) > 0.96
    assert (batch.targets == IGNORED).any(), "what comes from outside of the image belongs to no class"


def test_colours_do_not_change_a_mask() -> None:
    plain, jittered = Policy(crop="scale-jitter"), get_policy("jitter")
    first, second = (
        TrainTransform(PREPROCESS, each, 5)(make_images(), np.zeros(5, int), np.arange(5)) for each in (plain, jittered)
    )
    assert first.targets is not None
    assert second.targets is not None
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(torch.as_tensor(first.images), torch.as_tensor(second.images))
    assert POLICIES["jitter"].crop == plain.crop


def test_a_crop_of_a_single_class_is_drawn_again() -> None:
    """A small figure: with the limit, far fewer crops are nearly all background."""
    images = np.full((1, 90, 80, 3), LEVELS[0])
    images[0, 30:50, 20:45] = LEVELS[2]
    dataset = GreyByClass(images, np.full(1, -1), ("dark", "grey", "light"))

    def share_of_background_only(limit: float) -> float:
        transform = TrainTransform(PREPROCESS, Policy(crop_scale=(0.05, 0.2), max_class_fraction=limit), seed=0)
        masks = transform(dataset, np.arange(60), np.zeros(60, int)).targets
        assert masks is not None
        return float((masks == 0).flatten(1).all(1).float().mean())

    assert share_of_background_only(1.0) > 0.15
    assert share_of_background_only(0.9) < 0.05


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_a_mask_becomes_the_input_as_its_image_in_evaluation(fit: Fit) -> None:
    dataset, preprocess = make_images(), PREPROCESS.with_fit(fit)
    images = EvalTransform(preprocess)(dataset, np.zeros(5, int), np.arange(5)).images
    masks = torch.from_numpy(np.stack([mask_to_input(dataset.mask(index), preprocess) for index in range(5)]))
    assert agreement(torch.as_tensor(images), masks.long()) > 0.96


def test_masks_are_the_targets_of_a_batch_and_the_same_on_any_number_of_workers() -> None:
    dataset = make_images()
    loaders = [build_train_loader(dataset, PREPROCESS, 4, get_policy("jitter"), 7) for _ in range(2)]
    one, several = (next(iter(loader.batches(workers=workers))) for loader, workers in zip(loaders, (0, 2), strict=True))
    assert one.targets.shape == (4, 48, 56)
    assert torch.equal(one.targets, several.targets)
    assert torch.equal(one.images, several.images)


def test_a_mask_of_another_size_than_its_image_is_refused() -> None:
    class Wrong(GreyByClass):
        def mask(self, index: int) -> ndarray:
            return super().mask(index)[:-1]

    dataset = make_images()
    wrong = Wrong(dataset.images, dataset.labels, dataset.class_names)
    with pytest.raises(VitrailError, match="70 x 80 pixels, and its mask 70 x 79"):
        next(iter(build_train_loader(wrong, PREPROCESS, 4, get_policy("jitter"), 0).batches(workers=0)))
