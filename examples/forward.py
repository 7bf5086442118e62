"""A picture through an untrained ViT-B/16: build it, run it, look at one head while it runs."""

import torch

import vitrail

model = vitrail.build("B/16").eval()
picture = torch.rand(1, 3, 224, 224) * 2 - 1  # between -1 and 1, as the official model expects

with torch.inference_mode(), vitrail.record_activations(model, "blocks.11.attention.weights") as seen:
    logits = model(picture)

(weights,) = seen["blocks.11.attention.weights"]
print(f"picture {tuple(picture.shape)} -> logits {tuple(logits.shape)}")  # noqa: T201
print(f"attention of the last block {tuple(weights.shape)}; each row sums to {weights.sum(-1).mean():.4f}")  # noqa: T201
