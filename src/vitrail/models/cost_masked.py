"""Cost of masked pre-training: the encoder and the decoder (``models.masked_autoencoders``). Torch-free.

MAE's encoder processes only the visible patches and its decoder all of them; the other methods encode every token.
"""

from dataclasses import replace

from vitrail.models.cost import Cost, cost, summed
from vitrail.models.masking import Masking, check_masking
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.models.tally import Stage, Tally


def masked_cost(model: ModelConfig, masking: Masking, batch: int = 1) -> Cost:
    """Compute the cost like ``cost``: MACs for one image, shapes and memory for the batch; discarded parts are the decoder."""
    config = check_masking(masking, model)
    whole = cost(config, batch)
    stages = (*_seen(config, masking, whole, batch), *_thrown_away(config, masking, batch))
    return summed(stages, whole.tokens, whole.grid)


def _seen(config: ViTConfig, masking: Masking, whole: Cost, batch: int) -> list[Stage]:
    """Return the encoder's stages. MAE embeds all patches and encodes only the visible ones, like a smaller image."""
    if masking.method != "mae":
        return list(whole.stages)
    visible = config.patches - masking.hidden(config.grid)
    strip = replace(config, image=(config.patch[0], config.patch[1] * visible), position_grid=None)
    pairs = zip(whole.stages, cost(strip, batch).stages, strict=True)
    return [
        every if every.name in ("image", "patches") else replace(some, parameters=every.parameters) for every, some in pairs
    ]


def _thrown_away(config: ViTConfig, masking: Masking, batch: int) -> list[Stage]:
    hidden, numbers = masking.hidden(config.grid), masking.numbers(config)
    if masking.method != "mae":
        return [_predict(Tally(parameters=config.width), hidden, config.width, numbers, batch)]
    width, rows = masking.decoder_width, config.tokens - hidden
    embed = Tally(parameters=width, kept=rows * config.width)
    embed.dense(rows, config.width, width)
    embed.peak(rows * config.width + 2 * config.tokens * width)
    light = ViTConfig(
        width, masking.decoder_depth, 4 * width, masking.decoder_heads, config.patch, config.image, config.channels, 0,
        position="none", class_token=config.has_class_token, registers=config.registers, pool="gap",
    )  # fmt: skip
    blocks = [stage for stage in cost(light, batch).stages if stage.name.startswith("block ")]
    last = Tally(parameters=2 * width, kept=config.tokens * width + 2 * hidden)  # the norm saves all tokens, for a view of some
    return [
        embed.stage("decoder embed", batch, config.tokens, width),
        *(replace(stage, name=f"decoder {stage.name}") for stage in blocks),
        _predict(last, hidden, width, numbers, batch),
    ]


def _predict(tally: Tally, hidden: int, width: int, numbers: int, batch: int) -> Stage:
    tally.dense(hidden, width, numbers)
    tally.kept += hidden * width
    tally.peak(hidden * (width + numbers))
    return tally.stage("decoder predict", batch, hidden, numbers)
