"""Class probabilities, as in ``vitrail.predict``: k classes."""

from jaxtyping import Float
from torch import Tensor

from vitrail.models.vit import ViT


def odds(vit: ViT, logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """Return the softmax or, for a model trained with the sigmoid loss, the sigmoid of each class."""
    return logits.double().sigmoid() if alone(vit) else logits.double().softmax(dim=-1)


def alone(vit: ViT) -> bool:
    """Return whether the model was trained with the sigmoid loss."""
    return bool(vit.facts.get("recipe", {}).get("loss") == "sigmoid")
