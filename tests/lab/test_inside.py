"""A look inside is what explain says of the model, can be kept, and is there for a given checkpoint."""

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


def test_a_look_has_what_explain_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    asked = model()

    def rolled(_: ViT, images: torch.Tensor, __: str) -> torch.Tensor:
        seen.append(images)
        return torch.ones(6, 2, 3)

    monkeypatch.setattr("vitrail.lab.look.saliency", rolled)
    look = looked(asked, pictures(DATA), count=7)
    assert look.far.shape == (4, 3)
    assert look.width == 15
    assert look.positions is not None
    assert np.allclose(look.positions, position_similarity(asked).numpy())
    assert len(seen[0]) == len(look.pictures) == 6
    few = looked(asked, pictures(DATA), count=6)
    assert np.allclose(few.far, distance(asked, seen[1]).numpy(), atol=1e-4)


def test_pictures_are_taken_from_the_first_to_the_last() -> None:
    assert spread(10, 4).tolist() == [0, 3, 6, 9]
    assert spread(3, 128).tolist() == [0, 1, 2]
    source = pictures(DATA).test
    look = looked(model(position="none"), pictures(DATA), count=len(source))
    view = Plain(Preprocess((12, 15)))
    ends = view(source, np.zeros(2, np.int64), np.array([0, len(source) - 1])).images
    wanted = [np.asarray(picture) for picture in restored(ends, (0.5,) * 3, (0.5,) * 3)]
    assert np.array_equal(look.pictures[[0, -1]], wanted)


def test_what_was_kept_is_there_again() -> None:
    for position in ("sincos2d", "none"):
        look = looked(model(width=24, position=position), pictures(DATA), count=5)
        found = again(json.loads(json.dumps(look.kept())))
        assert np.allclose(found.far, look.far, atol=1e-2)
        assert np.array_equal(found.pictures, look.pictures)
        assert (found.positions is None) == (position == "none")
        assert found.width == look.width
    with pytest.raises(VitrailError, match="is damaged"):
        again({"width": 3, "arrays": "bm9uZQ=="})


def test_places_in_order_are_known_from_places_in_none() -> None:
    ordered = looked(model(width=24, heads=3, position="sincos2d", image=(36, 40)), pictures(DATA), count=1)
    near, other = ordered.near or (0, 0)
    assert near > other
    assert (ordered.order or 0) > 0.3
    mixed = replace(ordered, positions=np.random.default_rng(0).normal(size=(6, 8, 6, 8)))
    assert abs(mixed.order or 1) < 0.1


def test_arms_are_the_paper_s_model_its_hybrid_and_other_settings_of_its_training() -> None:
    made = {trial.of["arm"]: trial.recipe for trial in trials(Asked("fashion"))}
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


def test_a_given_checkpoint_is_looked_at_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(model(), tmp_path / "given")
    words = ["lab", "inside", "--quick", "--data", DATA, "--out", str(tmp_path)]
    assert run([*words, "--weights", str(tmp_path / "given"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["looks"]) == [VIT, HYBRID, GIVEN]
    assert told["looks"][GIVEN]["width"] == 15
    assert GIVEN in told["answer"]
    page = (tmp_path / "inside-quick" / "index.html").read_text()
    assert f"Positions: {GIVEN}" in page
    assert f"Rollout: {GIVEN}" in page
    assert "--weights given</code>" in page
    assert (told["weights"], str(tmp_path) in page) == ("given", False)


def test_a_checkpoint_without_attention_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = build(ResNetConfig(stages=(1,), width=32, image=(16, 20), classes=5))
    plain.preprocess = Preprocess((16, 20))
    save(plain, tmp_path / "given")
    assert run(["lab", "inside", "--quick", "--weights", str(tmp_path / "given"), "--out", str(tmp_path)]) == 2
    assert "has no attention to look at" in capsys.readouterr().err
    assert not (tmp_path / "inside-quick").exists()


def test_a_training_that_burst_is_a_line_of_the_table() -> None:
    look = Look(np.ones((4, 3)), np.ones((5, 3, 6, 5)), np.ones((1, 2, 3)), np.zeros((1, 12, 15, 3), np.uint8), None, 15)
    whole = Row({"arm": VIT}, "", 1, 1, 1, 1, scores={"test": {"top1": 0.5}}, measured=look.kept())
    told = tell(Asked("fashion"), [whole, Row({"arm": HYBRID}, "", 1, 1, 1, 1, failed="it burst")])
    assert told.numbers["failed"] == {HYBRID: "it burst"}
    assert "it burst" in str(told.parts[0])
    assert "it has no positions" in told.answer


def test_a_place_is_known_by_its_mirror_image() -> None:
    """Positions that do not tell left from right: each place is its own mirror image, and turned upside down is another."""
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
