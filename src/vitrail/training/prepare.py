"""Prepare a run: open its dataset, once, and make its recipe from a few options."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.augment.policy import get_policy
from vitrail.config import override
from vitrail.data.band_statistics import find_bands, measure_bands
from vitrail.data.preprocess import Fit
from vitrail.data.sources.columns import ANY_COLUMNS, Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.data.sources.folds import fold_splits
from vitrail.data.sources.image_like import describe_value
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.build import Model, get_encoder
from vitrail.models.config import ModelConfig, Pair
from vitrail.recipes.context import InitWeights, RecipeContext
from vitrail.recipes.recipe import Recipe, override_recipe
from vitrail.recipes.registry import SSL_METHODS, get_recipe
from vitrail.recipes.task_config import Classification, Detection, MultiLabel, Regression, Segmentation, TaskConfig
from vitrail.tasks.registry import model_task
from vitrail.training.dataset import check_targets, open_training_data
from vitrail.training.process_group import SINGLE_PROCESS, ProcessGroup
from vitrail.weights.catalogue import check_name, is_available
from vitrail.weights.init_from import weights_hash
from vitrail.weights.load import load, quiet_loading

EIGHT_BIT_CHANNELS = 3
COLOUR_NOTE = "RandAugment applies only its geometric operations to bands: those of colours are defined for 8-bit images"
PAPER_RECIPE, PAPER_SIZE = "paper-finetune", 384  # the paper fine-tunes at a higher resolution


@dataclass(frozen=True)
class RecipeOptions:
    """Options that set a field of the recipe under the name that people use first; ``overrides`` reach every field."""

    overrides: tuple[str, ...] = ()  # such as optim.lr=1e-3
    epochs: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    seed: int | None = None
    precision: str | None = None
    compile: bool = False
    augment: str | None = None
    fit: Fit | None = None
    columns: Columns = ANY_COLUMNS  # of the targets
    folds: int | None = None  # of a cross-validation
    head: str | None = None  # of a segmentation model

    def apply(self, recipe: Recipe, num_images: int) -> tuple[Recipe, tuple[str, ...]]:
        """Return the recipe with these options, and notes; ``num_images`` to train on turn epochs into steps."""
        if self.augment is not None:
            recipe = replace(recipe, augment=get_policy(self.augment))
        if self.fit is not None:
            recipe = replace(recipe, preprocess=recipe.preprocess.with_fit(self.fit))
        if self.head is not None and not recipe.task.is_dense:
            raise VitrailError(
                f"head chooses that of a segmentation or detection model, and the task is {recipe.task.name}; leave it out"
            )
        recipe, notes = override_recipe(recipe, [*self._assignments(), *self.overrides])
        if self.epochs is None:
            return recipe, tuple(notes)
        if not 0 < self.epochs < 1e9:
            raise VitrailError(f"epochs must be above 0, got {self.epochs:g}; try epochs=10")
        return recipe.with_steps(max(round(self.epochs * num_images / recipe.batch_size), 1)), tuple(notes)

    def split_fractions(self) -> SplitFractions:
        """Return the split fractions, which are needed to open the dataset before there is a recipe."""
        assigned, defaults = self._assigned(), SplitFractions()
        try:
            return SplitFractions(
                float(assigned.get("val_fraction", defaults.validation)), float(assigned.get("test_fraction", defaults.test))
            )
        except ValueError:  # not a number: the recipe says so
            return defaults

    def target_columns(self) -> Columns:
        """Return the columns of the targets, which are needed to open the dataset before there is a recipe."""
        assigned = {name: text for name, text in self._assigned().items() if name.startswith("columns.")}
        return override(self.columns, [f"{name.removeprefix('columns.')}={text}" for name, text in assigned.items()])

    @property
    def data(self) -> str | None:
        """The dataset that ``overrides`` name, in place of any other: it is known before one is opened."""
        return self._assigned().get("data")

    def _assigned(self) -> dict[str, str]:
        """Return the text that ``overrides`` assign, by field."""
        return {name.strip(): text.strip() for name, _, text in (each.partition("=") for each in self.overrides)}

    def _assignments(self) -> list[str]:
        """Return the options as assignments; one that ``overrides`` assign as well is an error."""
        fields = {
            "batch_size": ("batch_size", self.batch_size),
            "lr": ("optim.lr", self.lr),
            "weight_decay": ("optim.weight_decay", self.weight_decay),
            "seed": ("seed", self.seed),
            "precision": ("precision", self.precision),
            "compile": ("compile", "true" if self.compile else None),
            "epochs": ("steps", self.epochs),
            "augment": ("augment", self.augment),
            "folds": ("fold.of", self.folds),
            "fit": ("preprocess.fit", self.fit),
            "head": ("task.head", self.head),
        }
        replaced = ("epochs", "augment", "fit")  # by ``apply``
        assigned = self._assigned()
        given = {option: field for option, (field, value) in fields.items() if value is not None}
        for option, field in given.items():
            if field in assigned:
                raise VitrailError(f"{option} and settings[{field!r}] set the same field; leave one of them out")
        return [f"{fields[option][0]}={fields[option][1]}" for option in given if option not in replaced]


@dataclass(frozen=True)
class PreparedRun:
    """A recipe with its dataset, open but not yet checked, and notes for the user."""

    recipe: Recipe
    data: DatasetSplits
    notes: tuple[str, ...] = ()
    folder: Path | None = None  # of the run; None: open
    folds: int | None = None  # of a cross-validation, of which ``recipe`` is the first; None: a single run

    def with_out(self, out: Path | None) -> "PreparedRun":
        """Return it with a run folder of the user's choice, unless it has one because it resumes a run."""
        return replace(self, folder=self.folder or out)

    def in_folder(self, folder: Path, *notes: str) -> "PreparedRun":
        return replace(self, folder=folder, notes=(*self.notes, *notes))


