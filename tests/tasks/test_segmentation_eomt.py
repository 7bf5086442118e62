"""EoMT: the scores of pixels, whom queries attend to, and what its training needs: annealing, resuming, fine-tuning, export."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.reference_libraries import randomise_weights
from tests.small_models import small_config
from tests.tasks.test_segmentation import PANES, SHORT, train
from tests.tiers import quick_only
from tests.training.test_loop import RaisesAt, same
from vitrail.errors import VitrailError
from vitrail.layers.tap import record_activations
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig
from vitrail.models.vit import ViT
from vitrail.tasks.query_segments import find_segments
from vitrail.tasks.segmentation_eomt import EoMT, QueryLogits, semantic_logits
from vitrail.training.load_checkpoint import load_checkpoint
from vitrail.training.trained_run import TrainedRun

EOMT: dict[str, Any] = {"task.head": "eomt", "task.queries": 5}


def small_eomt(queries: int = 6, query_blocks: int = 2, **changes: Any) -> EoMT:
    encoder = build(small_config(**{"classes": 0, **changes}))
    assert isinstance(encoder, ViT)
    model = EoMT(encoder, 3, queries, query_blocks)
    randomise_weights(model)
    return model


def images_for(model: EoMT, count: int = 2) -> Tensor:
    return torch.randn(count, 3, *model.config.image)


def test_the_score_of_a_class_is_the_sum_over_the_queries_that_predict_it() -> None:
    model = small_eomt()
    images = images_for(model)
    with torch.no_grad():
        logits, scores = model.query_logits(images), model(images).exp()
    masks = F.interpolate(logits.masks, model.config.image, mode="bilinear").sigmoid()
    expected = torch.zeros_like(scores)
    for query in range(6):
        for label in range(3):
            expected[:, label] += logits.classes.softmax(-1)[:, query, label, None, None] * masks[:, query]
    assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    empty = QueryLogits(torch.tensor([[[-200.0, -200.0, 200.0]]]), torch.full((1, 1, 2, 2), -200.0))
    assert semantic_logits(empty, (4, 4)).isfinite().all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "rotary", "registers": 2},
        {"relative_bias": RelativeBiasConfig()},
        {"position_at": "every-layer", "embed_norm": True},
        {"window": 2, "global_blocks": (), "relative_axes": True},
    ],
    ids=["plain", "rotary", "bias of offsets", "tables in every layer", "windows"],
)
def test_with_all_queries_free_the_last_prediction_is_that_of_the_plain_model(changes: dict[str, Any]) -> None:
    model = small_eomt(**changes)
    images = images_for(model)
    with torch.no_grad():
        steps = model(images, torch.ones(2, 2, 6, dtype=torch.bool))
        expected = model.query_logits(images)
    assert len(steps.classes) == len(steps.masks) == 3  # before both blocks, and after the last
    assert_close(steps.classes[-1], expected.classes, rtol=1e-4, atol=1e-5)
    assert_close(steps.masks[-1], expected.masks, rtol=1e-4, atol=1e-4)


def test_the_order_of_the_queries_is_that_of_their_predictions_only() -> None:
    model = small_eomt(position="rotary")
    images, order = images_for(model), torch.randperm(6)
    with torch.no_grad():
        before, scores = model.query_logits(images), model(images)
        model.head.queries.data = model.head.queries.data[order]
        assert_close(model.query_logits(images).classes, before.classes[:, order], rtol=1e-4, atol=1e-5)
        assert_close(model(images), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"relative_bias": RelativeBiasConfig()}, {"window": 2, "global_blocks": (), "relative_axes": True}],
    ids=["plain", "bias of offsets", "windows"],
)
def test_a_masked_query_attends_to_the_patches_in_its_mask_only(changes: dict[str, Any]) -> None:
    model = small_eomt(**changes)
    unmasked = torch.zeros(2, 2, 6, dtype=torch.bool)
    unmasked[:, :, 4:] = True
    with torch.no_grad(), record_activations(model, "attention.weights") as recorded:
        steps = model(images_for(model), unmasked)
    first = model.config.depth - 2
    grid, prefix, tokens = model.config.grid, model.config.prefix_tokens, model.config.tokens
    for block in range(2):
        weights = recorded[f"encoder.blocks.{first + block}.attention.weights"][0]
        inside = F.interpolate(steps.masks[block], grid, mode="bilinear").flatten(2) > 0
        inside = inside | unmasked[:, block, :, None]
        seen = weights[:, :, tokens:, prefix:tokens] > 0
        assert (seen == inside[:, None]).all()
        assert not inside.all()
        assert (weights[:, :, :tokens, tokens:] > 0).all()  # patches attend to all queries
        assert (weights[:, :, tokens:, :prefix] > 0).all()


def test_segments_do_not_overlap_and_are_those_of_transformers() -> None:
    from tests.reference_libraries import reference_library

    transformers: Any = reference_library("transformers")
    torch.manual_seed(1)
    classes, masks = 6 * torch.randn(1, 20, 5), 6 * torch.randn(1, 20, 5, 7)
    output = type("Output", (), {"class_queries_logits": classes, "masks_queries_logits": masks, "patch_offsets": None})
    processor = transformers.EomtImageProcessor(size={"shortest_edge": 20, "longest_edge": 28})
    for stuff in ([], [0, 2]):
        segments = find_segments(classes[0], masks[0], (20, 28), stuff, min_visible=0.2)
        theirs = processor.post_process_panoptic_segmentation(
            output, [(20, 28)], threshold=0.8, overlap_mask_area_threshold=0.2, stuff_classes=stuff
        )[0]
        assert len(theirs["segments_info"]) > 2
        assert_close(segments.ids, theirs["segmentation"].int() + 1)
        assert segments.classes == tuple(each["label_id"] for each in theirs["segments_info"])
        assert segments.scores == pytest.approx([each["score"] for each in theirs["segments_info"]], abs=1e-5)
    nothing = find_segments(torch.tensor([[-9.0, 9.0]]).expand(4, 2), masks[0, :4], (6, 8))
    assert (nothing.ids == 0).all()
    assert nothing.classes == ()
    model = small_eomt()
    assert [each.ids.shape for each in model.segments(images_for(model))] == [model.config.image] * 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run", settings=EOMT)


@pytest.mark.parametrize("at", quick_only(range(1, 13), 5))
def test_an_interrupted_run_ends_as_the_uninterrupted_one(at: int, trained: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", settings=EOMT, callbacks=[RaisesAt(at, OSError("broke"))])
    assert same(train(tmp_path / "run", settings=EOMT, workers=2).folder, trained.folder)


def test_micro_batches_change_nothing_but_the_last_bits(trained: TrainedRun, tmp_path: Path) -> None:
    run = train(tmp_path / "run", settings={**EOMT, "micro_batch_size": 3})
    losses = [[row["loss"] for row in each.history if "loss" in row] for each in (trained, run)]
    assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-3, atol=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_without_annealing_the_run_is_another(trained: TrainedRun, tmp_path: Path) -> None:
    run = train(tmp_path / "run", settings={**EOMT, "task.mask_annealing": False, "steps": 2})
    first, other = (next(row["loss"] for row in each.history if "loss" in row) for each in (trained, run))
    assert first != other
    assert first == pytest.approx(other, rel=0.2)


def test_a_model_is_saved_with_its_queries_and_loaded_from_a_checkpoint(trained: TrainedRun) -> None:
    model: Any = vitrail.load(trained.folder / "last")
    last = load_checkpoint(trained.folder, 12)
    assert type(model) is EoMT
    assert model.head.queries.shape == (5, 32)
    images = torch.randn(2, 3, 24, 32)
    with torch.no_grad():
        assert_close(last(images), model(images), rtol=0, atol=0)
    assert set(trained.result["test"]["iou"]) == {"background", "figure"}


def test_it_is_fine_tuned_with_its_queries_or_with_new_ones(tmp_path: Path, trained: TrainedRun) -> None:
    def first_loss(out: Path, **settings: Any) -> tuple[bool, float]:
        changes = {**SHORT, "steps": 1, "augment.crop": "none", "columns.masks": True, **settings}
        run = vitrail.finetune(trained.folder, PANES, settings=changes, out=out, workers=0)
        assert isinstance(run, TrainedRun)
        kept = json.loads((run.folder / "recipe.json").read_text())["keep_head"]
        return kept, next(row["loss"] for row in run.history if "loss" in row)

    kept, loss = first_loss(tmp_path / "kept", **EOMT)
    new, other = first_loss(tmp_path / "new", **{**EOMT, "task.queries": 7})
    assert kept
    assert not new
    assert loss < other
    frozen = vitrail.finetune(
        trained.folder,
        PANES,
        task="segment",
        trainable="head",
        settings={**SHORT, **EOMT, "steps": 2},
        out=tmp_path / "f",
        workers=0,
    )
    assert isinstance(frozen, TrainedRun)
    before, after = (vitrail.load(folder).state_dict() for folder in (trained.folder, frozen.folder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "head.queries" in changed
    assert all(name.startswith("head.") for name in changed)


@pytest.mark.compile
def test_the_forward_pass_is_one_graph_for_any_batch_size() -> None:
    model = small_eomt(registers=1)
    images = images_for(model, 3)
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    with torch.no_grad():
        assert_close(program.module()(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.compile
def test_training_and_prediction_are_compiled_as_full_graphs() -> None:
    model = small_eomt().train()
    images, unmasked = images_for(model), torch.rand(2, 2, 6) < 0.5
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    for given, expected in zip(compiled(images, unmasked), model(images, unmasked), strict=True):
        assert_close(given, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task.query_blocks": 2}, "task.query_blocks must be at most 1, the model's blocks, got 2"),
        ({"task.queries": 0}, "task.queries must be at least 1"),
        ({"task.upscale_blocks": 9}, "task.upscale_blocks must be from 0 to 4, got 9"),
        ({"model.position": "relative"}, "queries have no relative positions"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=message):
        train(tmp_path / "run", settings={**EOMT, **settings})


def test_the_number_of_queries_follows_from_the_classes_and_that_of_their_blocks_from_the_depth() -> None:
    from vitrail.recipes.task_config import Segmentation

    assert [Segmentation(classes=classes).num_queries for classes in (2, 21, 150)] == [14, 52, 100]
    assert [Segmentation().num_query_blocks(depth) for depth in (1, 2, 6, 12, 24, 40)] == [1, 2, 2, 3, 4, 4]
