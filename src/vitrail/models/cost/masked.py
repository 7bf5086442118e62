"""Cost of masked pre-training: the encoder and the decoder (``models.masked_autoencoders``). Torch-free.

MAE's encoder processes only the visible patches and its decoder all of them; the other methods encode every token.
"""

from dataclasses import replace

from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.models.cost import Cost, cost, total_cost
from vitrail.models.cost.attention import count_layer_positions, offset_mlp_floats
from vitrail.models.cost.counter import FLOAT_BYTES, OpCounter, Stage
from vitrail.models.masking_config import Masking, check_masking


def masked_cost(model: ModelConfig, masking: Masking, batch: int = 1) -> Cost:
    """Compute the cost like ``cost``: MACs for one image, shapes and memory for the batch. Decoder stages are named so."""
    config = check_masking(masking, model)
    full = cost(config, batch)
    stages = (*_encoder_stages(config, masking, full, batch), *_decoder_stages(config, masking, batch))
    return total_cost(stages, full.tokens, full.grid)


def _encoder_stages(config: ViTConfig, masking: Masking, full: Cost, batch: int) -> list[Stage]:
    """Return the encoder's stages. MAE embeds all patches and encodes only the visible ones, like a smaller image."""
    if masking.method != "mae":
        return list(full.stages)
    visible = config.patches - masking.num_masked(config.grid)
    strip = replace(config, image=(config.patch[0], config.patch[1] * visible), position_grid=None)
    stages = [
        whole if whole.name in ("image", "patches") else _repeat_images(one, batch, whole.parameters)
        for whole, one in zip(full.stages, cost(strip).stages, strict=True)
    ]
    first = [stage.name for stage in stages].index("block 1")
    for layer in range(config.depth):
        stages[first + layer] = _add_whole_grid(stages[first + layer], config, strip, layer, batch)
    return stages


def _repeat_images(one: Stage, batch: int, parameters: int) -> Stage:
    """Return the stage of a batch from that of one image: each has other visible patches, so angles and biases of its own."""
    peak_bytes, saved_bytes = batch * one.peak_bytes, batch * one.saved_bytes
    return Stage(one.name, (batch, *one.shape[1:]), parameters, one.macs, peak_bytes, saved_bytes)


def _add_whole_grid(block: Stage, config: ViTConfig, strip: ViTConfig, layer: int, batch: int) -> Stage:
    """Return a block whose learned angles and bias are computed for the whole grid, before those of visible patches are
    picked, instead of for the strip."""
    whole, part = OpCounter(), OpCounter()
    count_layer_positions(config, layer, whole)
    count_layer_positions(strip, layer, part)
    saved = FLOAT_BYTES * (offset_mlp_floats(config, layer) - batch * offset_mlp_floats(strip, layer))
    return replace(block, macs=block.macs + whole.macs - part.macs, saved_bytes=block.saved_bytes + saved)


def _decoder_stages(config: ViTConfig, masking: Masking, batch: int) -> list[Stage]:
    num_masked, target_dim = masking.num_masked(config.grid), masking.target_dim(config)
    if masking.method != "mae":
        return [_prediction_stage(OpCounter(parameters=config.width), num_masked, config.width, target_dim, batch)]
    width, rows = masking.decoder_width, config.tokens - num_masked
    embed = OpCounter(parameters=width, saved_floats=rows * config.width)
    embed.linear(rows, config.width, width)
    embed.update_peak(rows * config.width + 2 * config.tokens * width)
    decoder = ViTConfig(
        width, masking.decoder_depth, 4 * width, masking.decoder_heads, config.patch, config.image, config.channels, 0,
        position="none", class_token=config.has_class_token, registers=config.registers, pool="gap", gelu=config.gelu,
    )  # fmt: skip
    blocks = [stage for stage in cost(decoder, batch).stages if stage.name.startswith("block ")]
    # the norm saves all tokens, for a view of some
    last = OpCounter(parameters=2 * width, saved_floats=config.tokens * width + 2 * num_masked)
    return [
        embed.to_stage("decoder embed", batch, config.tokens, width),
        *(replace(stage, name=f"decoder {stage.name}") for stage in blocks),
        _prediction_stage(last, num_masked, width, target_dim, batch),
    ]


def _prediction_stage(counter: OpCounter, num_masked: int, width: int, target_dim: int, batch: int) -> Stage:
    counter.linear(num_masked, width, target_dim)
    counter.saved_floats += num_masked * width
    counter.update_peak(num_masked * (width + target_dim))
    return counter.to_stage("decoder predict", batch, num_masked, target_dim)
