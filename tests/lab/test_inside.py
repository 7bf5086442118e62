"""A model snapshot equals the functions of explain, can be saved, and works for a given checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.small import vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import pictures
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.explain.distance import distance
from vitrail.explain.similarity import position_similarity
from vitrail.lab.experiment import Asked
from vitrail.lab.inside import GIVEN, HYBRID, SHORT, SLOW, VIT, tell, trials
from vitrail.lab.look import Look, again, looked, spread
from vitrail.lab.trial import Row
from vitrail.models.build import build
from vitrail.models.settings import ResNetConfig
from vitrail.models.vit import ViT
from vitrail.report.pictures import restored
from vitrail.weights.checkpoint import save

DATA = "panes:count=60,size=16"


def model(**changes: object) -> ViT:
    made = vit(**changes)
    made.preprocess = Preprocess(made.config.image)
    return made


def test_a_snapshot_equals_the_functions_of_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    options = model()

    def rolled(_: ViT, images: torch.Tensor, __: str) -> torch.Tensor:
        seen.append(images)
        return torch.ones(6, 2, 3)

    monkeypatch.setattr("vitrail.lab.look.saliency", rolled)
    look = looked(options, pictures(DATA), count=7)
    assert look.far.shape == (4, 3)
    assert look.width == 15
    assert look.positions is not None
    assert np.allclose(look.positions, position_similarity(options).numpy())
    assert len(seen[0]) == len(look.pictures) == 6
    few = looked(options, pictures(DATA), count=6)
    assert np.allclose(few.far, distance(options, seen[1]).numpy(), atol=1e-4)


def test_images_are_spread_from_the_first_to_the_last() -> None:
    assert spread(10, 4).tolist() == [0, 3, 6, 9]
    assert spread(3, 128).tolist() == [0, 1, 2]
    source = pictures(DATA).test
    look = looked(model(position="none"), pictures(DATA), count=len(source))
    view = Plain(Preprocess((12, 15)))
    ends = view(source, np.zeros(2, np.int64), np.array([0, len(source) - 1])).images
    wanted = [np.asarray(picture) for picture in restored(ends, (0.5,) * 3, (0.5,) * 3)]
    assert np.array_equal(look.pictures[[0, -1]], wanted)


def test_a_saved_snapshot_is_restored() -> None:
    for position in ("sincos2d", "none"):
        look = looked(model(width=24, position=position), pictures(DATA), count=5)
        found = again(json.loads(json.dumps(look.kept())))
        assert np.allclose(found.far, look.far, atol=1e-2)
        assert np.array_equal(found.pictures, look.pictures)
        assert (found.positions is None) == (position == "none")
        assert found.width == look.width
    with pytest.raises(VitrailError, match="is damaged"):
        again({"width": 3, "arrays": "bm9uZQ=="})


def test_ordered_positions_differ_from_random_ones() -> None:
    ordered = looked(model(width=24, heads=3, position="sincos2d", image=(36, 40)), pictures(DATA), count=1)
    near, other = ordered.near or (0, 0)
    assert near > other
    assert (ordered.order or 0) > 0.3
    mixed = replace(ordered, positions=np.random.default_rng(0).normal(size=(6, 8, 6, 8)))
    assert abs(mixed.order or 1) < 0.1


def test_arms_are_the_paper_s_model_its_hybrid_and_other_hyperparameters() -> None:
    made = {job.of["arm"]: job.recipe for job in trials(Asked("fashion"))}
    assert list(made) == [VIT, HYBRID, SLOW, SHORT]
    plain = made[VIT]
    assert plain.model.position == "learned1d"  # type: ignore[union-attr]
    assert plain.model.pool == "cls"  # type: ignore[union-attr]
    assert replace(made[SLOW], optim=plain.optim) == plain
    assert made[SLOW].optim.lr == plain.optim.lr / 2
    assert made[SHORT].steps == plain.steps // 2
    assert made[SHORT].model == plain.model
    assert made[HYBRID].model.stem is not None  # type: ignore[union-attr]
    assert replace(made[HYBRID], model=plain.model) == plain


def test_a_given_checkpoint_is_inspected_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(model(), tmp_path / "given")
    words = ["lab", "inside", "--quick", "--data", DATA, "--out", str(tmp_path)]
    assert run([*words, "--weights", str(tmp_path / "given"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["models"]) == [VIT, HYBRID, GIVEN]
    assert result["models"][GIVEN]["width"] == 15
    assert GIVEN in result["summary"]
    page = (tmp_path / "inside-quick" / "index.html").read_text()
    assert f"Position similarity: {GIVEN}" in page
    assert f"Rollout: {GIVEN}" in page
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
    look = Look(np.ones((4, 3)), np.ones((5, 3, 6, 5)), np.ones((1, 2, 3)), np.zeros((1, 12, 15, 3), np.uint8), None, 15)
    whole = Row({"arm": VIT}, "", 1, 1, 1, 1, scores={"test": {"top1": 0.5}}, measured=look.kept())
    result = tell(Asked("fashion"), [whole, Row({"arm": HYBRID}, "", 1, 1, 1, 1, failed="it diverged")])
    assert result.numbers["failed"] == {HYBRID: "it diverged"}
    assert "it diverged" in str(result.parts[0])
    assert "it has no position embedding" in result.answer


def test_mirror_similarity_is_of_left_and_right() -> None:
    """Positions that are symmetric between left and right have similarity 1; transposed, they do not."""
    half = np.random.default_rng(0).normal(size=(3, 2, 400))
    table = np.concatenate([half, half[:, ::-1]], axis=1)
    table /= np.linalg.norm(table, axis=-1, keepdims=True)
    plain = looked(model(), pictures(DATA), count=1)

    def mirrored(vectors: np.ndarray) -> float:
        maps = np.zeros((plain.maps.shape[0], *vectors.shape[:2]), np.float32)
        found = replace(plain, positions=np.einsum("yxd,vud->yxvu", vectors, vectors), maps=maps).mirrored
        assert found is not None
        return found

    assert mirrored(table) == pytest.approx(1)
    assert abs(mirrored(table.transpose(1, 0, 2))) < 0.2
    assert replace(plain, positions=None).mirrored is None
