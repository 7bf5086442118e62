"""``panes`` is the same everywhere, its ground truth is exact, and it is as hard as intended."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from scripts.panes_hardness import hardness
from vitrail.data.sources.panes import draw
from vitrail.data.sources.panes.dataset import PANES_CLASSES, PanesDataset, Scene, build_panes, draw_scene
from vitrail.data.sources.panes.layout import FIGURES, OBJECT_KINDS
from vitrail.errors import VitrailError

SIZE = (40, 56)


def draw_scenes(count: int, seed: int = 3, size: tuple[int, int] = SIZE) -> list[Scene]:
    return [draw_scene(seed, index, size) for index in range(count)]


def test_a_scene_is_a_function_of_seed_and_index() -> None:
    assert draw_scene(3, 7, SIZE).pixels.tobytes() == draw_scene(3, 7, SIZE).pixels.tobytes()
    others = [draw_scene(3, 8, SIZE), draw_scene(4, 7, SIZE)]
    assert not any((draw_scene(3, 7, SIZE).pixels == other.pixels).all() for other in others)


def test_the_dataset_never_changes_silently() -> None:
    digest = hashlib.sha256()
    for index in range(40):
        for size in ((64, 64), (16, 31)):
            scene = draw_scene(2026, index, size)
            for part in (scene.pixels, scene.mask, scene.instances, scene.boxes, scene.kinds):
                digest.update(np.ascontiguousarray(part, dtype="<i8" if part.dtype.itemsize == 8 else np.uint8).tobytes())
    assert digest.hexdigest() == "ba201a3acd4217b127d944cfe6247c7369d0607939c805ceaf44ee2300ee8274"


def test_many_threads_draw_the_same_as_one() -> None:
    dataset = build_panes("train", 64, SIZE)
    with ThreadPoolExecutor(8) as pool:
        samples = list(pool.map(dataset.read, range(64)))
    assert all((samples[index] == dataset.read(index)).all() for index in range(64))


def test_labels_are_known_without_drawing_and_agree_with_the_scenes() -> None:
    dataset = build_panes("test", 50, SIZE)
    assert dataset.labels.tolist() == [dataset.scene(index).label for index in range(50)]
    assert build_panes("test", 20, SIZE).labels.tolist() == dataset.labels[:20].tolist()
    assert dataset.class_names == PANES_CLASSES
    assert dataset.describe(7) == "image 7 of panes test"


def test_classes_are_equally_frequent_within_chance() -> None:
    counts = np.bincount(build_panes("train", 100_000).labels, minlength=len(PANES_CLASSES))
    assert counts.min() > 0
    assert np.square(counts - 10_000).sum() / 10_000 < 27.9  # chi-squared of 9 degrees exceeds it once in a thousand


def test_splits_and_seeds_share_no_image() -> None:
    datasets = [build_panes(split, 50, (16, 18), seed) for split in ("train", "validation", "test") for seed in (0, 1)]
    assert len({dataset.seed for dataset in datasets}) == 6
    images = {dataset.read(index).tobytes() for dataset in datasets for index in range(50)}
    assert len(images) == 6 * 50


def test_boxes_are_the_extents_of_the_visible_parts() -> None:
    for scene in draw_scenes(60):
        assert sorted(set(scene.instances.ravel()) - {0}) == list(range(1, len(scene.kinds) + 1))
        for number, (left, top, right, bottom) in enumerate(scene.boxes, 1):
            rows, columns = np.nonzero(scene.instances == number)
            assert (left, top, right, bottom) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def test_the_mask_is_the_one_object_whose_kind_is_the_label() -> None:
    for scene in draw_scenes(60):
        figures = np.flatnonzero(scene.kinds < len(PANES_CLASSES))
        assert scene.kinds[figures].tolist() == [scene.label]
        assert ((scene.instances == figures[0] + 1) == (scene.mask == 1)).all()
        assert scene.kinds.max() < len(OBJECT_KINDS)


def test_every_figure_has_five_panes_and_differs_from_the_others_and_their_mirror_images() -> None:
    shapes = [np.array([[letter == "#" for letter in row] for row in figure]) for figure in FIGURES.values()]
    assert all(shape.sum() == 5 for shape in shapes)
    assert len({min(shape.tobytes(), shape[:, ::-1].tobytes()) for shape in shapes}) == len(PANES_CLASSES)


def test_figures_are_occluded_but_never_leave_the_image() -> None:
    scenes = draw_scenes(200)
    assert all(1 <= len(scene.kinds) <= 4 for scene in scenes)
    areas = np.array([scene.mask.mean() * SIZE[1] / SIZE[0] for scene in scenes])
    assert areas.min() > 0.12
    assert areas.max() < 0.36


def test_painting_only_the_window_of_an_object_paints_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = draw_scenes(40)
    monkeypatch.setattr(draw, "_touched_window", lambda h, w, short, lattice: (slice(0, h), slice(0, w)))
    for near, everywhere in zip(scenes, draw_scenes(40), strict=True):
        assert (near.pixels == everywhere.pixels).all()
        assert (near.instances == everywhere.instances).all()


@pytest.mark.parametrize("size", [(16, 16), (17, 40), (90, 33), (64, 64)])
def test_any_size_is_drawn_with_its_ground_truth(size: tuple[int, int]) -> None:
    for scene in draw_scenes(10, size=size):
        assert scene.pixels.shape == (*size, 3)
        assert scene.mask.shape == scene.instances.shape == size
        assert scene.mask.any()


def test_a_scene_is_the_same_at_two_sizes() -> None:
    for index in range(30):
        small, large = draw_scene(5, index, (32, 48)), draw_scene(5, index, (96, 144))
        again = large.mask[1::3, 1::3]
        both, either = (small.mask & again).sum(), (small.mask | again).sum()
        assert both / either > 0.95
        blocks = large.pixels.reshape(32, 3, 48, 3, 3).mean((1, 3))
        assert np.abs(blocks - small.pixels).mean() < 16


def test_an_image_and_its_negative_are_equally_likely_so_every_class_has_the_same_flat_mean() -> None:
    """The mean is within five standard errors of grey, for the figure's pixels and the others: no first-order cue."""
    scenes = draw_scenes(800, size=(16, 16))
    for part in (0, 1):
        means = np.array([scene.pixels[scene.mask == part].mean() for scene in scenes])
        assert abs(means.mean() - 127.5) < 5 * means.std() / len(means) ** 0.5


