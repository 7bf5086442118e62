"""The whole model: its equations, options and sizes, and the modes it runs in."""

import copy
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tests.small_models import small_config, small_vit
from tests.tiers import quick_first, quick_only
from vitrail.errors import VitrailError
from vitrail.layers.tap import record_activations
from vitrail.models.build import build, build_on_meta
from vitrail.models.variants import variant
from vitrail.models.vit import ViT

OPTIONS: list[dict[str, Any]] = [
    {},
    {"pool": "gap"},
    {"pool": "map", "registers": 2},
    {"norm": "post"},
    {"final_norm": "none"},
    {"pool": "cls+gap", "gelu": "quick", "embed_norm": True, "patch_bias": False},
    {"mlp_kind": "swiglu", "layer_scale": 0.1},
    {"gelu": "exact", "head": "mlp", "head_hidden": 13},
    {"qk_norm": True, "layer_scale": 0.1, "qkv_bias": False},
    {"position": "learned2d", "position_at": "every-layer"},
    {"position": "sincos2d", "position_at": "every-layer-shared"},
    {"position": "relative"},
    {"position": "rotary", "registers": 3},
]
IMAGES = torch.randn(2, 3, 12, 15, generator=torch.Generator().manual_seed(0))


def test_the_equations_of_the_paper() -> None:
    """z0 = [class; x E] + E_pos; z' = MSA(LN(z)) + z; z = MLP(LN(z')) + z'; y = LN(z_L^0); a linear head."""
    model = small_vit()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    patches = F.unfold(IMAGES, (6, 5), stride=(6, 5)).mT @ weights["embed.project.weight"].flatten(1).T
    z = torch.cat([weights["cls"].expand(2, 1, 24), patches + weights["embed.project.bias"]], dim=1)
    z = z + torch.cat([weights["positions.0.prefix"], weights["positions.0.table.weight"].flatten(0, 1)])
    for layer in range(4):
        w = {name.removeprefix(f"blocks.{layer}."): weight for name, weight in weights.items() if f"blocks.{layer}." in name}
        x = F.layer_norm(z, (24,), w["norm1.weight"], w["norm1.bias"], 1e-6)
        q, k, v = (x @ w["attention.qkv.weight"].T + w["attention.qkv.bias"]).split(24, dim=-1)
        heads = []
        for head in range(3):
            mine = slice(8 * head, 8 * head + 8)
            heads.append((q[..., mine] @ k[..., mine].mT / math.sqrt(8)).softmax(-1) @ v[..., mine])
        z = z + torch.cat(heads, dim=-1) @ w["attention.out.weight"].T + w["attention.out.bias"]
        x = F.layer_norm(z, (24,), w["norm2.weight"], w["norm2.bias"], 1e-6)
        x = F.gelu(x @ w["mlp.up.weight"].T + w["mlp.up.bias"], approximate="tanh")
        z = z + x @ w["mlp.down.weight"].T + w["mlp.down.bias"]
    y = F.layer_norm(z[:, 0], (24,), weights["norm.weight"], weights["norm.bias"], 1e-6)
    assert_close(model.features(IMAGES), y)
    assert_close(model(IMAGES), y @ weights["head.weight"].T + weights["head.bias"])


def test_post_norm_normalises_after_adding_and_not_again_at_the_end() -> None:
    model = small_vit(norm="post", depth=1)
    block, x = model.blocks[0], torch.randn(2, 7, 24)
    first = block.norm1(x + block.attention(x))  # type: ignore[operator]
    assert_close(block(x), block.norm2(first + block.mlp(first)))  # type: ignore[operator]
    assert isinstance(model.norm, torch.nn.Identity)


def test_the_pre_training_head_has_one_hidden_layer_with_tanh() -> None:
    model = small_vit(head="mlp", head_hidden=13)
    assert isinstance(model.head, torch.nn.Sequential)
    hidden, _, last = model.head
    assert_close(model(IMAGES), last(torch.tanh(hidden(model.features(IMAGES)))))
    assert hidden.out_features == 13


