"""Trace of one forward and backward pass: output statistics and gradient norms of every module, to debug training."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.weight_init import lecun_normal_


@dataclass
class ModuleRecord:
    """Record of one call of one module."""

    name: str
    module_type: str
    shape: tuple[int, ...]
    mean: float
    std: float
    grad_norm: float | None = None  # gradient norm at the output; None: no gradient
    param_grad_norm: float | None = None  # gradient norm of the module's own parameters


def trace_modules(
    model: nn.Module, images: Float[Tensor, "b c height width"], labels: Int[Tensor, " b"] | None = None
) -> list[ModuleRecord]:
    """Return records in the order of execution. The loss is the cross-entropy or, without labels, the mean squared output.

    The parameters' gradients are those of this pass alone afterwards. Modules that return their input are left out.
    """
    records: list[ModuleRecord] = []
    calls: list[tuple[ModuleRecord, nn.Module]] = []
    hooks: list[Any] = []

    def record_output(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(output, Tensor) or any(output is item for item in inputs):
            return
        values = output.detach().float()
        std, mean = torch.std_mean(values, correction=0)
        record = ModuleRecord(name, type(module).__name__, tuple(output.shape), mean.item(), std.item())
        records.append(record)
        calls.append((record, module))
        if output.requires_grad:
            hooks.append(output.register_hook(lambda gradient: setattr(record, "grad_norm", gradient.float().norm().item())))

    hooks += [
        module.register_forward_hook(lambda module, inputs, output, name=name: record_output(name, module, inputs, output))
        for name, module in model.named_modules()
        if name
    ]
    model.zero_grad(set_to_none=True)
    settable: Any = model
    was_checkpointing = getattr(model, "activation_checkpointing", False)
    settable.activation_checkpointing = False  # so that each module is run once
    try:
        output = model(images)
        loss = output.square().mean() if labels is None else F.cross_entropy(output, labels)
        if loss.requires_grad:
            loss.backward()
    finally:
        settable.activation_checkpointing = was_checkpointing
        for hook in hooks:
            hook.remove()
    for record, module in calls:
        gradients = [weight.grad.norm() for weight in module.parameters(recurse=False) if weight.grad is not None]
        record.param_grad_norm = torch.stack(gradients).norm().item() if gradients else None
    return records


def randomise_zero_head(model: nn.Module) -> bool:
    """Initialise an all-zero head, through which no gradient would flow back; return whether there was one."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1:]
    zero_heads = [linear for linear in last if not linear.weight.any()]
    for linear in zero_heads:
        lecun_normal_(linear.weight.detach())
    return bool(zero_heads)
