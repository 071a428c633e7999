"""timm's scripts take a TimmLoader for what `create_loader` returns, and serve the stream of a plain loop.

timm cannot be imported without torchvision, so its own `PrefetchLoader` and `Mixup` are compiled from its files.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from contextlib import suppress
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, Loader, Mix, Standard
from dalirefurb.engine.engine import Engine
from dalirefurb.errors import ConfigurationError
from dalirefurb.trainers.timm import TimmLoader
from tests.trainers.plain import (
    BATCHES,
    NUM_SAMPLES,
    RECIPE,
    SOURCE,
    assert_stream,
    endless,
    network,
    plain_stream,
    train_loader,
    val_loader,
)

EPOCHS = 2

OF_ITS_OWN = {"loader", "img_dtype", "random_erasing", "is_cuda", "is_npu", "stream"}
"""What a PrefetchLoader needs itself, and no script asks for."""


@pytest.fixture(scope="module")
def timm_data() -> Path:
    spec = importlib.util.find_spec("timm")  # Does not import it.
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed")
    return Path(spec.origin).parent / "data"


@pytest.fixture(scope="module")
def mixup_module(timm_data: Path) -> Any:
    spec = importlib.util.spec_from_file_location("timm_mixup", timm_data / "mixup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prefetch_loader(timm_data: Path, mixup_module: Any) -> Any:
    """timm's own class."""
    tree = ast.parse((timm_data / "loader.py").read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", "") in ("PrefetchLoader", "adapt_to_chs")]
    names: dict[str, Any] = {
        **dict.fromkeys(("IMAGENET_DEFAULT_MEAN", "IMAGENET_DEFAULT_STD"), (0.5, 0.5, 0.5)),
        **{each.__name__: each for each in (torch, partial, suppress, repeat, mixup_module.FastCollateMixup)},
        "np": np,
        "Tuple": tuple,
        "Optional": Optional,
    }
    exec(compile(tree, str(timm_data / "loader.py"), "exec"), names)
    return names["PrefetchLoader"]


def train_one_epoch(model: torch.nn.Module, loader: Any, *, stop: int | None = None, off: bool = False) -> list[Any]:
    """Ask of a loader what timm's function of this name asks; return what was trained on."""
    if off and loader.mixup_enabled:
        loader.mixup_enabled = False
    optimizer, trained, last = torch.optim.SGD(model.parameters(), 0.1), [], len(loader) - 1
    for batch_idx, (input, target) in enumerate(loader):
        trained.append((input.clone(), target.clone()))
        torch.nn.functional.cross_entropy(model(input), target).backward()
        optimizer.step()
        if batch_idx == stop:
            break
        assert batch_idx <= last
    return trained


@pytest.mark.parametrize("stop", range(EPOCHS * BATCHES))
def test_a_training_that_stops_anywhere_goes_on_as_a_plain_loop(stop: int) -> None:
    expected, trained, state = plain_stream(EPOCHS * BATCHES), [], {"epoch": 0}
    for stopped_at in (stop, None):
        with train_loader() as inner:
            loader = dataset_train = TimmLoader(inner, device="cpu")
            if stopped_at is None:
                loader.load_state_dict(state)
            for epoch in range(state["epoch"], EPOCHS):
                dataset_train.set_epoch(epoch)  # As train.py does, whether or not there are several processes.
                loader.sampler.set_epoch(epoch)
                last = stopped_at is not None and epoch == stopped_at // BATCHES
                trained += train_one_epoch(network(), loader, stop=stop % BATCHES if last else None)
                if last:
                    break
            state = json.loads(json.dumps(loader.state_dict()))
    assert_stream(expected, trained)


def test_validation_serves_each_image_once() -> None:
    with val_loader() as inner:
        loader = TimmLoader(inner, device="cpu")
        for _ in range(2):
            assert torch.cat([target for _, target in loader]).tolist() == list(range(NUM_SAMPLES))
        assert len(loader) == BATCHES


def test_all_that_timms_loader_has_is_there(prefetch_loader: Any) -> None:
    with train_loader() as inner:
        theirs, ours = prefetch_loader(inner, device=torch.device("cpu")), TimmLoader(inner, device="cpu")
        asked = {name for name in {*dir(type(theirs)), *vars(theirs)} if not name.startswith("_")} - OF_ITS_OWN
        assert {"mean", "std", "sampler", "dataset", "mixup_enabled", "batch_sampler", "device"} <= asked
        assert {name for name in asked if not hasattr(ours, name)} == set()
        output = inner.recipe.output
        same = prefetch_loader(inner, mean=output.mean, std=output.std, device=torch.device("cpu"))
        assert torch.equal(ours.mean, same.mean)
        assert torch.equal(ours.std, same.std)
        assert ours.dataset is SOURCE
        assert len(ours.dataset) == NUM_SAMPLES


def test_images_targets_and_their_levels_are_put_on_the_device() -> None:
    with train_loader() as inner:
        loader = TimmLoader(inner, device="meta")
        assert loader.device == torch.device("meta")
        assert all(each.is_meta for each in (*next(iter(loader)), loader.mean, loader.std))


def test_a_prefetch_loader_that_would_normalise_again_is_refused(prefetch_loader: Any) -> None:
    class Derived(prefetch_loader):  # type: ignore[misc]
        pass

    with train_loader() as inner:
        for kind in (prefetch_loader, Derived):
            loader = kind(TimmLoader(inner), device=torch.device("cpu"))
            message = (
                "must be normalised once, but a PrefetchLoader normalises what .*: give timm the TimmLoader itself"
            )
            with pytest.raises(ConfigurationError, match=message):
                next(iter(loader))


def test_batches_are_mixed_until_it_is_turned_off(mixup_module: Any) -> None:
    expected = plain_stream(2 * BATCHES)
    with train_loader() as inner:
        mixup = mixup_module.Mixup(mixup_alpha=0.4, num_classes=NUM_SAMPLES, label_smoothing=0.0)
        loader = TimmLoader(inner, mixup=mixup)
        assert loader.mixup_enabled
        np.random.seed(0)  # noqa: NPY002 - timm's
        mixed = train_one_epoch(network(), loader)
        plain = train_one_epoch(network(), loader, off=True)
        assert not loader.mixup_enabled
        assert not mixup.mixup_enabled
    assert not any(torch.equal(mine[0], theirs[0]) for mine, theirs in zip(mixed, expected, strict=False))
    assert all(((target > 0).sum(1) == 2).all() for _, target in mixed)
    assert_stream(expected[BATCHES:], [(images, target.argmax(1)) for images, target in plain])


def test_a_function_that_cannot_be_turned_off_is_left_out() -> None:
    with train_loader() as inner:
        loader = TimmLoader(inner, mixup=lambda images, targets: (images + 1, targets))
        expected = plain_stream(BATCHES)
        first = next(iter(loader))[0]
        assert torch.equal(first, expected[0][0] + 1)
        loader.mixup_enabled = False
        loader.set_epoch(0)
        assert_stream(expected, list(islice(endless(loader), BATCHES)))
        bare = TimmLoader(inner)
        bare.mixup_enabled = True
        assert not bare.mixup_enabled


MIX = Mix(num_classes=NUM_SAMPLES, mixup=0.4, cutmix=1.0, label_smoothing=0.1)


def mixed_stream(first: int, batches: int) -> list[Any]:
    """What a loop that counts its steps makes, from a step on."""
    steps = enumerate(plain_stream(first + batches))
    return [MIX(images, labels, step=step) for step, (images, labels) in steps][first:]


def assert_mixed(expected: list[Any], served: list[Any]) -> None:
    for (images, targets), (other_images, other_targets) in zip(expected, served, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(targets, other_targets)


@pytest.mark.parametrize("stop", range(1, EPOCHS * BATCHES))
def test_a_mix_goes_on_after_a_resume_as_in_a_loop_that_counts_its_steps(stop: int) -> None:
    with train_loader() as inner:
        loader = TimmLoader(inner, mixup=MIX)
        served = list(islice(endless(loader), stop))
        state = loader.state_dict()
    with train_loader() as inner:
        loader = TimmLoader(inner, mixup=MIX)
        epoch = iter(loader)  # The state is loaded before the pass serves anything.
        loader.load_state_dict(state)
        served += [*epoch, *islice(endless(loader), EPOCHS * BATCHES)]
    served = served[: EPOCHS * BATCHES]
    assert_mixed(mixed_stream(0, len(served)), served)


def test_a_mix_counts_no_step_for_a_batch_whose_way_was_interrupted() -> None:
    def interrupted(_: Engine) -> Any:
        raise KeyboardInterrupt

    with train_loader() as inner:
        epoch = iter(TimmLoader(inner, mixup=MIX))
        served = []
        for _ in range(BATCHES):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Engine, "take", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(epoch)
            served.append(next(epoch))
        assert next(epoch, None) is None
    assert_mixed(mixed_stream(0, BATCHES), served)


def test_a_mix_knows_the_epoch_that_was_set_and_goes_on_softening_when_it_is_off() -> None:
    with train_loader() as inner:
        loader = TimmLoader(inner, mixup=MIX)
        loader.set_epoch(1)
        assert_mixed(mixed_stream(BATCHES, BATCHES), [*loader])
        loader.mixup_enabled = False
        loader.set_epoch(1)
        plain = [*loader]
    expected = plain_stream(2 * BATCHES)[BATCHES:]
    assert_stream(expected, [(images, targets.argmax(1)) for images, targets in plain])
    assert plain[0][1].max() == pytest.approx(0.9 + 0.1 / NUM_SAMPLES)


def test_a_mapped_loader_is_served_with_its_position() -> None:
    expected = plain_stream(2 * BATCHES)
    with train_loader() as inner:
        loader = TimmLoader(inner.map(lambda batch: (-batch[0], batch[1])), device="cpu")
        assert loader.dataset is SOURCE
        loader.set_epoch(1)
        served = [next(iter(loader))]
        state = loader.state_dict()
    with train_loader(with_indices=True) as inner:
        loader = TimmLoader(inner.map(lambda batch: (-batch[0], batch[1])))
        loader.load_state_dict(state)
        served += [*loader]
    assert_stream(expected[BATCHES:], [(-images, labels) for images, labels in served])


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda batch: dict(zip(("images", "labels"), batch, strict=True)), "a dict"),
        (lambda batch: (*batch, 1), "a tuple of Tensor, Tensor, int"),
        (lambda batch: batch[0], "a Tensor"),
        (lambda batch: [batch[0], 1], "a list of Tensor, int"),
    ],
)
def test_a_mapped_loader_must_serve_images_and_targets(function: Any, kind: str) -> None:
    with train_loader() as inner, pytest.raises(ConfigurationError, match=f"serves {kind}: have the function"):
        next(iter(TimmLoader(inner.map(function))))


