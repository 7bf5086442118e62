"""Frozen layers run forward only: nothing is saved for the backward pass. b images, t tokens, d width."""

import torch
from torch import Tensor

from tests.small_models import small_vit
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.recipes.recipe import Optim
from vitrail.training.optim import freeze


def saved_numel(optim: Optim) -> int:
    """Count the numbers that autograd saves for the backward pass, without the weights themselves."""
    model = small_vit(depth=4).train()
    freeze(model, optim)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in own:
            storages[pointer] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(5, 3, 12, 15)), torch.arange(5))
    loss.backward()
    assert all((weight.grad is not None) == weight.requires_grad for weight in model.parameters())
    return sum(storages.values())


def test_a_frozen_backbone_saves_no_activations() -> None:
    """Training the head alone saves its input, and what the loss saves of five logits and labels each."""
    tokens, width, classes, images = 7, 24, 5, 5
    assert saved_numel(Optim(trainable="head")) <= images * (tokens * width + 2 * classes + 4)
    assert saved_numel(Optim(trainable="all")) > 3.5 * saved_numel(Optim(trainable="blocks", trainable_blocks=1)) > 0


def test_the_head_of_a_resnet_can_be_trained_alone() -> None:
    model = build(ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3))
    freeze(model, Optim(trainable="head"))
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["head.weight", "head.bias"]
