"""``vitrail.evaluate``: the metrics of a model on a split of a dataset, by the task that it was trained for.

The images go through the model's own preprocessing. A classifier is evaluated by ``evaluation.classification``, any other
model by the metrics of its task.
"""

from dataclasses import replace
from functools import singledispatch
from typing import Any

from vitrail.data.sources.dataset import Dataset, DatasetSplits, Progress
from vitrail.errors import VitrailError
from vitrail.evaluation.classification import evaluate_classifier
from vitrail.evaluation.detection import evaluate_detection
from vitrail.evaluation.label_matching import select_split
from vitrail.evaluation.leakage import dataset_notes, leakage_warnings, open_for_evaluation
from vitrail.evaluation.multi_label import evaluate_multi_label
from vitrail.evaluation.regression import evaluate_regression
from vitrail.evaluation.segmentation import evaluate_segmentation
from vitrail.evaluation.split_runner import Evaluation, SplitRunner, check_outputs
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import require_outputs
from vitrail.inference.tta import TTAMode
from vitrail.inference.with_tta import with_tta
from vitrail.tasks.classification import ClassificationTask
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.multi_label import MultiLabelTask
from vitrail.tasks.regression import RegressionTask
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.task import Task

DEFAULT_BATCH_SIZE = 64


def evaluate(
    model: Any,
    data: Any,
    split: str | None = None,
    tta: TTAMode | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Any:
    """Evaluate on a split: test, validation, train or all; None: the first of test, validation and all that has images.

    Returns the ``Evaluation`` of the model's task: metrics and notes; of one label per image, all of
    ``ClassificationEvaluation``, of several a ``ResampledEvaluation``.
    ``data`` is what ``vitrail.open_dataset`` opens, also an object with images and targets by index. ``tta`` is ``"flip"``,
    for a classifier also ``"crops"``, and for masks ``"scales"``. If the dataset has a validation split that is not the one
    evaluated, the temperature of a classifier is fitted on it.
    """
    predictor = require_outputs(load_predictor(model))
    task, is_default_split, notes = predictor.task, split is None, []
    data = open_for_evaluation(data, predictor, progress)
    split, source = select_split(data, split, task.config.labelled)
    preprocess = predictor.preprocess
    if tta is not None:
        predictor = with_tta(predictor, tta)
        if tta == "crops" and preprocess.image_size == preprocess.resize_to:
            notes = ["the model's preprocessing crops nothing, so the images were enlarged before cropping"]
    runner = SplitRunner(predictor, batch_size, workers, progress)
    result = evaluate_task(task, runner, data, split, source)
    warnings = leakage_warnings(predictor, data, split, is_default_split)
    return replace(result, notes=(*dataset_notes(data), *warnings, *notes, *result.notes))


@singledispatch
def evaluate_task(task: Task, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset) -> Evaluation:
    """Evaluate a model by the metrics of its task; a class of tasks that has more to say registers a function of its own."""
    task.require_targets(source, data.name)
    outputs, indices, unreadable = runner.run(source, split)
    check_outputs(task, outputs, indices, source, data.name)
    metrics = task.metrics(outputs, task.targets(source, indices.numpy()))
    return Evaluation(data.name, split, len(indices), unreadable, metrics, ())


@evaluate_task.register
def _(task: ClassificationTask, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset) -> Evaluation:
    if source.label_sets is not None:
        raise VitrailError(f"{data.name} has several labels per image, and {runner.predictor.source} predicts one")
    return evaluate_classifier(runner, data, split, source)


evaluate_task.register(MultiLabelTask, evaluate_multi_label)
evaluate_task.register(RegressionTask, evaluate_regression)
evaluate_task.register(SegmentationTask, evaluate_segmentation)
evaluate_task.register(DetectionTask, evaluate_detection)
