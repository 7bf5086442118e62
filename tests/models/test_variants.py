"""Names and numbers of the model variants, and rejected configs."""

import pytest
import torch

from tests.reference_numbers import MACS, PARAMETERS
from tests.small_models import small_config
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, ResNetConfig, StemConfig, ViTConfig
from vitrail.models.cost import cost
from vitrail.models.variants import RESNETS, SIZES, variant, variant_names


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_by_formula_and_by_counting(name: str) -> None:
    label, _, pool = name.partition(" ")
    settings = variant(label, **({"pool": pool} if pool else {}))
    counted = sum(weight.numel() for weight in build(settings, device="meta").parameters())
    assert counted == cost(settings).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", MACS)
def test_macs_to_the_printed_digits(name: str) -> None:
    label, _, side = name.partition("@")
    assert f"{cost(variant(label, image=int(side or 224))).macs / 1e9:.3f}" == MACS[name]


def test_every_known_name_is_a_model() -> None:
    assert {"B/16", "R50+B/16", "R200x3"} <= set(variant_names())
    for name in variant_names():
        assert cost(variant(name)).parameters > 0


def test_a_name_gives_size_and_patch_and_takes_changes() -> None:
    built = variant("So400m/14x16", image=(28, 48), classes=7, position="rotary", heads=8, channels=1)
    assert isinstance(built, ViTConfig)
    assert (built.width, built.depth, built.mlp, built.heads) == (1152, 27, 4304, 8)
    assert (built.patch, built.grid, built.classes, built.position) == ((14, 16), (2, 3), 7, "rotary")


def test_sizes_and_stages_are_those_of_the_papers() -> None:
    assert {"mu", "Ti", "S", "M", "B", "L", "So400m", "H", "g", "G", "e"} <= set(SIZES)
    assert {name: 3 * sum(stages) + 2 for name, stages in RESNETS.items()} == {"R50": 50, "R101": 101, "R152": 152, "R200": 200}


def test_the_stem_only_hybrid_has_stride_32_despite_its_name() -> None:
    built = variant("R+Ti/16")
    assert isinstance(built, ViTConfig)
    assert (built.patch_stride, built.grid) == ((32, 32), (7, 7))


