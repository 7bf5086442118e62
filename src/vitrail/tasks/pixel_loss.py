"""Losses of the classes of pixels: cross-entropy or focal, and Dice. Each is a mean over the counted pixels of an image, then
over images. b images, k classes; the model's input is height by width."""

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.sources.dataset import IGNORED
from vitrail.recipes.task_config import Segmentation

DICE_SMOOTHING = 1.0  # pixels, so that a class that is neither there nor predicted has a Dice of 1


def pixel_loss(
    logits: Float[Tensor, "b k height width"],
    masks: Int[Tensor, "b height width"],
    config: Segmentation,
    class_weights: Float[Tensor, " k"] | None = None,
) -> Tensor:
    weights = None if class_weights is None else class_weights.to(logits)
    losses = F.cross_entropy(
        logits, masks, weights, ignore_index=IGNORED, reduction="none", label_smoothing=config.label_smoothing
    )
    if config.loss == "focal":
        true = logits.log_softmax(1).gather(1, masks.clamp(min=0)[:, None])[:, 0].exp()
        losses = losses * (1 - true) ** config.focal_gamma
    loss = mean_over_pixels(losses, masks != IGNORED)
    return loss + config.dice_weight * dice_loss(logits, masks) if config.dice_weight else loss


def mean_over_pixels(values: Float[Tensor, "b height width"], counted: Bool[Tensor, "b height width"]) -> Tensor:
    """Return the mean over the counted pixels of each image, and over images; one without any such pixel counts as 0."""
    return ((values * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)).mean()


def dice_loss(logits: Float[Tensor, "b k height width"], masks: Int[Tensor, "b height width"]) -> Tensor:
    """Return 1 minus the soft Dice coefficient (Milletari et al. 2016), averaged over the classes of each image and over
    images."""
    counted = (masks != IGNORED)[:, None]
    probabilities = logits.softmax(1) * counted
    target = F.one_hot(masks.clamp(min=0), logits.shape[1]).movedim(-1, 1) * counted
    overlap = (probabilities * target).sum((2, 3))
    total = probabilities.sum((2, 3)) + target.sum((2, 3))
    return 1 - ((2 * overlap + DICE_SMOOTHING) / (total + DICE_SMOOTHING)).mean()