def prepare_training(
    data: Any = "fashion",
    recipe: str | None = None,
    model: str | None = None,
    image: Pair | None = None,
    options: RecipeOptions | None = None,
    progress: Progress | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    task: TaskConfig | None = None,
) -> PreparedRun:
    """Prepare a run that trains from random weights. ``task``: None means the recipe's, classification."""
    if recipe in SSL_METHODS:
        raise VitrailError(f"{recipe} trains without labels; try vitrail pretrain with method={recipe}")
    options = options or RecipeOptions()
    opened = _open(data, options, task, progress, group)
    task, learned = _learned_task(opened, task)
    context = dataset_context(opened, learned, model, image)
    demo = learned.demos.get(context.data) if model is None and image is None else None
    selected = _with_task(get_recipe(recipe or demo or learned.train_recipe, context), task, learned)
    prepared = _apply_options(selected, opened, options, progress)
    prepared = _with_augmentation_note(prepared, options)
    if context.data == "fashion" or not isinstance(learned, Classification):
        return prepared
    note = (
        f"training from scratch on {context.num_images:,} images; on 3,068 photographs in ten classes that reached 65.9 %, "
        f"and fine-tuning pretrained weights 91.8 %: vitrail finetune hf:google/vit-base-patch16-224 {context.data}"
    )
    return replace(prepared, notes=(*prepared.notes, note))


def prepare_pretraining(
    data: Any,
    method: str = "mae",
    model: str | None = None,
    image: Pair | None = None,
    options: RecipeOptions | None = None,
    progress: Progress | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    target: str | None = None,
) -> PreparedRun:
    """Prepare a run that trains without labels. ``target``: what masked-patch predicts; None means the method's."""
    if method not in SSL_METHODS:
        raise VitrailError(f"method must be {', '.join(SSL_METHODS)}, got {method!r}{did_you_mean(str(method), SSL_METHODS)}")
    options = options or RecipeOptions()
    if target is not None:
        options = replace(options, overrides=(f"task.masking.target={target}", *options.overrides))
    opened = _open(data, options, None, progress, group, labelled=False)
    context = dataset_context(opened, Classification(), model, image, labelled=False)
    return _apply_options(get_recipe(method, context), opened, options, progress)


