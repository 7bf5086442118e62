"""A model snapshot equals the functions of explain, can be saved, and works for a given checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.small_models import small_vit
from vitrail.cli.main import run
from vitrail.data.batch_transforms import EvalTransform
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import evenly_spaced
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.explain.embeddings import position_similarity
from vitrail.explain.head_statistics import attention_distance
from vitrail.lab.attention_figures import CHECKPOINT, HYBRID, SHORT, SLOW, VIT, build_result, jobs
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.model_snapshot import ModelSnapshot, snapshot_from_json, take_snapshot
from vitrail.lab.trials import JobResult
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, ResNetConfig
from vitrail.models.vit import ViT
from vitrail.report.contact_sheet import denormalise
from vitrail.weights.save import save

DATA = "panes:train_size=60,size=16"


def make_vit(**changes: object) -> ViT:
    built = small_vit(**changes)
    built.preprocess = Preprocess(built.config.image)
    return built


def test_a_snapshot_equals_the_functions_of_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: list[torch.Tensor] = []
    model = make_vit()

    def rolled(_: ViT, images: torch.Tensor, __: str) -> torch.Tensor:
        inputs.append(images)
        return torch.ones(6, 2, 3)

    monkeypatch.setattr("vitrail.lab.model_snapshot.saliency", rolled)
    snapshot = take_snapshot(model, open_dataset(DATA), count=7)
    assert snapshot.attention_distance.shape == (4, 3)
    assert snapshot.width == 15
    assert snapshot.position_similarity is not None
    assert np.allclose(snapshot.position_similarity, position_similarity(model).numpy())
    assert len(inputs[0]) == len(snapshot.images) == 6
    few = take_snapshot(model, open_dataset(DATA), count=6)
    assert np.allclose(few.attention_distance, attention_distance(model, inputs[1]).numpy(), atol=1e-4)


def test_images_are_spread_from_the_first_to_the_last() -> None:
    assert evenly_spaced(10, 4).tolist() == [0, 3, 6, 9]
    assert evenly_spaced(3, 128).tolist() == [0, 1, 2]
    source = open_dataset(DATA).test
    snapshot = take_snapshot(make_vit(position="none"), open_dataset(DATA), count=len(source))
    view = EvalTransform(Preprocess((12, 15)))
    ends = view(source, np.zeros(2, np.int64), np.array([0, len(source) - 1])).images
    expected = [np.asarray(image) for image in denormalise(ends, view.preprocess)]
    assert np.array_equal(snapshot.images[[0, -1]], expected)


def test_a_saved_snapshot_is_restored() -> None:
    for position, others in (("sincos2d", {}), ("none", {}), ("none", {"relative_bias": RelativeBiasConfig()})):
        snapshot = take_snapshot(make_vit(width=24, position=position, **others), open_dataset(DATA), count=5)
        restored = snapshot_from_json(json.loads(json.dumps(snapshot.to_json_dict())))
        assert np.allclose(restored.attention_distance, snapshot.attention_distance, atol=1e-2)
        assert np.array_equal(restored.images, snapshot.images)
        assert (restored.position_similarity is None) == (position == "none" and not others)
        assert restored.width == snapshot.width
    with pytest.raises(VitrailError, match="is damaged"):
        snapshot_from_json({"width": 3, "arrays": "bm9uZQ=="})


def test_ordered_positions_differ_from_random_ones() -> None:
    ordered = take_snapshot(make_vit(width=24, heads=3, position="sincos2d", image=(36, 40)), open_dataset(DATA), count=1)
    near, other = ordered.neighbour_similarity or (0, 0)
    assert near > other
    assert (ordered.distance_correlation or 0) > 0.3
    mixed = replace(ordered, position_similarity=np.random.default_rng(0).normal(size=(6, 8, 6, 8)))
    assert abs(mixed.distance_correlation or 1) < 0.1


def test_arms_are_the_paper_s_model_its_hybrid_and_other_hyperparameters() -> None:
    built = {job.condition["arm"]: job.recipe for job in jobs(ExperimentOptions("fashion"))}
    assert list(built) == [VIT, HYBRID, SLOW, SHORT]
    plain = built[VIT]
    assert plain.model.position == "learned1d"  # type: ignore[union-attr]
    assert plain.model.pool == "cls"  # type: ignore[union-attr]
    assert replace(built[SLOW], optim=plain.optim) == plain
    assert built[SLOW].optim.lr == plain.optim.lr / 2
    assert built[SHORT].steps == plain.steps // 2
    assert built[SHORT].model == plain.model
    assert built[HYBRID].model.stem is not None  # type: ignore[union-attr]
    assert replace(built[HYBRID], model=plain.model) == plain


def test_a_given_checkpoint_is_inspected_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(make_vit(), tmp_path / "given")
    arguments = ["lab", "inside", "--quick", "--data", DATA, "--out", str(tmp_path)]
    assert run([*arguments, "--weights", str(tmp_path / "given"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["models"]) == [VIT, HYBRID, CHECKPOINT]
    assert result["models"][CHECKPOINT]["width"] == 15
    assert CHECKPOINT in result["summary"]
    page = (tmp_path / "inside-quick" / "index.html").read_text()
    assert f"Position similarity: {CHECKPOINT}" in page
    assert f"Rollout: {CHECKPOINT}" in page
    assert "--weights given</code>" in page
    assert (result["weights"], str(tmp_path) in page) == ("given", False)


def test_a_checkpoint_without_attention_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = build(ResNetConfig(stages=(1,), width=32, image=(16, 20), classes=5))
    plain.preprocess = Preprocess((16, 20))
    save(plain, tmp_path / "given")
    assert run(["lab", "inside", "--quick", "--weights", str(tmp_path / "given"), "--out", str(tmp_path)]) == 2
    assert "has no attention" in capsys.readouterr().err
    assert not (tmp_path / "inside-quick").exists()


def test_a_diverged_run_is_a_line_of_the_table() -> None:
    snapshot = ModelSnapshot(
        np.ones((4, 3)), np.ones((5, 3, 6, 5)), np.ones((1, 2, 3)), np.zeros((1, 12, 15, 3), np.uint8), None, 15
    )
    whole = JobResult({"arm": VIT}, "", 1, 1, 1, 1, scores={"test": {"top1": 0.5}}, measurements=snapshot.to_json_dict())
    result = build_result(
        ExperimentOptions("fashion"), [whole, JobResult({"arm": HYBRID}, "", 1, 1, 1, 1, failure="it diverged")]
    )
    assert result.numbers["failed"] == {HYBRID: "it diverged"}
    assert "it diverged" in str(result.parts[0])
    assert "it has no position embedding" in result.summary


def test_mirror_similarity_is_of_left_and_right() -> None:
    """Positions that are symmetric between left and right have similarity 1; transposed, they do not."""
    half = np.random.default_rng(0).normal(size=(3, 2, 400))
    table = np.concatenate([half, half[:, ::-1]], axis=1)
    table /= np.linalg.norm(table, axis=-1, keepdims=True)
    plain = take_snapshot(make_vit(), open_dataset(DATA), count=1)

    def mirrored(vectors: np.ndarray) -> float:
        maps = np.zeros((plain.rollout.shape[0], *vectors.shape[:2]), np.float32)
        result = replace(
            plain, position_similarity=np.einsum("yxd,vud->yxvu", vectors, vectors), rollout=maps
        ).mirror_similarity
        assert result is not None
        return result

    assert mirrored(table) == pytest.approx(1)
    assert abs(mirrored(table.transpose(1, 0, 2))) < 0.2
    assert replace(plain, position_similarity=None).mirror_similarity is None