def test_what_cannot_mix_the_loaders_batches_is_refused_at_once(mixup_module: Any) -> None:
    arguments = {"mixup_alpha": 0.4, "num_classes": NUM_SAMPLES}
    with train_loader() as inner:
        with pytest.raises(
            ConfigurationError, match=r"FastCollateMixup mixes samples .* timm's Mixup with the same ar"
        ):
            TimmLoader(inner, mixup=mixup_module.FastCollateMixup(**arguments))
        with pytest.raises(ConfigurationError, match=r"mixup must be callable, got 0\.4"):
            TimmLoader(inner, mixup=0.4)  # type: ignore[arg-type]
        message = rf"in 0\.\.2, since mixup has num_classes=3, got 0\.\.13: pass num_classes={NUM_SAMPLES}, or more"
        for mixup in (mixup_module.Mixup(mixup_alpha=0.4, num_classes=3), Mix(num_classes=3, mixup=0.4)):
            with pytest.raises(ConfigurationError, match=message):
                TimmLoader(inner, mixup=mixup)
        with pytest.raises(ConfigurationError, match=r"in 0\.\.12, since mixup has num_classes=13, got 0\.\.13"):
            TimmLoader(inner, mixup=Mix(num_classes=NUM_SAMPLES - 1, mixup=0.4))
    negative = Arrays(np.zeros((NUM_SAMPLES, 32, 32, 3), np.uint8), np.arange(NUM_SAMPLES) - 1)
    inner = Loader(negative, RECIPE, Standard(NUM_SAMPLES, batch_size=4))
    with inner, pytest.raises(ConfigurationError, match=r"got -1\.\.12: number them from 0 on"):
        TimmLoader(inner, mixup=MIX)


