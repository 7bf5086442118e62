"""Mixup and CutMix equal torchvision's for the same lambda and rectangle, and lambda follows its distribution."""

import numpy as np
import pytest
import torch
from numpy import ndarray
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import beta, binomtest, ks_2samp, kstest  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from vitrail.augment.counter_rng import uniforms
from vitrail.augment.mixup import ATTEMPTS, MIX_SLOTS, Mix, apply_mix, draw_mix, soft_targets

N, CLASSES, SIZE = 6, 7, (19, 26)


def random_numbers(n: int) -> ndarray:
    return uniforms(2, 0, np.arange(n), MIX_SLOTS)


def draw(
    n: int,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    probability: float = 1.0,
    switch: float = 0.5,
    per_sample: bool = True,
) -> Mix:
    return draw_mix(random_numbers(n), mixup, cutmix, probability, switch, per_sample, SIZE)


def images(n: int = N) -> Tensor:
    return torch.randn(n, 3, *SIZE, generator=torch.Generator().manual_seed(0))


def labels() -> Tensor:
    return torch.tensor([3, 0, 6, 6, 1, 3])


def mix_images(mix: Mix) -> Tensor:
    return apply_mix(images(), images().roll(1, 0), mix)


@pytest.mark.parametrize("a", [0.02, 0.1, 0.2, 0.5, 0.8, 1.0, 1.3, 2.0, 5.0])
def test_lambda_has_the_beta_distribution(a: float) -> None:
    lam = draw(40_000, mixup=a).lam
    low = lam[lam < 0.5]  # the other half is its mirror image, but floats are too coarse close to 1
    assert kstest(low, lambda x: 2 * beta(a, a).cdf(x)).pvalue > 1e-3
    assert ks_2samp(lam[::2].round(9), (1 - lam[1::2]).round(9)).pvalue > 1e-3
    assert binomtest(len(low), 40_000).pvalue > 1e-3
    if a >= 0.2:
        assert kstest(lam, beta(a, a).cdf).pvalue > 1e-3


def test_lambda_is_defined_if_every_attempt_fails() -> None:
    u = np.full((3, MIX_SLOTS), 1e-9)  # numbers whose powers are close to 1: their sum is never accepted
    u[:, 0] = 0
    u[1, 4 + 2 * 5] = 0.9
    lam = draw_mix(u, 0.8, 0.0, 1.0, 0.5, True, SIZE).lam
    assert ATTEMPTS > 5
    assert_allclose(lam[[0, 2]], 0.5, atol=1e-6)
    assert lam[1] < 0.1  # the closest attempt


@pytest.mark.parity
def test_rectangle_and_lambda_are_drawn_as_by_torchvision() -> None:
    reference = reference_library("torchvision.transforms.v2").CutMix(alpha=0.7, num_classes=CLASSES)
    params = [reference.make_params([torch.zeros(1, 3, *SIZE)]) for _ in range(3000)]
    mix = draw(20_000, cutmix=0.7)
    assert ks_2samp(mix.lam, [p["lam_adjusted"] for p in params]).pvalue > 1e-3
    left, top, right, bottom = np.array([p["box"] for p in params]).T
    for ours, expected in zip(mix.boxes.T, (top, left, bottom - top, right - left), strict=True):
        assert ks_2samp(ours, expected).pvalue > 1e-3


def test_lambda_is_the_fraction_of_the_image_that_remains() -> None:
    mix = draw(2000, cutmix=1.0)
    own = apply_mix(torch.ones(2000, 1, *SIZE), torch.zeros(2000, 1, *SIZE), mix)
    assert_allclose(own.mean(dim=(1, 2, 3)).numpy(), mix.lam, atol=1e-6)
    assert (mix.boxes[:, :2] + mix.boxes[:, 2:] <= SIZE).all()
    assert (mix.boxes >= 0).all()


@pytest.mark.parity
@pytest.mark.parametrize("row", range(5))
def test_mixup_is_torchvisions(row: int) -> None:
    lam = float(draw(5, mixup=0.5).lam[row])
    mix = Mix(np.full(N, lam), np.zeros((N, 4), np.int64))
    classes = labels()
    params = {"labels": classes, "batch_size": N, "lam": lam}
    reference = reference_library("torchvision.transforms.v2").MixUp(num_classes=CLASSES)
    assert_close(mix_images(mix), reference.transform(images(), params), rtol=0, atol=0)
    soft = soft_targets(classes, classes.roll(1), torch.from_numpy(mix.lam), CLASSES)
    assert_close(soft, reference.transform(classes, params), rtol=0, atol=1e-7)


@pytest.mark.parity
@pytest.mark.parametrize("row", range(5))
def test_cutmix_is_torchvisions(row: int) -> None:
    one = draw(5, cutmix=1.0)
    top, left, high, wide = one.boxes[row].tolist()
    lam = float(one.lam[row])
    classes = labels()
    box = (left, top, left + wide, top + high)
    params = {"labels": classes, "batch_size": N, "box": box, "lam_adjusted": lam}
    reference = reference_library("torchvision.transforms.v2").CutMix(num_classes=CLASSES)
    mix = Mix(np.full(N, lam), np.tile(one.boxes[row], (N, 1)))
    assert_close(mix_images(mix), reference.transform(images(), params), rtol=0, atol=0)
    soft = soft_targets(classes, classes.roll(1), torch.from_numpy(mix.lam), CLASSES)
    assert_close(soft, reference.transform(classes, params), rtol=0, atol=1e-7)


