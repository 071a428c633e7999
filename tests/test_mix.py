"""MixUp and CutMix: the papers' distributions, and targets that agree with pixels."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dalirefurb import Mix
from dalirefurb.errors import ConfigurationError

CLASSES = 6
KINDS = [{"mixup": 0.2}, {"mixup": 1.0}, {"cutmix": 1.0}, {"cutmix": 0.3}, {"mixup": 0.8, "cutmix": 1.0}]


def unmixed(height=8, width=8):
    """Images of one value each, which is also their label."""
    images = torch.arange(CLASSES).float().reshape(-1, 1, 1, 1).expand(-1, 3, height, width)
    return images, torch.arange(CLASSES)


def shares(mix, steps, **size):
    """Return the partner's share in the targets of each step, shape (steps,)."""
    images, labels = (each[:2] for each in unmixed(**size))
    return np.array([float(mix(images, labels, step=step)[1][1, 0]) for step in range(steps)])


@pytest.mark.parametrize("alphas", KINDS, ids=str)
def test_targets_are_mixed_in_the_shares_of_the_pixels_and_sum_to_1(alphas):
    images, labels = unmixed(8, 12)
    before = images.clone()
    for step in range(100):
        mixed, targets = Mix(CLASSES, **alphas)(images, labels, step=step)
        assert (mixed.shape, mixed.dtype, targets.dtype) == (images.shape, images.dtype, torch.float32)
        assert torch.allclose(targets.sum(dim=1), torch.ones(CLASSES))
        # What the values are on average, pixels and targets must agree about.
        assert torch.allclose(mixed.mean(dim=(1, 2, 3)), targets @ torch.arange(6.0), atol=1e-5)
        assert (targets.count_nonzero(dim=1) <= 2).all()
    assert torch.equal(images, before)