@pytest.mark.thorough
def test_a_linear_classifier_of_pixels_learns_next_to_nothing() -> None:
    train, test = build_panes("train", 2500, (16, 16)), build_panes("test", 1000, (16, 16))
    x, y = (np.stack([part.read(i).ravel() for i in range(len(part))]) / 127.5 - 1 for part in (train, test))
    gram = x.T @ x
    for penalty in (1e2, 1e3, 1e4):
        weights = np.linalg.solve(gram + penalty * np.eye(len(gram)), x.T @ np.eye(len(PANES_CLASSES))[train.labels])
        assert np.mean((y @ weights).argmax(1) == test.labels) < 0.2


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(VitrailError, match=r"size must be at least 16 pixels per side, got 15 x 64; try \(64, 64\)"):
        draw_scene(0, 0, (15, 64))
    with pytest.raises(VitrailError, match="count must not be negative, got -1"):
        build_panes("train", -1)
    with pytest.raises(VitrailError, match="panes has the splits train, validation, test, got 'val'"):
        build_panes("val", 5)
    with pytest.raises(IndexError, match="panes train has 5 images, got 5"):
        build_panes("train", 5).read(5)
    assert len(PanesDataset(0, 0)) == len(PanesDataset(0, 0).labels) == 0


@pytest.mark.slow
def test_it_is_hard_for_a_linear_model_easy_for_a_small_vit_and_the_arrangement_decides() -> None:
    accuracies = hardness()
    assert accuracies.linear < 1 / len(PANES_CLASSES) + 0.1
    assert accuracies.vit > 0.9
    assert accuracies.shuffled < accuracies.vit - 0.2
