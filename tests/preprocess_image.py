"""Preprocessing of one image on its own, which batches, predictors and exported files are compared with."""

import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import normalise, resize_and_crop


def preprocess_image(image: Image.Image, preprocess: Preprocess) -> Float[Tensor, "c height width"]:
    return normalise(rearrange(torch.from_numpy(resize_and_crop(image, preprocess)), "h w c -> c h w").float(), preprocess)