def test_timms_mixup_of_an_odd_batch_is_explained(mixup_module: Any) -> None:
    with train_loader(batch_size=3) as inner:
        loader = TimmLoader(inner, mixup=mixup_module.Mixup(mixup_alpha=0.4, num_classes=NUM_SAMPLES))
        with pytest.raises(
            ConfigurationError, match=r"an even number of images in each batch, got 3: .* drop_last=Tru"
        ):
            next(iter(loader))


def test_what_is_no_loader_of_images_and_labels_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"loader must be a dalirefurb.Loader, got \[\]"):
        TimmLoader([])  # type: ignore[arg-type]
    with train_loader(with_indices=True) as loader, pytest.raises(ConfigurationError, match="with_indices must be Fal"):
        TimmLoader(loader)


def test_classes_of_unsigned_labels_are_counted_too() -> None:
    images, mix = np.zeros((NUM_SAMPLES, 32, 32, 3), np.uint8), Mix(num_classes=3, mixup=0.4)
    unsigned = Arrays(images, np.arange(NUM_SAMPLES, dtype=np.uint8))
    inner = Loader(unsigned, RECIPE, Standard(NUM_SAMPLES, batch_size=4))
    with inner, pytest.raises(ConfigurationError, match=r"in 0\.\.2, since mixup has num_classes=3, got 0\.\.13"):
        TimmLoader(inner, mixup=mix)


