"""Muon (Jordan et al. 2024): momentum with orthogonalised updates, so that every direction moves equally far.

Matrices of one shape are orthogonalised together, in float32: bfloat16 is slow on most CPUs, and too coarse for the squares
in each iteration. Sharded matrices are gathered for it. ``torch.optim.Muon`` does none of the three. n matrices of r rows and
s columns.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.training.parallel import full_tensor, shard_like, to_local

# the authors' coefficients: singular values are near 1 after five iterations
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def newton_schulz(matrices: Float[Tensor, "n r s"]) -> Float[Tensor, "n r s"]:
    """Orthogonalise matrices approximately by Newton-Schulz iteration: products only, no decomposition.

    An iteration is X <- (a + b G + c G^2) X with G = X X^T. All factors are polynomials of the first G and commute, so they
    are multiplied on the small side of the matrix, and X itself once.
    """
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    work = matrices.float()
    x = work / (work.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    gram, product = x @ x.mT, None
    for _ in range(NEWTON_SCHULZ_STEPS):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else factor @ product
        gram = factor @ gram @ factor
    x = product @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Muon, for matrices only. The update is scaled by sqrt(max(1, r / s)), as its authors do."""

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                by_shape.setdefault(weight.shape, []).append(weight)
            for shape, same_shape in by_shape.items():
                self._update(group, same_shape, max(1.0, shape[0] / shape[1]) ** 0.5)

    def _update(self, group: dict[str, Any], weights: list[Tensor], scale: float) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        moments = [self.state[weight].setdefault("momentum", torch.zeros_like(weight)) for weight in weights]
        torch._foreach_lerp_(to_local(moments), to_local(gradients), 1 - group["momentum"])
        both = zip(gradients, moments, strict=True)
        lookahead = [gradient.lerp(moment, group["momentum"]) for gradient, moment in both]  # Nesterov momentum
        updates = newton_schulz(torch.stack([full_tensor(each) for each in lookahead]))
        shards = [shard_like(update, weight) for update, weight in zip(updates.unbind(), weights, strict=True)]
        torch._foreach_mul_(to_local(weights), 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(to_local(weights), to_local(shards), alpha=-group["lr"] * scale)
