"""Features are the model's own, in order, and cached by all they depend on."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import vitrail
from tests.data import images as sample_images
from tests.preprocess_image import preprocess_image
from tests.small_models import small_vit
from vitrail.data.decode import decode
from vitrail.data.pack_writer import write_pack
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.inference import features
from vitrail.inference.features import embed, iter_features
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.vit import ViT


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def make_model(**changes: object) -> ViT:
    model = small_vit(**changes)
    model.preprocess = Preprocess((12, 15))
    return model


def cached_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "features").glob("*"))


@pytest.fixture
def forward_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of images in each forward pass."""
    counts: list[int] = []
    plain = TorchPredictor.features
    monkeypatch.setattr(TorchPredictor, "features", lambda p, images: counts.append(len(images)) or plain(p, images))  # type: ignore[func-returns-value]
    return counts


def folder(tmp_path: Path, bad: bool = False) -> Path:
    root = tmp_path / "set"
    for split, first in (("train", 0), ("val", 20), ("test", 40)):
        sample_images.write_class_folders(root / split, {"ant": 5, "bee": 6}, first)
    if bad:
        (root / "train" / "ant" / "2.jpg").write_bytes(b"no image")
    return root


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_features_are_the_models_own_of_each_image(batch: int, tmp_path: Path) -> None:
    model = make_model()
    source = vitrail.open_dataset(folder(tmp_path)).train
    embedded = embed(model, source, batch)
    assert embedded.indices.tolist() == list(range(11))
    assert np.array_equal(embedded.labels, source.labels)
    assert model.preprocess is not None
    for index, row in enumerate(embedded.values):
        image = preprocess_image(decode(Path(source.describe(index))), model.preprocess)
        with torch.inference_mode():
            assert_close(torch.from_numpy(row), model.features(image[None])[0], rtol=1e-4, atol=1e-5)


def test_a_model_without_classes_has_the_same_features(tmp_path: Path, forward_counts: list[int]) -> None:
    source = vitrail.open_dataset(folder(tmp_path)).train
    model = make_model()
    bare = make_model(classes=0)
    bare.load_state_dict({name: weight for name, weight in model.state_dict().items() if not name.startswith("head.")})
    assert np.array_equal(embed(model, source).values, embed(bare, source).values)
    assert forward_counts == [11]  # and not recomputed


def test_features_are_computed_once(tmp_path: Path, forward_counts: list[int]) -> None:
    model, source = make_model(), vitrail.open_dataset(folder(tmp_path, bad=True)).train
    first, second = embed(model, source), embed(model, source)
    assert forward_counts == [10]
    assert np.array_equal(first.values, second.values)
    assert np.array_equal(first.labels, second.labels)
    assert first.read_errors == second.read_errors
    assert list(first.read_errors) == [2]
    assert first.indices.tolist() == [0, 1, *range(3, 11)]


def test_features_are_recomputed_if_anything_they_depend_on_has_changed(tmp_path: Path, forward_counts: list[int]) -> None:
    root = folder(tmp_path)
    model, data = make_model(), vitrail.open_dataset(root)

    def num_passes() -> int:
        before = len(forward_counts)
        embed(model, data.train)
        return len(forward_counts) - before

    assert (num_passes(), num_passes()) == (1, 0)
    with torch.no_grad():
        model.get_parameter("blocks.3.norm1.bias")[5] += 1e-6
    assert (num_passes(), num_passes()) == (1, 0)
    model.preprocess = Preprocess((12, 15), crop_pct=0.9)
    assert (num_passes(), num_passes()) == (1, 0)
    sample_images.write_image(root / "train" / "ant" / "0.jpg", 77)  # the same name
    assert (num_passes(), num_passes()) == (1, 0)
    data = replace(data, train=data.validation)
    assert (num_passes(), num_passes()) == (1, 0)