def prepare_finetuning(
    weights: str,
    data: Any,
    recipe: str | None = None,
    image: Pair | None = None,
    trainable: str = "all",
    options: RecipeOptions | None = None,
    progress: Progress | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    task: TaskConfig | None = None,
) -> tuple[PreparedRun, Model]:
    """Prepare a run that starts from pretrained weights; return also the model that they were loaded into. ``recipe``: None
    means the task's."""
    model = _load_weights(weights, image, recipe)
    options = options or RecipeOptions()
    options = replace(options, overrides=(*trainable_overrides(trainable, model.config), *options.overrides))
    opened = _open(data, options, task, progress, group)
    task, learned = _learned_task(opened, task)
    if image is None and recipe is None and _is_too_small(model, learned):
        model = _load_weights(weights, _square_image(model.config, learned.finetune_side), None)
    context = replace(dataset_context(opened, learned), init_weights=_init_weights(weights, model, learned))
    selected = get_recipe(recipe or learned.finetune_recipe, context)
    if selected.init_from is None:
        raise VitrailError(f"{recipe} trains from scratch, without weights; try recipe=finetune")
    selected, pretrained = _with_task(selected, task, learned), model_task(model).config
    if selected.keep_head and (task is None or task.is_default):
        selected = replace(selected, task=selected.task.with_decoder_of(pretrained))
    prepared = _apply_options(selected, opened, options, progress)
    if prepared.recipe.keep_head and not prepared.recipe.task.has_decoder_of(pretrained):
        prepared = replace(prepared, recipe=replace(prepared.recipe, keep_head=False))
    return _with_augmentation_note(prepared, options), model


def prepare_recipe(
    recipe: Recipe,
    options: RecipeOptions | None = None,
    progress: Progress | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    data: Any = None,
) -> PreparedRun:
    """Prepare a run of a complete recipe, such as that of another run, with some fields changed.

    ``data``: the dataset to train on; None means the one that the recipe names.
    """
    options = options or RecipeOptions()
    if options.columns != ANY_COLUMNS:
        recipe = replace(recipe, columns=options.columns)
    elif options.data is not None or data is not None:
        recipe = replace(recipe, columns=recipe.columns.for_other_data)
    changed, _ = options.apply(recipe, recipe.batch_size)
    with group.local_main_first():
        opened = open_training_data(changed, progress, options.data or data)
    if data is not None:
        recipe = replace(recipe, data=opened.name)
    return _apply_options(recipe, opened, options, progress)


def dataset_context(
    data: DatasetSplits, task: TaskConfig, model: str | None = None, image: Pair | None = None, labelled: bool = True
) -> RecipeContext:
    """Return what a recipe needs to know about a dataset and a task on it."""
    if not len(data.train):
        raise VitrailError(f"{data.name} has no training images; name a folder with train/{'CLASS/' if labelled else ''}*.jpg")
    sizes = data.train.sizes(np.arange(len(data.train)))
    same_size = sizes is not None and bool((sizes == sizes[0]).all())
    native_size = (int(sizes[0, 0]), int(sizes[0, 1])) if sizes is not None and same_size else None
    pixels = data.train.read(0) if same_size else None
    channels = pixels.shape[2] if isinstance(pixels, np.ndarray) else 3
    bands = find_bands(data.train)
    channels = channels if bands is None else bands.bands
    names = tuple(data.class_names)
    outputs = task.num_outputs(names)
    return RecipeContext(data.name, len(data.train), outputs, native_size, channels, model, image, class_names=names)


def settings_to_overrides(settings: Mapping[str, Any] | Sequence[str]) -> tuple[str, ...]:
    """Return recipe fields by name, ``{"optim.grad_clip": 1.0}``, as overrides; a list of those as it is."""
    if isinstance(settings, list | tuple) and all(isinstance(setting, str) for setting in settings):
        return tuple(settings)
    if not isinstance(settings, Mapping):
        raise VitrailError(f"settings must be a dict, got {describe_value(settings)}; try settings={{'optim.grad_clip': 1.0}}")
    return tuple(
        f"{name}={','.join(map(str, value)) if isinstance(value, tuple | list) else value}" for name, value in settings.items()
    )


