"""Equal outputs to transformers' ViTMAE and masked image modelling for the same random weights and masks; where vit-pytorch's
masked patch prediction differs from the paper's."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from einops import EinopsError, rearrange, repeat
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from tests.reference_libraries import randomise_weights, reference_library
from tests.small_models import masked_task, small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.layers.position import sincos2d
from vitrail.layers.token_merging import gather_tokens
from vitrail.models.masked_autoencoders import MAE, MaskedModel, MaskedPatch, SimMIM
from vitrail.models.masking_config import Masking
from vitrail.models.vit import ViT
from vitrail.tasks.masked_image import patchify, quantise_colours
from vitrail.weights.load import load
from vitrail.weights.load_masked import load_masked
from vitrail.weights.save import save
from vitrail.weights.verify import verify

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 30,
    "patch_size": 6,
    "num_channels": 2,
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 3,
    "decoder_num_attention_heads": 8,
    "decoder_intermediate_size": 128,
}
GRID = (5, 5)


def make_reference(table: bool = True, **options: Any) -> nn.Module:
    """Return a random model with a sine-cosine table in the decoder and, if ``table``, in the encoder."""
    transformers = reference_library("transformers")
    model: Any = randomise_weights(transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**{**SIZES, **options})))
    assert len(model.state_dict()) > 100
    _fill_sincos(model.decoder.decoder_pos_embed)
    if table:
        _fill_sincos(model.vit.embeddings.position_embeddings)
    return model


def _fill_sincos(table: Tensor) -> None:
    table.data.copy_(F.pad(sincos2d(GRID, table.shape[-1], "mae").flatten(0, 1), (0, 0, 1, 0))[None])


def run_task(model: MaskedModel, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, predictions and their patch indices, through the task that trains the model."""
    channels = model.config.channels
    task = masked_task(
        model.masking, model.config.patch, Preprocess(model.config.image, mean=(0.5,) * channels, std=(0.5,) * channels)
    )
    predicted, indices = model(images, noise)
    return task.score(predicted, task.patch_targets(images, indices))[0], predicted, indices