# Where timm is not installed, by classes of the same names.


class PrefetchLoader:
    """Normalises what it is served."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        yield from self.loader


class FastCollateMixup:
    """Mixes samples while it collates them."""

    num_classes = NUM_SAMPLES

    def __call__(self, batch: Any) -> Any:
        return batch


class Mixup:
    """Exchanges rows, while it is enabled, and makes soft targets of labels always."""

    def __init__(self, num_classes: int = NUM_SAMPLES) -> None:
        self.num_classes, self.mixup_enabled = num_classes, True

    def __call__(self, images: torch.Tensor, targets: torch.Tensor) -> Any:
        soft = torch.nn.functional.one_hot(targets, self.num_classes).float()
        return images.flip(0) if self.mixup_enabled else images, soft


def test_levels_are_those_of_the_recipe_times_255() -> None:
    recipe = RECIPE.with_output(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    with Loader(SOURCE, recipe, Standard(NUM_SAMPLES, batch_size=4)) as inner:
        loader = TimmLoader(inner)
        torch.testing.assert_close(loader.mean, torch.tensor([25.5, 51.0, 76.5]).view(1, 3, 1, 1))
        torch.testing.assert_close(loader.std, torch.tensor([102.0, 127.5, 153.0]).view(1, 3, 1, 1))


def test_what_normalises_once_more_is_refused_by_its_name() -> None:
    class Derived(PrefetchLoader):
        pass

    with train_loader() as inner:
        for kind in (PrefetchLoader, Derived):
            with pytest.raises(
                ConfigurationError, match=r"a PrefetchLoader normalises what .*: give timm the TimmLoader"
            ):
                next(iter(kind(TimmLoader(inner))))


def test_what_mixes_goes_on_making_soft_targets_when_it_is_turned_off() -> None:
    ((images, labels),) = plain_stream(1)
    with train_loader() as inner:
        loader = TimmLoader(inner, mixup=(mixup := Mixup()))
        for enabled in (True, False, True):
            loader.mixup_enabled = enabled
            assert loader.mixup_enabled is mixup.mixup_enabled is enabled
            loader.set_epoch(0)
            served, targets = next(iter(loader))
            assert torch.equal(served, images.flip(0) if enabled else images)
            assert torch.equal(targets, torch.nn.functional.one_hot(labels, NUM_SAMPLES).float())


def test_what_mixes_pairs_is_refused_an_odd_batch_and_what_mixes_samples_all() -> None:
    with train_loader(batch_size=3) as inner:
        with pytest.raises(
            ConfigurationError, match=r"an even number of images in each batch, got 3: .* drop_last=Tru"
        ):
            next(iter(TimmLoader(inner, mixup=Mixup())))
        with pytest.raises(ConfigurationError, match=r"FastCollateMixup mixes samples .* timm's Mixup with the same"):
            TimmLoader(inner, mixup=FastCollateMixup())
        with pytest.raises(
            ConfigurationError, match=r"in 0\.\.2, since mixup has num_classes=3, got 0\.\.13: pass num"
        ):
            TimmLoader(inner, mixup=Mixup(3))
        with pytest.raises(ConfigurationError, match=r"mixup must be callable, got 0\.4"):
            TimmLoader(inner, mixup=0.4)  # type: ignore[arg-type]


def test_what_timms_scripts_ask_a_loader_for_is_there() -> None:
    names = "mean std sampler dataset mixup_enabled batch_sampler device batch_size num_workers collate_fn drop_last"
    with train_loader() as inner:
        loader = TimmLoader(inner, device="cpu")
        assert [name for name in names.split() if not hasattr(loader, name)] == []
        assert (loader.device, loader.mixup_enabled, loader.dataset) == (torch.device("cpu"), False, SOURCE)


def test_timm_itself_is_not_imported() -> None:
    assert "timm" not in sys.modules