def trainable_overrides(trainable: str, config: ModelConfig) -> tuple[str, ...]:
    """Return the overrides that the option ``trainable`` stands for."""
    if trainable in ("all", "head"):
        return (f"optim.trainable={trainable}",)
    last = re.fullmatch(r"last:(\d{1,4})", str(trainable))
    if last is None:
        raise VitrailError(f"trainable must be all, head or last:N, got {trainable!r}; try trainable=last:2")
    depth = getattr(config, "depth", 0)
    if not 1 <= int(last[1]) <= depth:
        problem = f"the model has {depth} block{'s' * (depth != 1)}" if depth else "a ResNet has no blocks"
        raise VitrailError(
            f"{problem}, got trainable={trainable}; try trainable={f'last:{min(2, depth)}' if depth else 'head'}"
        )
    return ("optim.trainable=blocks", f"optim.trainable_blocks={last[1]}")


def detect_task(data: DatasetSplits) -> TaskConfig:
    """Return the task that a dataset's targets are for: regression of numbers; classification, with several labels if images
    may have several."""
    if data.target_names:
        return Regression(targets=data.target_names)
    if data.train.has_mask_targets:
        return Segmentation()
    if data.train.has_box_targets:
        return Detection()
    return Classification() if data.train.label_sets is None else MultiLabel()


def _open(
    data: Any,
    options: RecipeOptions,
    task: TaskConfig | None,
    progress: Progress | None,
    group: ProcessGroup,
    labelled: bool = True,
) -> DatasetSplits:
    """Open the dataset to train on. ``task``: None means the one that its targets are for, if it need be ``labelled``."""
    columns = options.target_columns()
    if task is not None and columns.several is None and not columns.targets:
        # a folder may have classes, masks and boxes
        masks = True if task.has_masks else False if task.labelled or task.has_boxes else columns.masks
        boxes = True if task.has_boxes else False if task.labelled or task.has_masks else columns.boxes
        columns = replace(columns, several=task.several_labels, masks=masks, boxes=boxes)
    with group.local_main_first():  # the others find what the first process of their node has downloaded or cached
        opened = open_dataset(
            options.data or data,
            columns=columns,
            split_fractions=options.split_fractions(),
            labelled=labelled and (task is None or task.labelled),
            progress=progress,
        )
    if labelled:
        check_targets(opened, task or detect_task(opened))
    return opened


def _learned_task(data: DatasetSplits, task: TaskConfig | None) -> tuple[TaskConfig | None, TaskConfig]:
    """Return the task of the user's choice, and the one that is learned; both for the targets of the dataset."""
    chosen = None if task is None else task.for_targets(data.target_names).for_classes(data.class_names)
    return chosen, chosen or detect_task(data).for_classes(data.class_names)


def _with_task(recipe: Recipe, task: TaskConfig | None, learned: TaskConfig) -> Recipe:
    """Return the recipe for a task: without mixing images if their targets cannot be mixed, without flips and crops if they
    may change the targets, with the whole image if outputs belong to its places. ``task`` is that of the user's choice; None,
    or one that is only named: a recipe for the task, ``learned``, keeps its own settings."""
    if (task is None or task.is_default) and isinstance(learned, type(recipe.task)):
        return recipe
    augment = recipe.augment if learned.mixes else replace(recipe.augment, mixup=0.0, cutmix=0.0)
    augment = augment if learned.is_invariant else replace(augment, crop="none", hflip=0.0)
    preprocess = recipe.preprocess.with_fit("stretch") if learned.is_dense else recipe.preprocess
    return replace(recipe, task=learned, augment=augment, preprocess=preprocess)


def _with_augmentation_note(prepared: PreparedRun, options: RecipeOptions) -> PreparedRun:
    """Add a note if images are not flipped and cropped because of the task."""
    augment = prepared.recipe.augment
    if prepared.recipe.task.is_invariant or augment.crop != "none" or augment.hflip or options.augment is not None:
        return prepared
    note = "images are not flipped or cropped at random, since a number may depend on it; if yours does not: augment=none"
    return replace(prepared, notes=(*prepared.notes, note))