def test_without_classes_the_output_is_the_representation() -> None:
    model = small_vit(classes=0)
    assert_close(model(IMAGES), model.features(IMAGES))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_recording_does_not_change_the_logits(options: dict[str, Any]) -> None:
    model = small_vit(**options)
    fused = model(IMAGES)
    with record_activations(model, "weights") as recorded:
        explicit = model(IMAGES)
    assert_close(fused, explicit, rtol=0, atol=1e-5)
    assert len(recorded) == (5 if options.get("pool") == "map" else 4)


def test_recording_a_full_size_model_does_not_change_the_logits() -> None:
    model = build("Ti/16").eval()
    torch.nn.init.normal_(model.head.weight, std=0.02)  # type: ignore[arg-type]
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        fused = model(images)
        with record_activations(model, "weights"):
            assert_close(model(images), fused, rtol=0, atol=1e-5)


def test_weights_start_as_in_the_official_code() -> None:
    model = build("S/16", depth=4, head="mlp", registers=8)
    assert isinstance(model, ViT)
    w = dict(model.named_parameters())
    d, m = 384, 1536
    for block in range(4):
        for part in w[f"blocks.{block}.attention.qkv.weight"].chunk(3):  # each Xavier on (D, D), not on (3D, D)
            assert_uniform(part, math.sqrt(6 / (d + d)))
        assert_uniform(w[f"blocks.{block}.attention.out.weight"], math.sqrt(6 / (d + d)))
        assert_uniform(w[f"blocks.{block}.mlp.up.weight"], math.sqrt(6 / (d + m)))
        assert_uniform(w[f"blocks.{block}.mlp.down.weight"], math.sqrt(6 / (d + m)))
        assert_normal(w[f"blocks.{block}.mlp.up.bias"], 1e-6)
        assert_normal(w[f"blocks.{block}.mlp.down.bias"], 1e-6)
        assert not w[f"blocks.{block}.attention.qkv.bias"].any()
        assert not w[f"blocks.{block}.attention.out.bias"].any()
        assert (w[f"blocks.{block}.norm1.weight"] == 1).all()
    # LeCun, truncated at two standard deviations
    for name, fan_in in (("embed.project.weight", 3 * 16 * 16), ("head.0.weight", d)):
        assert_normal(w[name], fan_in**-0.5)
        assert w[name].abs().max() <= 2 * fan_in**-0.5 / 0.8796 + 1e-6
    assert_normal(w["positions.0.table.weight"], 0.02)
    assert_normal(w["positions.0.prefix"], 0.02)
    assert_normal(w["registers"], 0.02)
    for name in ("cls", "head.2.weight", "head.2.bias", "head.0.bias", "embed.project.bias"):
        assert not w[name].any()


def assert_uniform(weight: torch.Tensor, bound: float) -> None:
    assert weight.abs().max() <= bound
    assert_close(weight.std().item(), bound / math.sqrt(3), rtol=0.02, atol=0)
    assert abs(weight.mean().item()) < 5 * bound / math.sqrt(3 * weight.numel())


def assert_normal(weight: torch.Tensor, std: float) -> None:
    assert_close(weight.std().item(), std, rtol=5 / math.sqrt(2 * weight.numel()) + 0.01, atol=0)
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(weight.numel())


def test_hybrids_and_relative_keys_start_as_they_should() -> None:
    hybrid = build("R26+S/32", depth=1)
    assert isinstance(hybrid, ViT)
    for name, weight in hybrid.stem.named_parameters():
        if name.endswith("norm3.weight"):
            assert not weight.any()  # every bottleneck starts as its shortcut
        elif weight.ndim == 4 and weight.numel() > 10_000:
            assert_normal(weight, weight[0].numel() ** -0.5)
        elif name.endswith("weight") and weight.ndim == 1:
            assert (weight == 1).all()
    relative = build("S/16", depth=1, position="relative")
    assert_normal(dict(relative.named_parameters())["blocks.0.attention.relative.keys"], 0.02)


