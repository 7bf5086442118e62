"""One image through an untrained ViT-B/16: build it, run it, record the attention of the last block."""

import torch

import vitrail

model = vitrail.build("B/16").eval()
image = torch.rand(1, 3, 224, 224) * 2 - 1  # between -1 and 1, as the official model expects

with torch.inference_mode(), vitrail.record_activations(model, "blocks.11.attention.weights") as recorded:
    logits = model(image)

(weights,) = recorded["blocks.11.attention.weights"]
print(f"image {tuple(image.shape)} -> logits {tuple(logits.shape)}")  # noqa: T201
print(f"attention of the last block {tuple(weights.shape)}; each row sums to {weights.sum(-1).mean():.4f}")  # noqa: T201
