"""Settings of inference speed-ups (``models.speedups``). Torch-free.

``compile`` costs a minute before the first prediction. ``merge_tokens`` merges similar tokens (``models.token_reduced_vit``),
``drop_patches`` drops the patches of least variance, ``image`` runs the model on smaller images: each costs some accuracy,
which ``vitrail bench token-merging`` measures against the speed.
"""

import re
from dataclasses import dataclass

from vitrail.config import validate
from vitrail.errors import VitrailError
from vitrail.models.config import Pair

MAX_SPEEDUP = 100.0  # beyond this hardly a token is left


@dataclass(frozen=True)
class Speedups:
    """Inference speed-ups; all off by default."""

    compile: bool = False
    merge_tokens: int | str = 0  # tokens merged per layer, or "1.5x": as many as give this speed-up in MACs
    merge_every: int = 1  # merge in the first layer and every n-th from there
    drop_patches: float = 0.0  # fraction of the patches to drop
    image: Pair | None = None  # input size; None: the model's own

    def __post_init__(self) -> None:
        validate(self)
        if isinstance(self.merge_tokens, int) and self.merge_tokens < 0:
            raise VitrailError(
                f"merge_tokens must be at least 0 tokens per layer, got {self.merge_tokens}; try merge_tokens=8 "
                "or merge_tokens='1.5x'"
            )
        if self.merge_every < 1:
            raise VitrailError(f"merge_every must be at least 1 layer, got {self.merge_every}; try merge_every=3")
        if isinstance(self.merge_tokens, str):
            self.target_speedup  # noqa: B018 - raises if invalid
        if not 0 <= self.drop_patches < 1:
            raise VitrailError(
                f"drop_patches must be a fraction from 0 to below 1, got {self.drop_patches:g}; try drop_patches=0.25"
            )

    @property
    def target_speedup(self) -> float | None:
        """The speed-up that merging should reach; None if ``merge_tokens`` is a number of tokens."""
        if isinstance(self.merge_tokens, int):
            return None
        match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)x", self.merge_tokens)
        if match is None or not 1 <= float(match[1]) <= MAX_SPEEDUP:
            raise VitrailError(
                f"merge_tokens must be tokens per layer or a speed-up such as 1.5x, got "
                f"{self.merge_tokens[:20]!r}; try 8 or 1.5x"
            )
        return float(match[1])
