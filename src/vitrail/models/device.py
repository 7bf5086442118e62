"""Where a model is computed."""

import torch

from vitrail.errors import VitrailError


def device(name: str) -> torch.device:
    """The best there is, or the one that is named."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise VitrailError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}); try cpu") from None
