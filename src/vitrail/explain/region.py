"""A pixel or a region of a segmentation model as a classifier, so that every explanation of a class explains it too.

The score of a class is the mean of its logits over the chosen pixels of the image, at the image's own size. The softmax of the
scores is then the probability that the model gives to a single pixel and, over a region, the normalised geometric mean of those
of its pixels. The mean logit is linear in the head's outputs, so its gradient does not vanish where a class is certain, as that
of a probability does.

b images, n patches, t tokens, d width, k classes; the model's input is height by width, an image h high and w wide.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from einops import reduce
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.layers.position import Grid, PatchIndices
from vitrail.models.config import ViTConfig
from vitrail.models.token_reduced_vit import shallow_copy
from vitrail.models.vit import ViT
from vitrail.tasks.dense import restored_bands


class RegionClassifier(ViT):
    """The encoder of a segmentation model, which classifies the chosen pixels of each image with the model's head.

    It shares the weights. ``weights`` sum to one over the pixels of the model's input; one row serves any number of images.
    What the class token or the mean is to a classifier, the patches of the chosen pixels are here. ``grid``: of the patches,
    if the model's outputs are not those of pixels.
    """

    explains: ClassVar[str] = "regions are explained of segmentation models, got a {}; train one with --task segment"

    def __init__(self, segmenter: nn.Module, weights: Float[Tensor, "b rows columns"], grid: Grid | None = None) -> None:
        encoder: Any = getattr(segmenter, "encoder", None)
        if not isinstance(encoder, ViT):
            raise VitrailError(self.explains.format(type(segmenter).__name__))
        nn.Module.__init__(self)
        vars(self).update(vars(shallow_copy(encoder)))  # share everything with the encoder
        names: Any = getattr(segmenter, "class_names", None) or encoder.class_names
        if not names:
            raise VitrailError("the model has no class names; set model.class_names")
        vars(self)["segmenter"] = segmenter  # no submodule, so that its decoder's taps are not taken for the encoder's
        c = encoder.config
        self.config = replace(
            c,
            classes=len(names),
            class_token=c.has_class_token,
            pool="gap",
            pool_heads=None,
            pool_mlp=None,
            pool_prefix=False,
        )
        self.class_names, self.metadata = tuple(names), {}  # without a recipe: a classifier
        self.output_weights = weights
        own_grid = grid or (weights.shape[1] // c.patch_stride[0], weights.shape[2] // c.patch_stride[1])
        self.pool = RegionPool(segmenter, weights, own_grid, self.config)
        self.head = self.pooled_norm = nn.Identity()

    @property
    def reads_last_block(self) -> bool:
        """Whether the head reads the tokens of the last block alone, so that it can be applied to those of any other."""
        return getattr(vars(self)["segmenter"], "layers", None) == (self.config.depth,)

    def token_weights(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t"]:
        """Return how much of the region lies in each patch, 0 for the other tokens: sums of one."""
        inside = pool_region(self.output_weights, self.grid(images)).flatten(1)
        return F.pad(inside, (self.config.prefix_tokens, 0)).expand(images.shape[0], -1)

    def own_patches(self, images: Float[Tensor, "b c height width"]) -> Bool[Tensor, "b n"]:
        """Return which patches the region's pixels are predicted from."""
        return self.token_weights(images)[:, self.config.prefix_tokens :] > 0

    def encode_and_pool(
        self, x: Float[Tensor, "b n d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b k"]:
        """Return the scores of the classes, the embedded patches being these."""
        if patch_indices is not None:
            raise VitrailError("the head of the model reads every patch, so none can be dropped; mask or shuffle them instead")
        stride, channels = self.config.patch_stride, self.config.channels
        images = x.new_zeros(x.shape[0], channels, grid[0] * stride[0], grid[1] * stride[1])
        hook = self.embed.register_forward_hook(lambda *_: x)  # whatever a head does with its encoder, it embeds these
        try:
            return region_scores(vars(self)["segmenter"](images), self.output_weights, self.config.classes)
        finally:
            hook.remove()

    def train(self, mode: bool = True) -> "RegionClassifier":
        super().train(mode)
        vars(self)["segmenter"].train(mode)
        return self


class RegionPool(nn.Module):
    """The head and the mean over the region, for the logit lens: from the tokens of any block to the scores of the classes."""

    def __init__(self, segmenter: nn.Module, weights: Float[Tensor, "b rows columns"], grid: Grid, config: ViTConfig) -> None:
        super().__init__()
        vars(self)["segmenter"] = segmenter
        self.weights, self.grid, self.config = weights, grid, config

    def forward(self, x: Float[Tensor, "b t d"], sizes: Tensor | None = None) -> Float[Tensor, "b k"]:
        outputs = vars(self)["segmenter"].head([x[:, self.config.prefix_tokens :]], self.grid)
        return region_scores(outputs, self.weights, self.config.classes)


def region_classifier(segmenter: nn.Module, mask: Bool[ndarray, "h w"]) -> RegionClassifier:
    """Return a segmentation model as a classifier of the chosen pixels of an image, ``mask`` being of the image's own size."""
    model: Any = segmenter
    if model.preprocess is None:
        raise VitrailError("the model has no preprocessing config, so its pixels are not known; set model.preprocess")
    weights = region_weights(mask, model.preprocess, model.preprocess.image_size)
    return RegionClassifier(model, weights.to(next(model.parameters())))


def region_scores(
    outputs: Float[Tensor, "b channels rows columns"], weights: Float[Tensor, "_ rows columns"], classes: int
) -> Float[Tensor, "b {classes}"]:
    """Return the weighted means of the logits of the classes, which are the first of the outputs."""
    return (outputs[:, :classes] * weights[:, None]).sum((2, 3))


def region_weights(
    mask: Bool[ndarray, "h w"], preprocess: Preprocess, input_size: tuple[int, int]
) -> Float[Tensor, "1 height width"]:
    """Return the weights of the pixels of the model's input in the mean over the chosen pixels of an image at its own size.

    They are the gradient of that mean: it is linear in the logits that are interpolated to the image.
    """
    zeros = torch.zeros(1, *input_size, dtype=torch.float64, requires_grad=True)
    chosen = torch.from_numpy(mask)
    for band, restored in restored_bands(zeros, preprocess, (mask.shape[0], mask.shape[1])):
        if chosen[band].any():
            (restored[0] * chosen[band]).sum().backward()  # band by band, so that memory stays bounded
    if zeros.grad is None:
        raise VitrailError("a region must have at least one pixel, got none; try --pixel X,Y")
    return (zeros.grad / zeros.grad.sum()).float()


def pool_region(weights: Float[Tensor, "b rows columns"], grid: Grid) -> Float[Tensor, "b y x"]:
    """Return the sum of the weights in each patch."""
    return reduce(weights, "b (y p) (x q) -> b y x", "sum", y=grid[0], x=grid[1])