def test_each_sample_is_mixed_as_if_it_were_alone() -> None:
    mix = draw(N, mixup=0.8, cutmix=1.0, probability=0.8)
    kinds = set(zip((mix.boxes[:, 2] > 0).tolist(), (mix.lam < 1).tolist(), strict=True))
    assert kinds == {(True, True), (False, True), (False, False)}  # CutMix, Mixup, neither
    partners = images().roll(1, 0)
    alone = [
        apply_mix(images()[i : i + 1].clone(), partners[i : i + 1].clone(), Mix(mix.lam[i : i + 1], mix.boxes[i : i + 1]))
        for i in range(N)
    ]
    assert_close(mix_images(mix), torch.cat(alone), rtol=0, atol=0)


def test_two_processes_with_half_a_batch_each_do_what_one_does_with_all() -> None:
    for per_sample in (True, False):
        mix = draw(N, mixup=0.8, cutmix=1.0, per_sample=per_sample)
        halves = []
        for part in (slice(0, 2), slice(2, N)):
            own, partners = images()[part].clone(), images()[np.arange(N)[part] - 1]
            halves.append(apply_mix(own, partners, Mix(mix.lam[part], mix.boxes[part])))
        assert_close(torch.cat(halves), mix_images(mix), rtol=0, atol=0)


def test_a_batch_has_one_lambda_unless_drawn_per_sample() -> None:
    batch, samples = (draw(50, mixup=0.8, cutmix=1.0, per_sample=per_sample) for per_sample in (False, True))
    assert len(np.unique(batch.lam)) == 1
    assert len(np.unique(batch.boxes, axis=0)) == 1
    assert len(np.unique(samples.lam)) > 40
    assert batch.lam[0] == samples.lam[0]
    assert_array_equal(draw_mix(random_numbers(50)[:1], 0.8, 1.0, 1.0, 0.5, False, SIZE).lam, batch.lam[:1])


def test_the_loss_with_soft_targets_is_the_weighted_sum_of_two_losses() -> None:
    mix = draw(N, mixup=0.8, cutmix=1.0)
    logits, lam = torch.randn(N, CLASSES), torch.from_numpy(mix.lam).float()
    own, other = labels(), labels().roll(1)
    soft = cross_entropy(logits, soft_targets(own, other, lam, CLASSES))
    weighted = lam * cross_entropy(logits, own, reduction="none") + (1 - lam) * cross_entropy(logits, other, reduction="none")
    assert_close(soft, weighted.mean())


def test_images_are_mixed_and_cut_with_their_probabilities() -> None:
    mix = draw(20_000, mixup=0.8, cutmix=1.0, probability=0.7, switch=0.3)
    changed, cut = mix.lam < 1, mix.boxes[:, 2] * mix.boxes[:, 3] > 0
    assert changed.mean() == pytest.approx(0.7, abs=0.02)  # some rectangles are smaller than a pixel
    assert cut.sum() / changed.sum() == pytest.approx(0.3, abs=0.02)
    for alone, is_cut in ((draw(500, mixup=0.8), False), (draw(500, cutmix=1.0), True)):
        assert ((alone.boxes[:, 2] * alone.boxes[:, 3] > 0).mean() > 0.9) == is_cut


@pytest.mark.parametrize("options", [{"mixup": 0.8, "probability": 0.0}, {"mixup": 0.0, "cutmix": 0.0}])
def test_without_mixing_the_images_are_unchanged(options: dict[str, float]) -> None:
    mix = draw_mix(
        random_numbers(N), options["mixup"], options.get("cutmix", 0.0), options.get("probability", 1.0), 0.5, True, SIZE
    )
    assert mix.is_identity
    assert_close(mix_images(mix), images(), rtol=0, atol=0)


def test_half_precision_is_mixed_as_exactly_as_it_can_be_stored() -> None:
    mix = draw(N, mixup=0.8, cutmix=1.0)
    half = images().bfloat16()
    ours = apply_mix(half.clone(), half.roll(1, 0), mix)
    exact = apply_mix(half.double(), half.double().roll(1, 0), mix)
    assert_close(ours.double(), exact, rtol=2**-7, atol=2**-7)


def test_partners_may_be_a_view_of_the_same_batch() -> None:
    for mix in (draw(N - 1, mixup=0.8), draw(N - 1, cutmix=1.0)):
        batch = images()
        expected = apply_mix(images()[1:].clone(), images()[:-1], mix)
        assert_close(apply_mix(batch[1:], batch[:-1], mix), expected, rtol=0, atol=0)


def test_an_empty_batch_stays_empty() -> None:
    for per_sample in (True, False):
        mix = draw(0, mixup=0.8, cutmix=1.0, per_sample=per_sample)
        assert apply_mix(images(0), torch.empty(0, 3, *SIZE), mix).shape == (0, 3, *SIZE)
