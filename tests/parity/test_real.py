"""A real ImageNet ViT-Ti/16 and real images, if they are available."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.preprocess_image import preprocess_image
from vitrail.data.decode import decode
from vitrail.weights.load import load
from vitrail.weights.verify import verify

REAL = Path(__file__).parents[3] / "shared" / "real"
WEIGHTS = REAL / "vit_tiny_patch16_224.safetensors"
pytestmark = pytest.mark.skipif(not WEIGHTS.is_file(), reason="no real weights next to the project")


def test_the_logits_are_timms() -> None:
    model = load(WEIGHTS)
    assert sum(weight.numel() for weight in model.parameters()) == 5_717_416
    with np.load(REAL / "vit_tiny_timm_golden.npz") as golden, torch.inference_mode():
        assert_close(model(torch.from_numpy(golden["images"])), torch.from_numpy(golden["logits"]), rtol=0, atol=1e-4)


def image_files() -> list[Path]:
    return sorted((REAL / "imagenet250").glob("*.jpg"))


def compute_logits(files: list[Path]) -> torch.Tensor:
    model = load(WEIGHTS)
    assert model.preprocess is not None
    images = torch.stack([preprocess_image(decode(file), model.preprocess) for file in files])
    with torch.inference_mode():
        return torch.cat([model(part) for part in images.split(25)])


def test_logits_from_image_files_are_timms() -> None:
    with np.load(REAL / "imagenet250_timm_logits.npz") as golden:
        assert_close(compute_logits(image_files()[::17]), torch.from_numpy(golden["logits"][::17]), rtol=0, atol=1e-3)


@pytest.mark.thorough
def test_top_1_from_image_files_is_timms() -> None:
    truth = torch.tensor([int(file.name.split("_")[0]) for file in image_files()])
    logits = compute_logits(image_files())
    with np.load(REAL / "imagenet250_timm_logits.npz") as golden:
        assert_close(logits, torch.from_numpy(golden["logits"]), rtol=0, atol=1e-3)
    assert (logits.argmax(1) == truth).float().mean().item() == pytest.approx(0.852)
    assert (logits.topk(5).indices == truth[:, None]).any(1).float().mean().item() == pytest.approx(0.952)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_verify_compares_it_with_the_installed_timm() -> None:
    pytest.importorskip("transformers")
    verdict = verify(WEIGHTS)
    assert (verdict.variant, verdict.reference, verdict.ok) == ("Ti/16", "timm", True)
    assert verdict.difference is not None
    assert verdict.difference < 1e-4