def test_packs_and_arrays_have_different_cache_keys(tmp_path: Path, forward_counts: list[int]) -> None:
    model, data = make_model(), vitrail.open_dataset(folder(tmp_path))
    for size, name in (((12, 15), "plain.pack"), (None, "ragged.pack")):
        write_pack(tmp_path / name, {"train": data.train, "test": data.test}, size=size)
        for _ in range(2):
            pack = vitrail.open_dataset(tmp_path / name)
            assert not np.array_equal(embed(model, pack.train).values, embed(model, pack.test).values)
    fashion = vitrail.open_dataset("fashion").test
    part = [replace(fashion, images=fashion.images[:9].copy(), labels=fashion.labels[:9]) for _ in range(2)]  # type: ignore[type-var, attr-defined]
    part[1].images[4, 10:16, 10:16] ^= 255  # type: ignore[attr-defined]
    assert not np.array_equal(embed(model, part[0]).values, embed(model, part[1]).values)
    assert forward_counts == [9, 11, 9, 11, 9, 9]  # validation is split off train; a reopened pack is not recomputed


@pytest.mark.parametrize("fault", ["flip", "cut", "empty", "other", "locked"])
def test_a_damaged_cache_file_is_recomputed(fault: str, tmp_path: Path, forward_counts: list[int]) -> None:
    model, source = make_model(), vitrail.open_dataset(folder(tmp_path)).train
    expected = embed(model, source).values
    (file,) = cached_files(tmp_path)
    whole = file.read_bytes()
    if fault == "other":
        np.savez(file, values=expected[:4], indices=np.arange(4), bad=np.arange(7), reasons=np.zeros(0, np.uint8))
    else:
        at = whole.index(expected.tobytes()) + 100 if fault != "locked" else whole.index(b"PK\1\2") + 8  # "is encrypted"
        file.write_bytes({"cut": whole[:at], "empty": b""}.get(fault, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]))
    assert np.array_equal(embed(model, source).values, expected)
    assert forward_counts == [11, 11]
    assert file.read_bytes() == whole


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file" / "below"))
    assert len(embed(make_model(), vitrail.open_dataset("panes:train_size=7,size=16").train).values) == 7


def test_incomplete_features_are_not_cached(tmp_path: Path) -> None:
    source = vitrail.open_dataset("panes:train_size=9,size=16").train
    rows = iter_features(make_model(), source, batch_size=4)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert cached_files(tmp_path) == []
    assert [len(part.indices) for part in iter_features(make_model(), source, batch_size=4)] == [4, 4, 1]


def test_very_large_features_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MAX_CACHED_BYTES", 9 * 24 * 4 - 1)
    embed(make_model(), vitrail.open_dataset("panes:train_size=9,size=16").train)
    assert cached_files(tmp_path) == []


def test_files_bytes_and_arrays_can_be_embedded(tmp_path: Path) -> None:
    path = sample_images.write_image(tmp_path / "a.png", 3)
    embedded = vitrail.embed(make_model(), [path, path.read_bytes(), np.asarray(decode(path))])
    assert embedded.labels.tolist() == [-1, -1, -1]
    assert_close(embedded.values[1:], embedded.values[[0, 0]])
    assert cached_files(tmp_path) == []


def test_the_model_stays_in_the_mode_it_was_in() -> None:
    model = make_model(dropout=0.5).train()
    source = vitrail.open_dataset("panes:train_size=9,size=16").train
    first = embed(model, source)
    assert model.training
    assert np.array_equal(first.values, embed(model.eval(), source).values)


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    source = vitrail.open_dataset("panes:train_size=9,size=16").train
    with pytest.raises(VitrailError, match="has no preprocessing config"):
        embed(small_vit(), source)
    broken = make_model()
    broken.get_parameter("blocks.0.norm1.bias").data[0] = float("nan")
    with pytest.raises(VitrailError, match="is not finite"):
        embed(broken, source)
    with pytest.raises(VitrailError, match=r"no image can be used, the first one: .*gone.jpg"):
        embed(make_model(), [os.fspath(tmp_path / "gone.jpg")])
    with pytest.raises(VitrailError, match=r"images must be those of one split, got all of .*; try its \.test"):
        embed(make_model(), vitrail.open_dataset("panes:train_size=9,size=16"))
