"""The splits of one fold of a cross-validation: the fold is the test split, and the others are train and validation.

All images of a dataset are divided into folds: those of train and validation, and those of test as well if it was split off by
content. A test split that the dataset brings along is left out, so that it can still test the model that is trained at the end.
"""

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vitrail.data.image_index import index_images
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.content_split import SplitFractions, fold_of, split_by_content_hash
from vitrail.data.sources.dataset import Dataset, DatasetSplits, Progress, fingerprint, select_images
from vitrail.data.sources.fold import Fold
from vitrail.data.sources.label_sets import LabelSets
from vitrail.data.sources.open import SPLIT_NOTES, random_keys, training_notes
from vitrail.data.sources.strata import strata_of
from vitrail.errors import VitrailError

FOLD_NOTE = "fold"


def fold_splits(data: DatasetSplits, fold: Fold, val_fraction: float, progress: Progress | None = None) -> DatasetSplits:
    """Return the splits of a fold. The validation split is split off from the other folds, first from the next one, so that
    each image serves for validation about equally often. Splits of a fold are divided like those that they came from."""
    if data.fold == fold:
        return data
    pool = _pool(data)
    keys, good, bad = _content_keys(pool, progress)
    strata = strata_of(pool)[good]
    _check_size(data.name, pool, keys, strata, fold.of)
    folds = fold_of(keys, strata, fold.of)
    rest = np.flatnonzero(folds != fold.number)
    next_fold_first = (folds[rest] - fold.number) % fold.of * len(keys) + keys[rest]
    parts = split_by_content_hash(next_fold_first, strata[rest], SplitFractions(val_fraction, 0.0))
    train, validation = (good[rest[parts[split]]] for split in ("train", "validation"))
    train = np.sort(np.concatenate([train, bad]))  # where the dataset check lists them
    selected = (train, validation, good[folds == fold.number])
    train_split, val_split, test_split = (select_images(pool, indices) for indices in selected)
    notes = (*_notes(data), *_rare_labels(pool, strata, fold.of), _fold_note(data, fold))
    whole = fingerprint(train_split, val_split, test_split)
    return DatasetSplits(data.name, train_split, val_split, test_split, whole, notes, None, data.columns, fold)


def _pool(data: DatasetSplits) -> Dataset:
    """Return the images to divide into folds, one after the other."""
    splits = [data.train, data.validation, *([] if _has_own_test(data) else [data.test])]
    return ConcatDataset([split for split in splits if len(split)] or [data.train])


def _has_own_test(data: DatasetSplits) -> bool:
    """Return whether the dataset brings a test split along."""
    was_split_off = data.fold is not None or (data.split_fractions is not None and data.split_fractions.test > 0)
    return len(data.test) > 0 and not was_split_off


def _content_keys(
    pool: Dataset, progress: Progress | None
) -> tuple[Int[ndarray, " n"], Int[ndarray, " n"], Int[ndarray, " m"]]:
    """Return the rank of each usable image by content, which is the same for equal pixels, and the indices of the usable and
    of the other images.

    Of the files of the same pixels, the smallest hash counts: how a file is decoded may differ between machines.
    """
    if not pool.is_deterministic:
        good = np.arange(len(pool))
        return np.unique(random_keys(good), return_inverse=True)[1], good, np.zeros(0, np.int64)
    index = index_images(pool, progress)
    usable = index.select(index.good)
    hashes, rank_of_hash = np.unique(usable.file_keys(), return_inverse=True)
    same_pixels = np.unique(usable.pixel_keys(), return_inverse=True)[1]
    first = np.full(len(usable.errors), len(hashes))
    np.minimum.at(first, same_pixels, rank_of_hash)
    return first[same_pixels], index.good, index.bad


def _check_size(name: str, pool: Dataset, keys: Int[ndarray, " n"], strata: ndarray | LabelSets, folds: int) -> None:
    """Refuse more folds than a class has images, of which duplicates count once."""
    num_images = len(np.unique(keys))
    if num_images < folds:
        raise VitrailError(f"folds must be at most {num_images}, the number of different images of {name}, got {folds}")
    if isinstance(strata, LabelSets) or not pool.class_names:
        return
    different = np.unique(np.stack([strata, keys]), axis=1)[0]
    counts = np.bincount(different[different >= 0], minlength=len(pool.class_names))
    smallest = int(np.where(counts > 0, counts, np.iinfo(np.int64).max).argmin())
    if 0 < (count := int(counts[smallest])) < folds:
        images = "1 image" if count == 1 else f"{count} different images"
        remedy = f"try folds={min(count, 5)}" if count > 1 else "add images to it, or leave it out"
        raise VitrailError(
            f"folds must be at most the number of images of each class, got folds={folds} and {images} of "
            f"{pool.class_names[smallest]!r} in {name}; {remedy}"
        )


def _notes(data: DatasetSplits) -> list[str]:
    """Return the notes on a dataset without those on its own splits."""
    of_train = training_notes(data.train)
    return [note for note in data.notes if not note.startswith((*SPLIT_NOTES, FOLD_NOTE)) and note not in of_train]


def _rare_labels(pool: Dataset, strata: ndarray | LabelSets, folds: int) -> list[str]:
    """Return a note on labels with fewer images than there are folds, if an image may have several labels."""
    if not isinstance(strata, LabelSets) or not pool.class_names:
        return []
    counts = strata.counts()
    rare = [repr(pool.class_names[label]) for label in np.flatnonzero((counts > 0) & (counts < folds))]
    more = f" and {len(rare) - 3} more" if len(rare) > 3 else ""
    return [f"fewer images than folds have {', '.join(rare[:3])}{more}: some folds do not test them"] if rare else []


def _fold_note(data: DatasetSplits, fold: Fold) -> str:
    left_out = f"; the dataset's own test split of {len(data.test):,} images is left out" if _has_own_test(data) else ""
    return f"{FOLD_NOTE} {fold.number} of {fold.of} is the test split{left_out}"
