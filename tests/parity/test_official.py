"""The official JAX model's logits, for its own weights and pictures."""

import pytest
import torch
from torch.testing import assert_close

from tests.parity.official import CONFIGS, read, state
from vitrail.layers.tap import recording
from vitrail.models.vit import ViT

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_official_model(name: str) -> None:
    model = ViT(CONFIGS[name]).eval()
    model.load_state_dict(state(CONFIGS[name], read(f"{name}.weights")), strict=True)
    io = read(f"{name}.io")
    images = io["images_nhwc"].permute(0, 3, 1, 2)
    with torch.inference_mode():
        fused = model(images)
        with recording(model, "attention.weights"):
            in_the_open = model(images)
    assert_close(fused, io["logits"], rtol=0, atol=1e-4)
    assert_close(in_the_open, io["logits"], rtol=0, atol=1e-4)