REJECTED = [
    ("b/16", {}, "no size is named 'b' in 'b/16'; did you mean 'B'?"),
    ("Q/16", {}, "no size is named 'Q' in 'Q/16'; there are mu, Ti, S"),
    ("vit-b", {}, "names read B/16, R50+B/16 or R50x1"),
    ("R50+B/8", {}, "no hybrid is named 'R50+B/8'; with this size there are R+B/16, R26+B/32, R50+B/16, R50+B/32"),
    ("R51x1", {}, "no model is named 'R51x1'; did you mean 'R50x1'?"),
    ("B/16", {"dept": 6}, "B/16 has no field 'dept'; did you mean 'depth'?"),
    ("B/15", {}, "image must be a multiple of patch 15x15, got image=224x224; try image=225x225"),
    ("B/16", {"image": (224, 230)}, "got image=224x230; try image=224x224"),
    ("B/16", {"image": 3}, "got image=3x3; try image=16x16"),
    ("R50+B/16", {"image": 230}, "image must be a multiple of the stride 16x16, got image=230x230; try image=224x224"),
    ("B/16", {"heads": 7}, "got width=768, heads=7; try width=770 or heads=6"),
    ("B/16", {"position": "rotary", "width": 90, "heads": 9}, "90/9 = 10; try width=72"),
    ("B/16", {"position": "rotary", "width": 60, "heads": 10}, "60/10 = 6; try heads=5"),
    ("B/16", {"position": "relative", "flexible": True}, "try flexible=False, or position='rotary'"),
    ("B/224", {"position": "relative", "pool": "gap"}, "needs at least two tokens, got one patch of 224x224"),
    ("B/16", {"position": "relative", "position_at": "every-layer"}, "adds no table to the tokens"),
    (
        "B/16",
        {"position": "sincos2d", "width": 18, "heads": 3},
        "needs a width that is a multiple of 4 and at least 8, got width=18; try width=24",
    ),
    ("B/16", {"position": "learnd1d"}, "position must be 'none', 'learned1d'"),
    ("B/16", {"pool": "cls", "class_token": False}, "try pool='gap'"),
    ("B/16", {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0; try dropout=0.1"),
    ("B/16", {"position": "sincos2d", "width": 4, "heads": 1}, "got width=4; try width=8"),
    ("B/16", {"position": "sincos2d-mae", "width": 27, "heads": 3}, "got width=27; try width=24"),
    ("B/16", {"image": 0}, "got image=0x0; try image=16x16"),
    ("R50x1", {"stages": (3, 0)}, "stages must be at least 1, got 3,0; try stages=3,1"),
    ("R50x1", {"norm_eps": -1.0}, "norm_eps must be above 0, got -1.0; try norm_eps=1e-6"),
    ("B/16", {"norm": "post", "final_norm": "pooled"}, "try final_norm='tokens'"),
    ("B/16", {"position_grid": 7}, "try position_grid=none"),
    ("B/16", {"window": 0}, "window must be at least 1, got 0; try window=1"),
    ("B/16", {"global_blocks": (3,)}, "got global_blocks=(3,) and no window; try window=14"),
    ("B/16", {"window": 7, "global_blocks": (3, 13)}, "global_blocks must be from 1 to 12, got 13; try global_blocks=12"),
    ("B/16", {"window": 7, "position": "relative"}, "window does not go with position='relative'"),
    ("B/16", {"relative_axes": True, "relative_bias": RelativeBiasConfig()}, "relative_axes does not go with relative_bias"),
    ("B/16", {"table_grid": 7, "position": "rotary"}, "table_grid goes with position='learned1d', got position='rotary'"),
    ("B/16", {"depth": 0}, "depth must be at least 1, got 0; try depth=1"),
    ("B/16", {"classes": -1}, "classes must be at least 0, got -1; try classes=0"),
    ("B/16", {"norm_eps": 0.0}, "norm_eps must be above 0"),
    ("B/16", {"depth": 2.5}, "depth must be a whole number, got 2.5"),
    ("R50x1", {"width": 40}, "width must be a multiple of the 32 groups of a norm, got 40; try 32"),
    ("R50x1", {"stages": ()}, "stages must name at least one stage"),
]


@pytest.mark.parametrize(("name", "changes", "sentence"), REJECTED, ids=[sentence[:30] for _, _, sentence in REJECTED])
def test_an_invalid_config_is_rejected_with_a_valid_value(name: str, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(VitrailError) as error:
        variant(name, **changes)
    assert sentence in str(error.value)


def test_values_are_stored_in_their_declared_type() -> None:
    built = variant("mu/16", image=[32, 48], layer_scale=1)
    assert isinstance(built, ViTConfig)
    assert (built.image, built.layer_scale) == ((32, 48), 1.0)
    assert isinstance(built.layer_scale, float)


@pytest.mark.parametrize(
    "advice",
    [
        {"position": "sincos2d", "width": 24, "heads": 3},
        {"position": "sincos2d", "width": 8, "heads": 1},
        {"image": 16},
        {"heads": 6},
        {"width": 770, "heads": 7},
        {"position": "rotary", "width": 72, "heads": 9},
        {"position": "rotary", "width": 60, "heads": 5},
    ],
)
def test_the_advised_value_works(advice: dict[str, object]) -> None:
    variant("B/16", **advice)


def test_the_last_block_of_each_quarter_is_global_unless_others_are_named() -> None:
    for depth, expected in ((12, [3, 6, 9, 12]), (24, [6, 12, 18, 24]), (6, [2, 3, 5, 6]), (3, [1, 2, 3]), (1, [1])):
        windows = small_config(depth=depth, window=7).windows
        assert [block for block, window in enumerate(windows, 1) if window is None] == expected
    assert small_config(window=7, global_blocks=(2,)).windows == (7, None, 7, 7)
    assert small_config(window=7, global_blocks=()).windows == (7,) * 4
    assert small_config().windows == (None,) * 4


def test_stride_and_channels_of_a_stem() -> None:
    assert (StemConfig().stride, StemConfig().channels) == (4, 64)
    assert (StemConfig(stages=(3, 4, 9)).stride, StemConfig(stages=(3, 4, 9)).channels) == (16, 1024)


def test_each_family_builds_its_own_model() -> None:
    assert isinstance(variant("R50x1"), ResNetConfig)
    assert type(build(small_config())).__name__ == "ViT"
    assert type(build(ResNetConfig(stages=(1,), width=32))).__name__ == "ResNet"


def test_build_takes_changes_with_a_name_only() -> None:
    assert build("mu/16", classes=3)(torch.zeros(1, 3, 224, 224)).shape == (1, 3)
    with pytest.raises(VitrailError, match=r"dataclasses.replace\(config, classes="):
        build(small_config(), classes=3)