CASES: list[dict[str, Any]] = [
    {},
    {"norm_pix_loss": True, "mask_ratio": 0.68},
    {"table": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "mask_ratio": 0.5},
    {"num_channels": 3, "layer_norm_eps": 1e-6, "norm_pix_loss": True},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_their_mae_is_ours_and_ours_is_theirs(options: dict[str, Any], tmp_path: Path) -> None:
    theirs: Any = make_reference(**options)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_masked(tmp_path / "theirs")
    assert isinstance(ours, MAE)
    assert ours.config.position == ("sincos2d-mae" if options.get("table", True) else "learned1d")
    assert [item.split()[0] for item in ours.encoder.load_report.assumed] == ["images"]
    assert not ours.encoder.load_report.unused
    images, noise = torch.randn(7, ours.config.channels, 30, 30), torch.rand(7, 25)
    save(ours, tmp_path / "ours", format="huggingface")
    back: Any = import_module("transformers").ViTMAEForPreTraining.from_pretrained(tmp_path / "ours").eval()
    with torch.inference_mode():
        loss, predicted, indices = run_task(ours, images, noise)
        for model in (theirs, back):
            reference = model(images, noise=noise)
            hidden = torch.zeros(7, 25).scatter(1, indices, 1.0)
            assert_close(hidden, reference.mask, rtol=0, atol=0)
            assert_close(predicted, gather_tokens(reference.logits, indices), rtol=0, atol=1e-5)
            assert_close(loss, reference.loss, rtol=0, atol=1e-5)
    for name, weight in theirs.state_dict().items():
        assert_close(back.state_dict()[name], weight, rtol=0, atol=0)
    assert back.config.to_dict().keys() == theirs.config.to_dict().keys()
    differing = {name for name, value in theirs.config.to_dict().items() if back.config.to_dict()[name] != value}
    assert differing <= {"_name_or_path", "dtype", "hidden_act"}  # gelu_new and gelu_pytorch_tanh are one


def test_an_mae_with_mean_pooling_is_theirs_too(tmp_path: Path) -> None:
    """As our own recipe builds it: our metadata file does not disturb theirs."""
    theirs: Any = make_reference()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_masked(tmp_path / "theirs")
    pooled = MAE(ViT(replace(ours.config, pool="gap", class_token=True)), ours.masking).eval()
    pooled.load_state_dict(ours.state_dict())
    save(pooled, tmp_path / "ours", format="huggingface")
    assert load_masked(tmp_path / "ours").config.pool == "gap"
    verdict = verify(tmp_path / "ours")
    assert verdict.reference == "huggingface"
    assert verdict.difference is not None
    assert 0 < verdict.difference < 1e-5
    back: Any = import_module("transformers").ViTMAEForPreTraining.from_pretrained(tmp_path / "ours").eval()
    for name, weight in theirs.state_dict().items():
        assert_close(back.state_dict()[name], weight, rtol=0, atol=0)
    images, noise = torch.randn(3, 2, 30, 30), torch.rand(3, 25)
    with torch.inference_mode():
        predicted, indices = pooled(images, noise)
        assert_close(predicted, gather_tokens(back(images, noise=noise).logits, indices), rtol=0, atol=1e-5)


def test_the_three_naming_schemes_of_their_decoder_are_read_equally(tmp_path: Path) -> None:
    """In memory, in a file of transformers 5, and in the published files, which are older."""
    theirs: Any = make_reference()
    theirs.save_pretrained(tmp_path / "five")
    config = (tmp_path / "five" / "config.json").read_text()
    files = {"five": load_file(tmp_path / "five" / "model.safetensors"), "memory": dict(theirs.state_dict())}
    save(load_masked(tmp_path / "five"), tmp_path / "published", format="huggingface")
    files["published"] = load_file(tmp_path / "published" / "model.safetensors")
    queries = {
        name: next(key for key in file if "decoder" in key and ".0." in key and "q" in key and "bias" in key)
        for name, file in files.items()
    }
    assert queries == {
        "five": "decoder.decoder_encoder.layer.0.attention.attention.query.bias",
        "memory": "decoder.decoder_layers.0.attention.q_proj.bias",
        "published": "decoder.decoder_layers.0.attention.attention.query.bias",
    }
    states = []
    for name, file in files.items():
        (tmp_path / name).mkdir(exist_ok=True)
        save_file(file, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(config)
        states.append(load_masked(tmp_path / name).state_dict())
    for state in states[1:]:
        for key, weight in states[0].items():
            assert_close(state[key], weight, rtol=0, atol=0)


def test_the_encoder_of_their_mae_loads_as_any_vision_transformer(tmp_path: Path) -> None:
    theirs: Any = make_reference(mask_ratio=0.5)
    theirs.save_pretrained(tmp_path / "whole")
    theirs.vit.save_pretrained(tmp_path / "encoder")
    theirs.vit.config.mask_ratio = 0.0  # nothing is masked
    images, order = torch.randn(2, 2, 30, 30), torch.arange(25.0).expand(2, 25)
    for name in ("whole", "encoder"):
        ours = load(tmp_path / name)
        assert isinstance(ours, ViT)
        assert ours.config.classes == 0
        with torch.inference_mode():
            reference = theirs.vit(images, noise=order).last_hidden_state
            assert_close(ours.encode(ours.embed_patches(images), GRID), reference, rtol=0, atol=1e-5)


def test_their_encoder_is_verified_against_them(tmp_path: Path) -> None:
    theirs: Any = make_reference()
    theirs.save_pretrained(tmp_path)
    verdict = verify(tmp_path)
    assert verdict.reference == "huggingface"
    assert verdict.difference is not None
    assert 0 < verdict.difference < 1e-5


def test_a_fresh_mae_of_theirs_has_no_positions() -> None:
    """So a model trained from scratch with this version is rejected with its decoder, rather than misread."""
    transformers = reference_library("transformers")
    fresh = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**SIZES))
    assert fresh.decoder.decoder_pos_embed.count_nonzero() == 0
    assert fresh.vit.embeddings.position_embeddings.count_nonzero() == 0


