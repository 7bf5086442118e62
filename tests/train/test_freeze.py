"""What is frozen is only computed: nothing is kept of it for a backward pass. b pictures, t tokens, d width."""

import pytest
import torch
from torch import Tensor

from tests.small import vit
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.settings import ResNetConfig
from vitrail.train.optim import freeze
from vitrail.train.recipe import Optim


def kept(optim: Optim) -> int:
    """Numbers that autograd holds for the backward pass, but for the weights themselves."""
    model = vit(depth=4).train()
    freeze(model, optim)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            seen[place] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(5, 3, 12, 15)), torch.arange(5))
    loss.backward()
    assert all((weight.grad is not None) == weight.requires_grad for weight in model.parameters())
    return sum(seen.values())


def test_a_frozen_trunk_keeps_no_activations() -> None:
    """With the head alone: its input, and what the loss keeps of five logits and labels each."""
    tokens, width, classes, pictures = 7, 24, 5, 5
    assert kept(Optim(train="head")) <= pictures * (tokens * width + 2 * classes + 4)
    assert kept(Optim(train="all")) > 3.5 * kept(Optim(train="blocks", blocks=1)) > 0


def test_blocks_of_a_model_without_any_are_refused() -> None:
    model = build(ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3))
    with pytest.raises(VitrailError, match=r"this model has none; try optim.train=head"):
        freeze(model, Optim(train="blocks", blocks=1))
    freeze(model, Optim(train="head"))
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["head.weight", "head.bias"]