def _apply_options(
    recipe: Recipe, data: DatasetSplits, options: RecipeOptions, progress: Progress | None = None
) -> PreparedRun:
    matched, band_notes = match_bands(replace(recipe, columns=data.columns), data, progress)
    changed, notes = options.apply(matched, len(data.train))
    if changed.fold is not None:
        splits = fold_splits(data, changed.fold, changed.val_fraction, progress)
        changed, notes = options.apply(matched, len(splits.train))
        notes = (*notes, *_fold_notes(splits, options.folds))
    if changed.preprocess.raw and changed.augment.randaug_layers:
        band_notes = (*band_notes, COLOUR_NOTE)
    return PreparedRun(changed, data, (*band_notes, *notes), folds=options.folds)


def match_bands(recipe: Recipe, data: DatasetSplits, progress: Progress | None = None) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe for the bands of a dataset, and notes: their number is that of the model's channels, and their mean and
    standard deviation are measured, unless the recipe or its weights have those of as many bands."""
    bands, preprocess = find_bands(data.train), recipe.preprocess
    if bands is None:
        if preprocess.raw and preprocess.channels != EIGHT_BIT_CHANNELS:
            raise VitrailError(
                f"the weights take {preprocess.channels} bands, and {data.name} has 8-bit images; name a dataset of such bands"
            )
        return recipe, ()
    if preprocess.raw and preprocess.channels == bands.bands:
        return recipe, (
            f"images of {bands}, normalised by the mean and standard deviation that the weights or the recipe have",
        )
    measured = measure_bands(data.train, bands.bands, progress)
    changed = replace(
        recipe,
        model=replace(recipe.model, channels=bands.bands),
        preprocess=replace(preprocess, mean=measured.mean, std=measured.std, raw=True),
    )
    note = (
        f"images of {bands}: model.channels={bands.bands}, and mean and standard deviation of each band are measured on "
        f"{measured.num_images:,} training image{'s' * (measured.num_images != 1)} (preprocess.mean, preprocess.std)"
    )
    return changed, (note,)


def _fold_notes(splits: DatasetSplits, folds: int | None) -> list[str]:
    if folds is None:
        return []
    num_images = sum(map(len, splits.splits.values()))
    return [f"cross-validation of {num_images:,} images: {folds} runs, each tested on the fold that it does not train on"]


def _load_weights(weights: str, image: Pair | None, recipe: str | None) -> Model:
    if not is_available(weights):
        check_name(weights)
        hint = (
            "WEIGHTS is a run, a model folder, an .npz, .safetensors or .pth file, hf:owner/name, or a name of `vitrail models`"
        )
        if re.fullmatch(r"[\w.-]+/[\w.-]+", weights) and not Path(weights).parent.is_dir():
            hint = f"if it is a model on the Hugging Face hub, write hf:{weights}"
        raise VitrailError(f"{weights} does not exist; {hint}")
    with quiet_loading():  # the caller prints the report
        model = get_encoder(load(weights, image=image))
        if recipe == PAPER_RECIPE and image is None:
            return get_encoder(load(weights, image=_square_image(model.config, PAPER_SIZE)))
        return model


def _is_too_small(model: Model, learned: TaskConfig) -> bool:
    """Whether weights of another task take smaller images than the task is fine-tuned on by default."""
    return max(model.config.image) < learned.finetune_side and model_task(model).config.name != learned.name


def _square_image(config: ModelConfig, side: int) -> Pair:
    """Return the size with sides of so many pixels, or of the nearest multiple of the patch size."""
    high, wide = getattr(config, "patch_stride", (1, 1))
    return max(round(side / high), 1) * high, max(round(side / wide), 1) * wide


def _init_weights(weights: str, model: Model, learned: TaskConfig) -> InitWeights:
    """Return the weights to start from; without the names of their classes, so that the head is new, if their task differs."""
    assert model.preprocess is not None
    class_names = model.class_names if model_task(model).config.name == learned.name else None
    return InitWeights(weights, weights_hash(weights), model.config, model.preprocess, class_names)
