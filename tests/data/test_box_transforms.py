"""A box is cropped, flipped and warped exactly as its image."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.augment.policy import Policy, get_policy
from vitrail.augment.randaugment import RandAugmentOps, draw_randaugment
from vitrail.data import batch_transforms
from vitrail.data.batch_transforms import EvalTransform, TrainTransform
from vitrail.data.loader import build_train_loader
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.data.sources.dataset import ArrayDataset, Dataset
from vitrail.data.sources.objects import Objects, build_objects
from vitrail.data.transforms import boxes_to_input, upright_size

PREPROCESS = Preprocess((48, 56), crop_pct=1.0, fit="stretch", mean=(0.0,) * 3, std=(1.0,) * 3)
BOXES = np.array([[20, 12, 50, 60], [0, 0, 22, 31], [41, 33, 70, 80], [5, 50, 33, 79], [30, 30, 36, 37]])
BACKGROUND, FOREGROUND, THRESHOLD = 0.2, 0.95, 0.6  # greys; what comes from outside of an image is 0.5


class BrightBoxes(ArrayDataset):
    """Images with one bright rectangle, so that its box can be read from the image."""

    @property
    def box_names(self) -> tuple[str, ...]:
        return ("box",)

    @property
    def has_box_targets(self) -> bool:
        return True

    def objects(self, index: int) -> Objects:
        return build_objects(BOXES[index], [0])


def make_images() -> BrightBoxes:
    images = np.full((5, 80, 70, 3), 255 * BACKGROUND).astype(np.uint8)
    for image, (left, top, right, bottom) in zip(images, BOXES, strict=True):
        image[top:bottom, left:right] = round(255 * FOREGROUND)
    return BrightBoxes(images, np.full(5, -1), ("box",))


def bright_box(image: Tensor) -> ndarray:
    """The box around the bright pixels of an image, empty if there are none."""
    bright = image[0] > THRESHOLD
    rows, columns = np.flatnonzero(bright.any(1)), np.flatnonzero(bright.any(0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) if len(rows) else np.zeros(4)


def check(images: Tensor, targets: Tensor, tolerance: float = 1.5) -> int:
    """Compare boxes with the bright pixels; return how many there were to compare."""
    compared = 0
    for image, objects in zip(images, targets, strict=True):
        found, present = bright_box(image), objects[objects[:, 4] >= 0]
        if len(present):
            np.testing.assert_allclose(present[0, :4].numpy(), found, atol=tolerance)
            compared += 1
        else:
            assert (found[2] - found[0]) * (found[3] - found[1]) < 3 * tolerance, "nothing of the box is left"
    return compared


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize(
    "policy",
    [
        Policy(crop_scale=(0.3, 1.0)),
        Policy(crop="scale-jitter"),
        Policy(crop="pad", pad=9),
        Policy(crop="none", hflip=1.0),
    ],
    ids=["random-resized", "scale-jitter", "pad", "none"],
)
def test_image_and_boxes_are_cropped_and_flipped_together(policy: Policy, fit: Fit) -> None:
    transform, dataset, compared = TrainTransform(PREPROCESS.with_fit(fit), policy, seed=3), make_images(), 0
    for epoch in range(4):
        batch = transform(dataset, np.full(5, epoch), np.arange(5))
        assert batch.targets is not None
        compared += check(torch.as_tensor(batch.images), batch.targets)
    assert compared > 10


@pytest.mark.parametrize("operation", ["Rotate", "ShearX", "TranslateY"])
def test_a_box_is_warped_as_its_image(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert check(torch.as_tensor(batch.images), batch.targets, tolerance=2.5) == 5


def test_an_object_of_which_little_is_left_is_ignored() -> None:
    """Crops of a quarter of the image cut most boxes: with the limit those of which less is visible are marked."""

    def ignored(min_visible: float) -> Tensor:
        policy = Policy(crop_scale=(0.25, 0.25), hflip=0.0, min_visible=min_visible)
        targets = TrainTransform(PREPROCESS, policy, seed=0)(make_images(), np.arange(50), np.arange(50) % 5).targets
        assert targets is not None
        return targets[targets[..., 4] >= 0][:, 5]

    assert ignored(0.0).sum() == 0
    some, most = ignored(0.3), ignored(1.0)
    assert 0 < some.sum() < most.sum()
    assert len(some) == len(most), "they are marked, not lost"


def test_a_box_becomes_the_input_as_its_image_in_evaluation() -> None:
    for fit in ("crop", "pad", "stretch"):
        dataset, preprocess = make_images(), PREPROCESS.with_fit(fit)
        images = EvalTransform(preprocess)(dataset, np.zeros(5, int), np.arange(5)).images
        for image, box in zip(torch.as_tensor(images), BOXES, strict=True):
            moved = boxes_to_input(box[None].astype(float), (80, 70), preprocess)[0]
            expected = np.clip(moved, 0, [56, 48, 56, 48])
            np.testing.assert_allclose(bright_box(image), expected, atol=1.5)


def test_boxes_are_the_targets_of_a_batch_and_the_same_on_any_number_of_workers() -> None:
    loader = build_train_loader(make_images(), PREPROCESS, 4, get_policy("jitter"), seed=2)
    plain, threaded = (list(loader.batches(0, 4, workers)) for workers in (0, 2))
    assert plain[0].targets.shape == (4, 1, 6)
    for one, other in zip(plain, threaded, strict=True):
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.images, other.images)


def test_images_without_objects_have_rows_of_no_object() -> None:
    class Sometimes(BrightBoxes):
        def objects(self, index: int) -> Objects:
            return build_objects(BOXES[:index], np.zeros(index))

    dataset = Sometimes(make_images().images, np.full(5, -1), ("box",))
    targets = TrainTransform(PREPROCESS, Policy(crop="none", hflip=0.0))(dataset, np.zeros(5, int), np.arange(5)).targets
    assert targets is not None
    assert (targets[..., 4] >= 0).sum(1).tolist() == [0, 1, 2, 3, 4]
    assert targets.shape == (5, 4, 6)


def test_a_rotated_photograph_has_the_size_of_the_upright_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(path, exif=exif)

    class One(Dataset):
        class_names, labels = (), np.array([-1])

        def read(self, index: int) -> bytes:
            return path.read_bytes()

    assert upright_size(One(), 0) == (30, 20)
    assert upright_size(make_images(), 3) == (80, 70)