# SimMIM --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "ratio"), [(1, 0.5), (3, 0.6)])
def test_simmim_is_their_masked_image_modelling(unit: int, ratio: float, tmp_path: Path) -> None:
    transformers = reference_library("transformers")
    sizes = {name: value for name, value in SIZES.items() if not name.startswith("decoder")}
    config = transformers.ViTConfig(**{**sizes, "image_size": 42, "patch_size": 7, "encoder_stride": 7})
    theirs: Any = randomise_weights(transformers.ViTForMaskedImageModeling(config))
    theirs.save_pretrained(tmp_path)
    encoder = load(tmp_path)
    assert isinstance(encoder, ViT)
    ours = SimMIM(encoder, Masking("simmim", ratio, mask_unit=unit))
    ours.mask.data = theirs.vit.embeddings.mask_token.data[0, 0]
    ours.predict.weight.data = rearrange(theirs.decoder[0].weight.data, "(c p q) d 1 1 -> (p q c) d", p=7, q=7)
    ours.predict.bias.data = rearrange(theirs.decoder[0].bias.data, "(c p q) -> (p q c)", p=7, q=7)
    images = torch.randn(5, 2, 42, 42)
    with torch.inference_mode():
        loss, predicted, indices = run_task(ours.eval(), images, torch.rand(5, 36 // unit**2))
        hidden = torch.zeros(5, 36, dtype=torch.bool).scatter(1, indices, True)
        assert hidden.sum() == 5 * (18 if unit == 1 else 27)
        reference = theirs(images, bool_masked_pos=hidden)
        assert_close(predicted, gather_tokens(patchify(reference.reconstruction, (7, 7)), indices), rtol=0, atol=1e-5)
        assert_close(loss, reference.loss, rtol=0, atol=1e-5)


# vit-pytorch's masked patch prediction against Dosovitskiy et al. 2021, B.1.2 ----------------------------------------

PATCH, CHANNELS, WIDTH = 4, 3, 20
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def make_vit_pytorch(side: int, **options: Any) -> Any:
    sizes = {"num_classes": 5, "dim": WIDTH, "depth": 1, "heads": 2, "mlp_dim": 28}
    model = reference_library("vit_pytorch").ViT(image_size=side, patch_size=PATCH, channels=CHANNELS, **sizes)
    make_mpp = import_module("vit_pytorch.mpp").MPP
    return make_mpp(transformer=model, patch_size=PATCH, dim=WIDTH, channels=CHANNELS, mean=MEAN, std=STD, **options)


def test_vit_pytorchs_masked_patch_prediction_does_not_run_with_its_own_model() -> None:
    """In the pinned version: it expects the class token and the positions with an axis that they no longer have."""
    with pytest.raises(EinopsError, match="expected 3 dims"):
        make_vit_pytorch(24)(torch.rand(2, CHANNELS, 24, 24))


class RecordedPass:
    """One forward pass with that axis restored, which records the inputs of the embedding and of the loss."""

    def __init__(self, num_images: int = 2, side: int = 24, **options: Any) -> None:
        mpp = make_vit_pytorch(side, **options)
        for name in ("cls_token", "pos_embedding"):
            setattr(mpp.transformer, name, nn.Parameter(getattr(mpp.transformer, name).data[None]))
        self.mpp = mpp
        recorded: dict[str, Any] = {}
        mpp.patch_to_emb.register_forward_pre_hook(lambda _, inputs: recorded.update(embedded=inputs[0].detach().clone()))
        mpp.loss.register_forward_pre_hook(lambda _, inputs: recorded.update(loss=inputs))
        each = torch.rand(num_images, CHANNELS, side // PATCH, side // PATCH)  # patches of many colours
        bright = self.bright = 0.9 * F.interpolate(each, (side, side)) + 0.1 * torch.rand(num_images, CHANNELS, side, side)
        self.images = (bright - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        self.value = mpp(self.images)
        self.embedded: Tensor = recorded["embedded"]
        self.predicted, self.target, self.mask = (part.detach() for part in recorded["loss"])
        self.clean = patchify(self.images, (PATCH, PATCH))
        self.is_token = (self.embedded == mpp.mask_token.detach()).all(dim=-1)
        self.is_same = (self.embedded == self.clean).all(dim=-1)


def test_vit_pytorch_masks_pixels_before_the_embedding_and_the_paper_masks_embeddings() -> None:
    run = RecordedPass()
    assert run.mpp.mask_token.numel() == CHANNELS * PATCH**2 != WIDTH  # a patch of pixels, not a token
    assert run.embedded.shape[-1] == CHANNELS * PATCH**2
    assert run.is_token.any()  # among the inputs of the embedding
    ours = MaskedPatch(small_vit(classes=0), Masking("masked-patch"))
    assert ours.mask.numel() == ours.config.width != CHANNELS * 6 * 5  # ours is a token


def test_vit_pytorchs_own_rates_are_not_the_papers() -> None:
    """15 % instead of 50 % are corrupted; half become the mask, the others another patch, none stays: not 80/10/10."""
    torch.manual_seed(0)
    run = RecordedPass(num_images=8, side=160)
    patches = run.mask.numel()
    assert abs(run.mask.float().mean().item() - 0.15) < 1e-3
    assert abs(run.is_token.sum().item() / run.mask.sum().item() - 0.5) < 0.03
    same = (run.is_same & run.mask).sum().item()
    assert same <= 5 * patches * 0.15 * 0.5 / 1600 + 5  # a patch may be drawn to replace itself, one time in 1600


def test_with_the_papers_rates_vit_pytorch_corrupts_as_many_patches_as_the_paper() -> None:
    torch.manual_seed(0)
    run = RecordedPass(num_images=8, side=160, mask_prob=0.5, replace_prob=0.8, random_patch_prob=0.1)
    hidden = run.mask.sum().item()
    assert hidden == run.mask.numel() // 2
    assert abs(run.is_token.sum().item() / hidden - 0.8) < 0.02
    assert abs((run.is_same & run.mask).sum().item() / hidden - 0.1) < 0.02
    swapped = run.mask & ~run.is_token & ~run.is_same
    for image in range(2):  # the others are patches of the same image
        equal = run.embedded[image][swapped[image]][:, None] == run.clean[image]
        assert equal.all(dim=-1).any(dim=1).all()
    assert run.is_same[~run.mask].all()


def test_vit_pytorchs_labels_are_the_papers_colours_of_the_clean_image() -> None:
    """In another order of the channels: its first one is the least significant, ours the most."""
    run = RecordedPass()
    assert_close(run.target, run.images, rtol=0, atol=0)
    ours = quantise_colours(run.bright, (PATCH, PATCH), 1)[..., 0]
    digits = torch.stack([ours // 64, ours // 8 % 8, ours % 8], dim=-1)
    labels = (digits * torch.tensor([1, 8, 64])).sum(dim=-1)
    assert labels.unique().numel() > 20
    certain = 100 * F.one_hot(labels, 512).float()
    everywhere = torch.ones_like(run.mask)
    assert run.mpp.loss.forward(certain, run.target, everywhere) < 1e-6
    wrong = 100 * F.one_hot((labels + 1) % 512, 512).float()
    assert run.mpp.loss.forward(wrong, run.target, everywhere) > 99


def test_vit_pytorchs_loss_counts_only_masked_patches() -> None:
    run = RecordedPass()
    elsewhere = repeat(~run.mask, "b n -> b n k", k=512) * torch.randn(512)
    assert_close(run.mpp.loss.forward(run.predicted + elsewhere, run.target, run.mask), run.value.detach(), rtol=0, atol=0)
    assert not torch.equal(run.mpp.loss.forward(run.predicted + elsewhere, run.target, ~run.mask), run.value.detach())
