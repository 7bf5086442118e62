"""The linear probe on masks: what is linear in the tokens is learned, the candidates are chosen on validation, and the scores
are those of the masks at the images' own sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.small_models import small_vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import IGNORED, DatasetSplits
from vitrail.errors import VitrailError
from vitrail.evaluation import mask_probe
from vitrail.evaluation.mask_probe import (
    LinearProbeHead,
    MaskProbeResult,
    TokenSet,
    fit_heads,
    sample_pixels,
    select_head,
    standardise,
    token_statistics,
    whole_image,
)
from vitrail.evaluation.probe import ProbeResult, probe
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.models.vit import ViT

PANES = "panes:train_size=40,size=24x30"


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_probe, "NUM_STEPS", 8)


def encoder() -> ViT:
    torch.manual_seed(0)
    model = small_vit(classes=0)
    model.preprocess = Preprocess((12, 15), 0.9)
    return model


def panes() -> DatasetSplits:
    return vitrail.open_dataset(PANES, columns=Columns(masks=True))


def linear_tokens(images: int, seed: int) -> TokenSet:
    """Tokens whose first block is noise, and whose second gives the class by a direction for each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (images, 4, 5), generator=generator)
    tokens = torch.randn(images, 2, 4, 5, 7, generator=generator) + 3.0
    tokens[:, 1, ..., :3] += 4 * F.one_hot(labels, 3)
    pixels = labels.repeat_interleave(4, 1).repeat_interleave(4, 2).short()
    pixels[:, ::4] = IGNORED
    return TokenSet(tokens.half(), pixels)


def test_channels_are_standardised_by_their_own_statistics() -> None:
    tokens = linear_tokens(70, 0).tokens
    mean, std = token_statistics(tokens)
    rows = tokens.float().permute(1, 0, 2, 3, 4).flatten(1, 3)
    assert_close(mean, rows.mean(1), rtol=1e-4, atol=1e-4)
    assert_close(std, rows.std(1, correction=0), rtol=1e-4, atol=1e-4)
    x = standardise(tokens, mean, std)
    assert_close(x[..., 7:], (tokens[:, 1].float() - mean[1]) / std[1])


def test_pixels_are_those_nearest_to_a_lattice() -> None:
    mask = torch.arange(13 * 17).reshape(13, 17).short()
    expected = F.interpolate(mask[None, None].float(), (8, 12), mode="nearest-exact")[0, 0].short()
    assert torch.equal(sample_pixels(mask.numpy(), (8, 12)), expected)


def test_what_is_linear_in_the_tokens_is_learned_and_the_best_on_validation_is_kept() -> None:
    train, validation = linear_tokens(80, 0), linear_tokens(40, 1)
    heads = fit_heads(train, 3, rates=(1e-9, 3e-2), steps=60)
    best, candidates = select_head(heads, validation, 3)
    assert [(each.layers, each.learning_rate) for each in candidates] == [(1, 1e-9), (1, 3e-2), (2, 1e-9), (2, 3e-2)]
    assert candidates[best].miou == max(each.miou for each in candidates) > 0.7
    assert candidates[0].miou < candidates[best].miou - 0.1
    assert candidates[best].learning_rate == 3e-2
    again = fit_heads(train, 3, rates=(1e-9, 3e-2), steps=60)
    assert_close(heads[3][1].linear.weight, again[3][1].linear.weight, rtol=0, atol=0)


def test_a_candidate_is_trained_as_it_is_alone() -> None:
    train = linear_tokens(40, 0)
    together, alone = fit_heads(train, 3, rates=(1e-3, 1e-2), steps=10), fit_heads(train, 3, rates=(1e-2,), steps=10)
    assert_close(together[3][1].linear.weight, alone[1][1].linear.weight, rtol=1e-4, atol=1e-5)


def linear_result(result: ProbeResult) -> MaskProbeResult:
    assert isinstance(result.linear, MaskProbeResult)
    return result.linear


def test_the_scores_are_those_of_the_masks_at_the_images_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[LinearProbeHead] = []

    def keep(fitted: list[tuple[float, LinearProbeHead]], validation: TokenSet, classes: int) -> object:
        best, candidates = select_head(fitted, validation, classes)
        heads.append(fitted[best][1])
        return best, candidates

    monkeypatch.setattr(mask_probe, "select_head", keep)
    model, data = encoder(), panes()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = probe(model, data)
    found, preprocess = linear_result(result), model.preprocess
    assert preprocess is not None
    shown = encoder()
    shown.preprocess = whole_image(preprocess)
    images = vitrail.preprocess(shown, [data.test.read(index) for index in range(len(data.test))])
    with torch.no_grad():
        blocks = model.encode_layers(model.embed_patches(images), model.grid(images), (1, 2, 3, 4))
        tokens = torch.stack([model.norm(block)[:, 1:].unflatten(1, (2, 3)) for block in blocks], dim=1)
        predicted: Tensor = F.interpolate(heads[0](tokens), (24, 30), mode="bilinear").argmax(1)
    masks = np.stack([data.test.mask(index) for index in range(len(data.test))])
    iou = [((predicted.numpy() == k) & (masks == k)).sum() / ((predicted.numpy() == k) | (masks == k)).sum() for k in range(2)]
    assert list(found.iou.values()) == pytest.approx(iou, abs=5e-3)
    assert found.miou == pytest.approx(np.mean(iou), abs=5e-3)
    assert result.num_images == {"train": 40, "validation": len(data.validation), "test": len(data.test)}
    assert result.metric == "miou"
    assert "fewshot and knn need one class per image" in result.notes[-1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_of_more_images_than_fit_evenly_spaced_ones_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_probe, "MAX_CACHED_BYTES", 20 * 2 * 4 * 2 * 3 * 24)
    result = probe(encoder(), panes(), ["linear"])
    assert result.num_images["train"] == 20
    assert "the tokens of 20 images did not fit into memory" in result.notes[-1]


def test_what_cannot_be_probed_is_refused() -> None:
    with pytest.raises(VitrailError, match="masks as targets, which only a linear probe predicts; try --protocol linear"):
        probe(encoder(), panes(), ["knn"])
    resnet = build(ResNetConfig(stages=(1,), width=32, image=(32, 32), classes=0))
    resnet.preprocess = Preprocess((32, 32))
    with pytest.raises(VitrailError, match="a probe on masks needs the patch tokens of a ViT"):
        probe(resnet, panes())


def test_the_command_prints_it_and_says_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.save(encoder(), tmp_path / "model")
    arguments = ["probe", str(tmp_path / "model"), PANES, "--task", "segment"]
    assert run([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    linear = answer["linear"]
    assert {"miou", "pixel_accuracy", "boundary_iou", "iou", "interval", "classes", "candidates"} <= linear.keys()
    assert linear["interval"]["miou"][0] <= linear["miou"] <= linear["interval"]["miou"][1]
    assert (answer["metric"], answer["classes"]) == ("miou", 2)
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    for words in (f"{linear['miou']:.2%}", "the best on validation", "next: vitrail finetune", "--task segment"):
        assert words in printed
