"""Train/test leakage: which splits the model was trained with, and warnings about scores on data that it was trained on."""

import os
from dataclasses import replace
from typing import Any

from vitrail.config import parse_value
from vitrail.data.sources.columns import ANY_COLUMNS, SEPARATORS, Columns
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits, Progress, empty_dataset
from vitrail.data.sources.fold import Fold
from vitrail.data.sources.folds import fold_splits
from vitrail.data.sources.open import NO_SPLITS_NOTE, as_source, has_columns, open_dataset, source_name, training_notes
from vitrail.errors import VitrailError
from vitrail.inference.export_metadata import path_hash
from vitrail.inference.predictor import Predictor

BOX_COLUMNS = Columns(boxes=True)  # of whatever dataset a detection model is evaluated on


def open_like_training(
    data: Any,
    predictor: Predictor,
    progress: Progress | None = None,
    labelled: bool = True,
    columns: Columns | None = None,
) -> DatasetSplits:
    """Open a dataset with the validation and test fractions of the model's training, so that the splits are the same; those
    of its fold, if it is a model of a cross-validation.

    ``columns`` of a table's targets: None means those of the training, or of a dataset that is new to the model, as found.
    """
    columns = _training_columns(predictor, data) if columns is None else columns
    fractions, fold = _training_fractions(predictor), predictor.metadata.get("recipe", {}).get("fold")
    opened = open_dataset(data, columns=columns, split_fractions=fractions, labelled=labelled, progress=progress)
    if fold is None or not _was_trained_on(predictor, opened.name):
        return opened
    return fold_splits(opened, parse_value(fold, Fold, "fold"), fractions.validation, progress)


def open_for_evaluation(
    data: Any, predictor: Predictor, progress: Progress | None = None, columns: Columns = ANY_COLUMNS
) -> DatasetSplits:
    """Open a dataset to evaluate a model on; one without splits of its own, new to the model, is evaluated as a whole.

    ``columns`` of a table's targets; what they leave open is as in the training of the model.
    """
    source, labelled = as_source(data, progress=progress), predictor.task.config.labelled
    columns = _evaluation_columns(predictor, source, columns)
    if _was_trained_on(predictor, source_name(source)):
        return open_like_training(source, predictor, progress, labelled, columns)
    opened = open_dataset(source, columns=columns, labelled=labelled, progress=progress)
    if opened is data or opened.split_fractions is None or not opened.split_fractions.test:
        return opened
    nothing = empty_dataset(opened.train)
    everything = ConcatDataset([split for split in opened.splits.values() if len(split)])
    notes = tuple(note for note in opened.notes if not note.startswith(NO_SPLITS_NOTE))
    return replace(opened, train=everything, validation=nothing, test=nothing, notes=notes, split_fractions=None)


def dataset_notes(data: DatasetSplits) -> list[str]:
    """Return the notes on a dataset that matter outside training."""
    return [note for note in data.notes if note not in training_notes(data.train)]


def leakage_warnings(predictor: Predictor, data: DatasetSplits, split: str, is_default_split: bool = False) -> list[str]:
    """Return warnings if the model was trained or selected on these images, whose scores would be optimistic."""
    training_fractions = _training_fractions(predictor)
    fractions = data.split_fractions or training_fractions
    if not _was_trained_on(predictor, data.name):
        is_partial = is_default_split and data.split_fractions is not None and getattr(fractions, split, 0) > 0
        return [f"the model was not trained on it, so more than its {split} can be evaluated: split all"] if is_partial else []
    # Whether the splits differ from those of the training.
    differs = fractions.validation != training_fractions.validation or (
        fractions.test > 0 and fractions.test != training_fractions.test
    )
    if split == "test" and not (differs and fractions.test > 0):
        return []
    selected_on = split == "validation" and not differs
    reason = "its weights were selected on" if selected_on else "the model was trained on"
    return [f"{reason} images that are among these, so the scores are optimistic"]


def _was_trained_on(predictor: Predictor, data_name: str) -> bool:
    """Return whether the model was trained on this dataset: by name, or because both names lead to the same path."""
    trained: Any = predictor.metadata.get("dataset", {})
    name = str(trained.get("name", ""))
    if "path_hash" in trained:  # an exported file has only the last part of the name, which is not unique
        spellings = os.path.abspath(data_name), os.path.realpath(data_name), os.path.relpath(data_name or ".")
        return trained["path_hash"] in map(path_hash, spellings)
    return name == data_name or (os.path.exists(name) and os.path.exists(data_name) and os.path.samefile(name, data_name))


def _training_columns(predictor: Predictor, data: Any) -> Columns:
    """Return where a table's targets were found when the model was trained on it; of other data nothing is known."""
    if predictor.task.config.has_masks:
        return _mask_columns(predictor)
    if predictor.task.config.has_boxes:
        return BOX_COLUMNS
    trained_on = isinstance(data, str | os.PathLike) and _was_trained_on(predictor, source_name(data))
    return _recorded_columns(predictor) if trained_on else ANY_COLUMNS


def _evaluation_columns(predictor: Predictor, data: Any, columns: Columns) -> Columns:
    """Return how a table's targets are read to evaluate a model: as it was trained, where nothing else is said."""
    if predictor.task.config.has_masks:
        return _mask_columns(predictor, columns.ignore)
    if predictor.task.config.has_boxes:
        return BOX_COLUMNS
    if columns.targets or predictor.task.config.several_labels is None:
        return columns if columns.targets else replace(ANY_COLUMNS, targets=_recorded_columns(predictor).targets)
    trained = _training_columns(predictor, data)
    if trained == ANY_COLUMNS and has_columns(data):
        trained = _recorded_columns(predictor).for_other_data
        if trained.separator in tuple(SEPARATORS):  # another table may have another of those that are found
            trained = replace(trained, separator=None)
    several = predictor.task.config.several_labels
    if not several and columns.splits_cells:
        raise VitrailError(
            f"{predictor.source} predicts one label per image, so separator={columns.separator} cannot split them; name a "
            "model that was trained on several labels per image"
        )
    return Columns(columns.labels or trained.labels, columns.separator or trained.separator, several)


def _mask_columns(predictor: Predictor, ignore: tuple[str, ...] = ()) -> Columns:
    """Return how masks are read: with the values ignored that are given or, left open, that were in the training."""
    return Columns(masks=True, ignore=ignore or _recorded_columns(predictor).ignore)


def _recorded_columns(predictor: Predictor) -> Columns:
    return parse_value(predictor.metadata.get("recipe", {}).get("columns", {}), Columns, "columns")


def _training_fractions(predictor: Predictor) -> SplitFractions:
    """Return the validation and test fractions of the model's training."""
    recipe = predictor.metadata.get("recipe", {})
    return SplitFractions(
        **{
            name: recipe[key]
            for name, key in (("validation", "val_fraction"), ("test", "test_fraction"))
            if isinstance(recipe.get(key), float | int)
        }
    )