# Few of alphas of the same kind: below 1, where most shares are near 0 and 1, at 1, and above.
@pytest.mark.parametrize(
    "alpha", [0.2, 0.5, 1.0, 8.0, *(pytest.param(a, marks=pytest.mark.weekly) for a in (0.4, 0.7, 2.0))]
)
def test_mixups_share_has_the_papers_distribution(alpha):
    found = shares(Mix(CLASSES, mixup=alpha, seed=1), 2000)
    assert stats.kstest(found, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_with_the_least_alpha_a_batch_has_its_own_images_or_the_others(kind):
    images, labels = unmixed()
    mix, own = Mix(CLASSES, **{kind: 5e-324}), []
    for step in range(40):
        mixed, targets = mix(images, labels, step=step)
        assert (targets == targets.round()).all() or kind == "cutmix"  # whose box may end where the image does
        assert targets.sum(dim=1).allclose(torch.ones(CLASSES))
        assert mixed.mean(dim=(1, 2, 3)).allclose(targets @ torch.arange(6.0), atol=1e-5)
        own.append(torch.equal(mixed, images))
    assert 8 < sum(own) < 32


def torchvisions_share(rng, alpha, height, width):
    """Draw the share of CutMix's box as torchvision's v2.CutMix does."""
    share = 1 - rng.beta(alpha, alpha)
    x, y, half = rng.integers(width), rng.integers(height), 0.5 * math.sqrt(share)
    half_width, half_height = int(half * width), int(half * height)
    columns = min(x + half_width, width) - max(x - half_width, 0)
    return columns * (min(y + half_height, height) - max(y - half_height, 0)) / (width * height)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_cutmixs_share_is_distributed_as_torchvisions(alpha):
    rng = np.random.default_rng(0)
    expected = [torchvisions_share(rng, alpha, 40, 56) for _ in range(4000)]
    found = shares(Mix(CLASSES, cutmix=alpha), 2000, height=40, width=56)
    assert stats.ks_2samp(found, expected).pvalue > 1e-3


def test_mixup_blends_with_the_image_before():
    images, labels = torch.rand(5, 3, 4, 4), torch.arange(5)
    mixed, targets = Mix(CLASSES, mixup=1.0)(images, labels, step=3)
    share = float(targets[1, 0])
    assert 0 < share < 1
    for row in range(5):
        assert torch.allclose(mixed[row], (1 - share) * images[row] + share * images[row - 1], atol=1e-6)


def test_cutmix_pastes_a_box_of_the_image_before_in_its_place():
    images, labels = torch.rand(5, 3, 20, 30), torch.arange(5)
    corners = set()
    for step in range(50):
        mixed, targets = Mix(CLASSES, cutmix=1.0)(images, labels, step=step)
        pasted = (mixed != images).any(dim=1)
        assert torch.equal(mixed, torch.where(pasted[:, None], images.roll(1, 0), images))
        assert (pasted == pasted[0]).all()
        places = pasted[0].nonzero()
        assert math.isclose(float(targets[1, 0]), len(places) / 600, abs_tol=1e-6)
        if len(places):
            height, width = (places.amax(dim=0) - places.amin(dim=0) + 1).tolist()
            assert len(places) == height * width
            corners.add(tuple(places.amin(dim=0).tolist()))
    assert len(corners) > 20


def test_with_both_each_step_tosses_a_coin():
    images, labels = unmixed()
    mix = Mix(CLASSES, mixup=1.0, cutmix=1.0)
    blended = [len(mix(images, labels, step=step)[0][1].unique()) == 1 for step in range(400)]
    # A box can be empty, or the whole image: then it looks blended, too.
    assert 0.4 < np.mean(blended) < 0.65


def test_a_step_mixes_alike_in_every_run_and_unlike_others():
    images, labels = unmixed()

    def mixed(seed, step):
        return Mix(CLASSES, mixup=1.0, seed=seed)(images, labels, step=step)[0]

    assert torch.equal(mixed(7, 1000), mixed(7, 1000))
    others = [mixed(seed, step)[1, 0, 0, 0].item() for seed in (0, 1, -1, 10**30) for step in range(5)]
    assert len(set(others)) == 20
    assert mixed(7, 1000)[1, 0, 0, 0].item() == pytest.approx(0.04215980, abs=1e-6)  # As ever.


def test_a_box_and_what_is_done_of_both_are_as_ever():
    images, labels = unmixed(8, 12)
    boxes = []
    for step in range(1000, 1004):
        pasted = (Mix(CLASSES, cutmix=1.0, seed=7)(images, labels, step=step)[0][1, 0] == 0).nonzero()
        boxes.append([*pasted.amin(dim=0).tolist(), *(pasted.amax(dim=0) + 1).tolist()])
    assert boxes == [[0, 0, 6, 10], [0, 0, 6, 6], [0, 0, 4, 7], [3, 0, 7, 3]]
    both = Mix(CLASSES, mixup=0.3, cutmix=1.0, seed=7)
    assert [len(both(images, labels, step=step)[0][1].unique()) for step in range(8)] == [2, 2, 2, 1, 1, 1, 2, 1]


@pytest.mark.parametrize("alphas", [{}, *KINDS], ids=str)
def test_a_batch_without_rows_has_none_when_it_is_mixed(alphas):
    """As a rank is served one that has no part of a batch."""
    mixed, targets = Mix(CLASSES, **alphas)(torch.zeros(0, 3, 8, 6), torch.zeros(0, dtype=torch.int64), step=1)
    assert (mixed.shape, targets.shape) == ((0, 3, 8, 6), (0, CLASSES))


def test_a_share_drawn_in_one_way_depends_on_nothing_else():
    alone, both = shares(Mix(CLASSES, mixup=1.0), 50), shares(Mix(CLASSES, mixup=1.0, cutmix=1.0), 50)
    assert 10 < np.isclose(alone, both).sum() < 45


def test_with_both_a_step_mixes_as_one_of_them_does_alone_by_its_own_alpha():
    images, labels = unmixed()
    alphas, alone = {"mixup": 0.2, "cutmix": 3.0}, []
    for step in range(20):
        both = Mix(CLASSES, **alphas)(images, labels, step=step)
        each = [Mix(CLASSES, **{name: alpha})(images, labels, step=step) for name, alpha in alphas.items()]
        alone.append([all(map(torch.equal, both, one)) for one in each])
    assert np.array(alone).any(axis=1).all()
    assert np.array(alone).any(axis=0).all()


def test_without_alphas_images_are_served_as_they_are():
    images, labels = unmixed()
    same, targets = Mix(CLASSES)(images, labels, step=0)
    assert same is images
    assert torch.equal(targets, torch.eye(CLASSES))
    assert Mix(CLASSES) == Mix(CLASSES, mixup=0, cutmix=0, label_smoothing=0, seed=0)


@pytest.mark.parametrize("alphas", [{}, *KINDS], ids=str)
def test_label_smoothing_is_that_of_the_loss(alphas):
    images, labels = unmixed()
    logits = torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(0))
    _, hard = Mix(CLASSES, **alphas)(images, labels, step=2)
    _, smooth = Mix(CLASSES, **alphas, label_smoothing=0.1)(images, labels, step=2)
    loss = torch.nn.functional.cross_entropy
    assert loss(logits, smooth).item() == pytest.approx(loss(logits, hard, label_smoothing=0.1).item())
    assert torch.allclose(smooth.sum(dim=1), torch.ones(CLASSES))
    _, smoothest = Mix(CLASSES, **alphas, label_smoothing=1)(images, labels, step=2)
    assert torch.allclose(smoothest, torch.full((CLASSES, CLASSES), 1 / CLASSES))


