"""How probable classes are, as ``vitrail.predict`` has it: k classes."""

from jaxtyping import Float
from torch import Tensor

from vitrail.models.vit import ViT


def odds(vit: ViT, logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """The softmax or, of a model that was trained with the sigmoid loss, each class on its own."""
    return logits.double().sigmoid() if alone(vit) else logits.double().softmax(dim=-1)


def alone(vit: ViT) -> bool:
    """Whether it was trained with the sigmoid loss."""
    return bool(vit.facts.get("recipe", {}).get("loss") == "sigmoid")