def test_a_map_head_starts_as_in_big_vision() -> None:
    model = build("S/16", depth=1, pool="map")
    w = dict(model.named_parameters())
    assert w["pool.probe"].abs().max() <= math.sqrt(6 / 385)
    for part in (w["pool.q.weight"], *w["pool.kv.weight"].chunk(2), w["pool.out.weight"]):
        assert_uniform(part, math.sqrt(6 / 768))


# Other sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["none", "learned1d", "learned2d", "sincos2d", "rotary"])
def test_a_flexible_model_takes_other_sizes_and_is_the_same_at_its_own(position: str) -> None:
    fixed = small_vit(position=position)
    flexible = build(small_config(position=position, flexible=True)).eval()
    flexible.load_state_dict(fixed.state_dict())
    assert_close(flexible(IMAGES), fixed(IMAGES), rtol=0, atol=0)
    larger = torch.randn(2, 3, 24, 20)
    assert flexible(larger).shape == (2, 5)
    with torch.no_grad():
        assert_close(flexible(larger), flexible(larger), rtol=0, atol=0)  # the second time from the cache


def test_at_another_size_the_table_is_the_resized_one() -> None:
    small = small_vit(flexible=True, position_resize="official")
    large = build(small_config(image=(24, 20), position_resize="official")).eval()
    state = dict(small.state_dict())
    table = state["positions.0.table.weight"]
    state["positions.0.table.weight"] = F.interpolate(
        table.permute(2, 0, 1)[None], (4, 4), mode="bilinear", align_corners=True
    )[0].permute(1, 2, 0)
    large.load_state_dict(state)
    images = torch.randn(2, 3, 24, 20)
    assert_close(small(images), large(images))


@pytest.mark.parametrize(
    ("flexible", "shape", "sentence"),
    [
        (
            False,
            (1, 3, 24, 20),
            "images must be 12x15, got 24x20; resize them to 12x15, or build the model with flexible=True",
        ),
        (True, (1, 3, 25, 20), "image must be a multiple of patch 6x5, got image=25x20; try image=24x20"),
        (True, (1, 3, 2, 2), "try image=6x5"),
        (False, (1, 1, 12, 15), "images must have 3 channels, got 1"),
    ],
)
def test_a_wrong_size_is_rejected_with_the_right_one(flexible: bool, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(VitrailError) as error:
        small_vit(flexible=flexible)(torch.randn(shape))
    assert sentence in str(error.value)


@pytest.mark.compile  # the shape checker would raise first
def test_an_image_without_a_batch_axis_is_rejected_with_the_fix() -> None:
    for model in (small_vit(), build("R50x1", stages=(1,))):
        with pytest.raises(VitrailError, match=r"\(batch, channels, height, width\), got \(3, 12, 15\); try images\[None\]"):
            model(torch.randn(3, 12, 15))


def test_a_resnet_rejects_other_channels() -> None:
    with pytest.raises(VitrailError, match="images must have 3 channels, got 4"):
        build("R50x1", stages=(1,))(torch.randn(1, 4, 32, 32))


# Modes of running ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradient_checkpointing_changes_no_gradient(options: dict[str, Any]) -> None:
    """Also with dropout, whose draws must be the same when a block is recomputed."""
    plain = small_vit(**options, dropout=0.1, stochastic_depth=0.1).train()
    saving = copy.deepcopy(plain)
    saving.activation_checkpointing = True
    for model in (plain, saving):
        torch.manual_seed(1)
        model(IMAGES).square().sum().backward()
    for (name, one), two in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert one.grad is not None, name
        assert_close(one.grad, two.grad)


def test_gradient_checkpointing_saves_memory() -> None:
    def saved_numel(checkpointing: bool) -> int:
        model, sizes = small_vit(depth=6), []
        model.activation_checkpointing = checkpointing
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):  # type: ignore[func-returns-value]
            model(IMAGES)
        return sum(sizes)

    assert saved_numel(True) < saved_numel(False) / 4


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_autocast_to_bfloat16_stays_close(options: dict[str, Any]) -> None:
    model = small_vit(**options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(IMAGES)
        logits.float().square().sum().backward()
    reference = model(IMAGES)
    assert (logits - reference).norm() / reference.norm() < 0.03
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_model_in_bfloat16_runs_also_at_another_size(options: dict[str, Any]) -> None:
    flexible = options.get("position") != "relative"
    model = small_vit(**options, flexible=flexible)
    images = torch.randn(2, 3, 18, 10) if flexible else IMAGES
    with torch.no_grad():
        reference = model(images)
    logits = model.bfloat16()(images.bfloat16())
    assert logits.dtype == torch.bfloat16
    assert (logits - reference).norm() / reference.norm() < 0.1


@pytest.mark.compile
@pytest.mark.parametrize("options", quick_only([*OPTIONS, {"flexible": True}], {}), ids=str)
def test_it_compiles_to_one_graph(options: dict[str, Any]) -> None:
    torch.compiler.reset()
    model = small_vit(**{"depth": 2, **options})
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(IMAGES), model(IMAGES), rtol=0, atol=1e-5)
    with record_activations(model, "blocks.1.attention.weights") as recorded:
        compiled(IMAGES)
    assert [len(values) for values in recorded.values()] == [1]  # recording works under compilation