def test_targets_that_are_soft_already_are_mixed_alike():
    images, labels = unmixed()
    hard = Mix(CLASSES, mixup=1.0)(images, labels, step=5)
    soft = Mix(CLASSES, mixup=1.0)(images, torch.eye(CLASSES), step=5)
    assert all(map(torch.equal, hard, soft))


@pytest.mark.parametrize("alphas", [{"mixup": 1.0}, {"cutmix": 1.0}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_images_keep_their_type_and_their_memory_format(alphas, dtype):
    images = torch.rand(4, 3, 8, 8).to(dtype).to(memory_format=torch.channels_last)
    for step in range(4):
        mixed, _ = Mix(CLASSES, **alphas)(images, torch.arange(4), step=step)
        assert mixed.dtype == dtype
        assert mixed.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("alphas", KINDS, ids=str)
def test_a_gpu_mixes_as_a_cpu_does(alphas):
    images, labels = torch.rand(5, 3, 20, 30), torch.arange(5)
    for step in range(5):
        mixed, targets = Mix(CLASSES, **alphas)(images.cuda(), labels.cuda(), step=step)
        expected, expected_targets = Mix(CLASSES, **alphas)(images, labels, step=step)
        assert mixed.is_cuda
        assert targets.is_cuda
        assert torch.allclose(mixed.cpu(), expected, atol=1e-6)
        assert torch.allclose(targets.cpu(), expected_targets, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
def test_labels_of_any_integer_type_are_mixed_alike(dtype):
    images, labels = unmixed()
    mix = Mix(CLASSES, mixup=0.4)
    assert torch.equal(mix(images, labels.to(dtype), step=1)[1], mix(images, labels, step=1)[1])
    with pytest.raises(ConfigurationError, match=r"classes in 0\.\.5, got 7\.\.7: pass a larger num_classes"):
        mix(images, torch.full((CLASSES,), 7).to(dtype), step=1)


def test_a_batch_of_one_is_mixed_with_itself():
    images = torch.rand(1, 3, 8, 8)
    mixed, targets = Mix(CLASSES, mixup=1.0, cutmix=1.0)(images, torch.tensor([2]), step=0)
    assert torch.allclose(mixed, images)
    assert targets.tolist() == [[0, 0, 1, 0, 0, 0]]


IMAGES, LABELS = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: Mix(0), "num_classes must be an int of at least 1, got 0"),
        (lambda: Mix(9, mixup=-1), "mixup must be a number from 0 on, got -1"),
        (lambda: Mix(9, cutmix=math.nan), "cutmix must be a number from 0 on, got nan"),
        (lambda: Mix(9, cutmix=math.inf), "cutmix must be a number from 0 on, got inf"),
        (lambda: Mix(9, label_smoothing=1.1), "label_smoothing must be a number in 0..1, got 1.1"),
        (lambda: Mix(9, seed=0.5), "seed must be an int, got 0.5"),
        (lambda: Mix(9)(IMAGES, LABELS, step=-1), "step must be an int of at least 0, got -1"),
        (lambda: Mix(9)(IMAGES[0], LABELS, step=0), "images must be floating point of shape"),
        (lambda: Mix(9)(IMAGES.byte(), LABELS, step=0), "images must be floating point of shape"),
        (lambda: Mix(9, cutmix=1)(IMAGES[..., :0], LABELS, step=0), "images must be of a pixel at least, got '8 x 0'"),
        (lambda: Mix(9, cutmix=1)(IMAGES[:, :, :0], LABELS, step=0), "images must be of a pixel at least, got '0 x 8'"),
        (lambda: Mix(9)(IMAGES.numpy(), LABELS, step=0), "images must be a tensor, got 'ndarray': mix what"),
        (lambda: Mix(9)(IMAGES, [0, 1, 2, 3], step=0), "labels must be a tensor, got 'list': mix what"),
        (lambda: Mix(9)(IMAGES, LABELS[:3], step=0), "labels must be classes of shape (4,) or targets of shape (4, 9)"),
        (lambda: Mix(9)(IMAGES, torch.zeros(4, 8), step=0), "got torch.float32 of shape (4, 8)"),
        (lambda: Mix(9)(IMAGES, LABELS + 9, step=0), "labels must be classes in 0..8, got 9..9"),
        (lambda: Mix(9)(IMAGES, LABELS - 1, step=0), "classes in 0..8, got -1..-1: leave samples without a class out"),
        (lambda: Mix(9)(IMAGES, torch.arange(-1, 3), step=0), "got -1..2: leave samples without a class"),
        (lambda: Mix(9)((IMAGES, IMAGES), LABELS, step=0), "must be a tensor, got 'tuple': mix each view by itself"),
        (lambda: Mix(9)(IMAGES, LABELS[:, None].int(), step=0), "torch.int32 of shape (4, 1): pass labels.flatten()"),
        (lambda: Mix(9)(IMAGES, LABELS.float(), step=0), "torch.float32 of shape (4,): pass classes as integers"),
        (lambda: Mix(9)(IMAGES, LABELS * 1j, step=0), "torch.complex64 of shape (4,): pass classes as integers"),
        (lambda: Mix(9)(IMAGES, LABELS[:, None].expand(4, 8), step=0), "several labels of an image cannot be mixed so"),
        (lambda: Mix(9)(IMAGES, ({}, {}), step=0), "must be a tensor, got 'tuple': mix each view by itself"),
        (lambda: Mix(9)(IMAGES, [{}, {}], step=0), "of objects with boxes nothing is mixed, so leave Mix out there"),
        (lambda: Mix(9)(IMAGES, torch.eye(9)[LABELS] > 0, step=0), "torch.bool of shape (4, 9): pass labels.float()"),
    ],
)
def test_what_cannot_be_mixed_is_one_line(use, told):
    with pytest.raises(ConfigurationError) as raised:
        use()
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_masks_are_refused_by_name():
    with pytest.raises(ConfigurationError, match=r"these are masks of shape \(2, 8, 6\).*: leave Mix out"):
        Mix(CLASSES, cutmix=1.0)(torch.zeros(2, 3, 8, 6), torch.zeros(2, 8, 6, dtype=torch.int64), step=0)


def test_volumes_are_refused_by_name():
    with pytest.raises(
        ConfigurationError, match=r"of shape \(2, 1, 8, 8, 8\)': .*volumes are not mixed, so leave Mix out"
    ):
        Mix(CLASSES, mixup=1.0)(torch.zeros(2, 1, 8, 8, 8), torch.zeros(2, dtype=torch.int64), step=0)
