"""Class probabilities, as in ``vitrail.predict``: k classes."""

from jaxtyping import Float
from torch import Tensor

from vitrail.models.vit import ViT


def class_probabilities(vit: ViT, logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """Return the softmax or, for a model trained with the sigmoid loss, the sigmoid of each class."""
    return logits.double().sigmoid() if uses_sigmoid_loss(vit) else logits.double().softmax(dim=-1)


def uses_sigmoid_loss(vit: ViT) -> bool:
    """Return whether the model was trained with the sigmoid loss."""
    return bool(vit.metadata.get("recipe", {}).get("loss") == "sigmoid")