@pytest.mark.compile
@pytest.mark.thorough
def test_training_compiles_at_several_sizes() -> None:
    torch.compiler.reset()
    model = small_vit(flexible=True).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in ((12, 15), (18, 20), (24, 25), (30, 10)):
        images = torch.randn(2, 3, *size)
        model.zero_grad()
        compiled(images).square().sum().backward()
        gradients = [weight.grad for weight in model.parameters()]
        model.zero_grad()
        model(images).square().sum().backward()
        for one, two in zip(gradients, model.parameters(), strict=True):
            assert_close(one, two.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.compile
def test_training_compiles_to_one_graph() -> None:
    torch.compiler.reset()
    model = small_vit().train()
    twin = copy.deepcopy(model)
    for each in (model, torch.compile(twin, fullgraph=True, backend="aot_eager")):
        each(IMAGES).square().sum().backward()
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # inductor's own
def test_the_default_compiler_gives_the_same_logits() -> None:
    torch.compiler.reset()
    model = small_vit()
    with torch.inference_mode():
        assert_close(torch.compile(model, fullgraph=True)(IMAGES), model(IMAGES), rtol=0, atol=1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("options", quick_only(OPTIONS, {}, {"pool": "map", "registers": 2}), ids=str)
def test_it_exports_with_a_dynamic_batch(options: dict[str, Any]) -> None:
    model = small_vit(**options)
    program = torch.export.export(model, (IMAGES,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    for batch in (1, 2, 5):
        images = torch.randn(batch, 3, 12, 15)
        assert_close(program.module()(images), model(images), rtol=0, atol=1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("name", quick_first(["R50x1", "R26+S/32"]))
def test_hybrids_and_resnets_compile_and_export(name: str) -> None:
    torch.compiler.reset()
    smaller: dict[str, Any] = {"depth": 1} if "+" in name else {"stages": (1, 2)}
    model = build(name, image=64, classes=5, **smaller).eval()
    torch.nn.init.normal_(model.head.weight)  # type: ignore[arg-type]
    images = torch.randn(2, 3, 64, 64)
    assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(images), model(images), rtol=0, atol=1e-5)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    assert_close(program.module()(images[:1]), model(images[:1]), rtol=0, atol=1e-5)


def test_a_model_built_on_meta_has_only_its_fixed_tables() -> None:
    model = build_on_meta(small_config(position="sincos2d"))
    assert all(weight.is_meta for weight in model.parameters())
    reference = small_vit(position="sincos2d")
    model.load_state_dict(reference.state_dict(), assign=True)
    assert_close(model.eval()(IMAGES), reference(IMAGES), rtol=0, atol=0)


def test_on_the_meta_device_everything_is_meta() -> None:
    model = build(variant("e/14", position="sincos2d", image=28), device="meta")
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
