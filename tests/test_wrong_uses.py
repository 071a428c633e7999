"""What a newcomer gets wrong is answered in one line: what must hold, what was given, what helps."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, DALIGenericIterator
from torch.utils.data import DataLoader, TensorDataset

from dalirefurb import (
    Arrays,
    AutoAssist,
    BadSamplePolicy,
    Compressed,
    Concat,
    CudaPrefetch,
    DiskStore,
    Echo,
    Evaluate,
    FileList,
    HuggingFaceImages,
    ImageFolder,
    Kept,
    Loader,
    MemoryStore,
    Mix,
    Output,
    PartialSource,
    Prefetch,
    Rank,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    TarShards,
    TieredStore,
    TorchDataset,
    auto_augment,
    evaluate,
    rand_augment,
    simple,
    tune,
)
from dalirefurb.augment import CenterCrop, HorizontalFlip, VerticalFlip
from dalirefurb.augment.policies.auto_augment import POLICIES
from dalirefurb.augment.presets import simplified
from dalirefurb.calls import DATA_LOADER, INSTEAD, NEEDED, explains
from dalirefurb.errors import ConfigurationError, DalirefurbError
from dalirefurb.planning import Fresh
from dalirefurb.source import Subset
from dalirefurb.store import DeviceStore
from dalirefurb.targets import Boxes, CocoDetection, InstanceMasks, Keypoints, MaskFolder, Polygons, YoloFolder
from tests.augment.torchvision_stand_ins import T
from tests.pictures import write_folder

COUNT = 6
ARRAYS = Arrays(np.zeros((COUNT, 32, 32, 3), np.uint8), np.arange(COUNT))
VARIOUS = TorchDataset([(np.zeros((40, 30, 3), np.uint8), 0), (np.zeros((32, 32, 3), np.uint8), 1)])
RECIPE = simple(32, raw=True)
FLIPPED = Recipe([HorizontalFlip()], Output(32), split=0)
TALL = Arrays(np.zeros((COUNT, 48, 20, 3), np.uint8), np.arange(COUNT))
PLANNER = Refurbish(COUNT, batch_size=2, reuse_factor=2)
TENSORS: Any = TensorDataset(torch.zeros(COUNT, 3, 32, 32), torch.arange(COUNT))
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), num_samples=COUNT, classes=2)


def load(*parts: Any, **settings: Any) -> Loader:
    return Loader(*(parts or (ARRAYS, RECIPE, PLANNER, MemoryStore())), **settings)


def first(loader: Any) -> Any:
    return next(iter(loader))


def of_one_store() -> None:
    store = MemoryStore()
    with load(ARRAYS, RECIPE, PLANNER, store) as train, load(ARRAYS, RECIPE.at(2), PLANNER, store) as other:
        first(train)
        first(other)


def after_close() -> None:
    with load() as loader:
        pass
    first(loader)


def two_passes() -> None:
    with load() as loader:
        one = iter(loader)
        next(one)
        first(loader)
        next(one)


def sent_state(state: Any) -> None:
    with load() as loader:
        loader.load_state_dict(state)


# Of each the call, which is given a folder of photographs, and words of the message.
USES: list[tuple[Callable[[Path], Any], str]] = [
    # Stores
    (
        lambda _: MemoryStore("1MB"),
        "none can be given without a name, got 1: write such as MemoryStore(max_bytes='1MB')",
    ),  # type: ignore[misc]
    (
        lambda _: MemoryStore(max_bytes="lots"),
        "bytes as an int of at least 0, or text such as '16GB', '500MiB' or '60%', got",
    ),
    (lambda _: MemoryStore(max_bytes=0.6), "or '60%', got 0.6: write a number and one of %, B, KB"),  # type: ignore[arg-type]
    (lambda _: MemoryStore(max_bytes=-1), "got -1: write a number"),
    (lambda _: DeviceStore(device="cpu", max_bytes="lots"), "or '60%', got 'lots': write a number and one of %"),
    (lambda _: MemoryStore(max_byte="1GB"), "there is no argument 'max_byte': it is max_bytes here"),  # type: ignore[call-arg]
    (lambda _: DiskStore(None), "path must be the path of a file, got None: pass one to be made"),  # type: ignore[arg-type]
    (lambda _: DiskStore(), "DiskStore: path must be given: pass a file to be made, on a fast local disk"),  # type: ignore[call-arg]
    (
        lambda _: Kept(ARRAYS),
        "Kept: path must be given: pass a folder to be made, on a fast local disk; write such as K",
    ),  # type: ignore[call-arg]
    (lambda _: TieredStore(), "a TieredStore needs at least one tier, got none: pass memory='60%'"),
    (
        lambda _: Compressed("/cache"),
        "store must be the store that compressed samples are in, got '/cache': pass such",
    ),  # type: ignore[arg-type]
    (
        lambda _: of_one_store(),
        "close it first, or give each loader that differs (one to train, one to validate) a store",
    ),
    # Planners
    (lambda _: Refurbish(COUNT, 32, 3), "got 3: write such as Refurbish(6, batch_size=32, reuse_factor=3)"),  # type: ignore[call-arg, misc]
    (lambda _: Refurbish("x" * 99, 32, 3), f"write such as Refurbish('{'x' * 39}, batch_size=32, reuse_factor=3)"),  # type: ignore[call-arg, arg-type, misc]
    (lambda _: Refurbish(COUNT, batch_size=2), "Refurbish: reuse_factor must be given: how often each version is used"),  # type: ignore[call-arg]
    (
        lambda _: Refurbish(COUNT, batch_size=2, reuse_factor=2, shuffle=True),  # type: ignore[call-arg]
        "there is no argument 'shuffle': planners shuffle, each epoch anew; Evaluate serves in the source's order",
    ),
    (
        lambda _: Refurbish(COUNT, batch_size=2, reuse_factor=2, epochs=90),  # type: ignore[call-arg]
        "there is no argument 'epochs': a planner plans any number of epochs",
    ),
    (
        lambda path: Refurbish(str(path), batch_size=2, reuse_factor=2),
        "num_samples must be an int of at least 1, got '/",
    ),  # type: ignore[arg-type]
    (lambda _: Refurbish(TENSORS, batch_size=2, reuse_factor=2), "got <torch.utils.data.dataset.TensorDataset"),
    (lambda _: Refurbish(COUNT, batch_size=2, reuse_factor=2.5), "reuse_factor must be an int of at least 1, got 2.5"),  # type: ignore[arg-type]
    (lambda _: Refurbish(COUNT, batch_size=64, reuse_factor=2), "batch_size must be an int in 1..6, got 64"),
    (
        lambda _: Standard(COUNT, batch_size=2, reuse_factor=3),
        "the planner has it: Refurbish(len(source), batch_size=64, reuse_factor=3), not Standard, which reuses nothing",
    ),  # type: ignore[call-arg]
    (lambda _: Standard(COUNT, batch_size=4, shards=3), "shards must divide batch_size, got shards=3 and batch_size=4"),
    (lambda _: Evaluate(COUNT, batch_size=2, shuffle=False), "there is no argument 'shuffle': planners shuffle"),  # type: ignore[call-arg]
    (
        lambda _: Evaluate(COUNT, batch_size=2, drop_last=True),
        "all samples are served, got shards=1 and drop_last=True",
    ),
    (lambda _: Echo(COUNT, echoing_factor=2, buffer_size=3), "planner must be a planner, got 6: pass Standard(...) or"),  # type: ignore[arg-type]
    (lambda _: AutoAssist(COUNT, lag=20), "planner must be a planner, got 6: pass Standard(...) or Refurbish(...)"),  # type: ignore[arg-type]
    # Recipes
    (lambda _: rand_augment(num_ops=2), "rand_augment: there is no argument 'num_ops': it is layers here"),  # type: ignore[call-arg]
    (lambda _: rand_augment(magnitudes=9), "there is no argument 'magnitudes': it is magnitude here"),  # type: ignore[call-arg]
    (lambda _: rand_augment(224, 2, 9), "got 3: write such as rand_augment(224, layers=2, magnitude=9)"),  # type: ignore[misc]
    (
        lambda _: rand_augment(magnitude=40),
        "magnitude must be an int in 0..30, got 40: lower it, or raise num_magnitude_bins",
    ),
    (lambda _: rand_augment("224"), "size must be a positive integer, or two as (height, width), got '224'"),  # type: ignore[arg-type]
    (
        lambda _: rand_augment(mean=(124.0, 116.0, 104.0)),
        "pixels in 0 .. 1, got (124.0, 116.0, 104.0): divide mean and std by",
    ),
    (lambda _: rand_augment(mean=0.5, std=0), "mean and std must be three numbers each, std positive, got"),
    (
        lambda _: rand_augment(dtype=torch.float16),
        "dtype must be 'float32', 'float16' or 'bfloat16', got torch.float16",
    ),  # type: ignore[arg-type]
    (
        lambda _: rand_augment(split="normalize"),
        "there is no stage 'normalize' to split at; the stages are decode, random_",
    ),
    (lambda _: auto_augment(policy="mnist"), f"policy must be one of {', '.join(POLICIES)}, got 'mnist'"),  # type: ignore[arg-type]
    (lambda _: evaluate(224, resize_size=256), "there is no argument 'resize_size': it is resize here"),  # type: ignore[call-arg]
    (
        lambda _: simplified(simple()),
        "recipe must be one with operations, got ['decode', 'random_resized_crop', 'flip']: pass such as",
    ),
    (
        lambda _: Recipe([torch.nn.Identity()], Output(8), 0),
        "stages of dalirefurb.augment, got Identity(): make one of",
    ),  # type: ignore[list-item]
    (
        lambda _: Recipe.from_torchvision(),  # type: ignore[call-arg]
        "from_torchvision: transform must be given: write such as from_torchvision(transform=...)",
    ),
    (lambda _: Recipe(HorizontalFlip(), Output(8), 0), "stages must be a list of stages, got HorizontalFlip("),  # type: ignore[arg-type]
    (
        lambda _: Recipe.from_torchvision([], sizes=8),  # type: ignore[call-arg]
        "from_torchvision: there is no argument 'sizes': it is size here",
    ),
    (lambda _: Recipe([HorizontalFlip()], 8, 0), "output must be an Output, got 8: pass such as Output(224)"),  # type: ignore[arg-type]
    (
        lambda _: Recipe([HorizontalFlip(), VerticalFlip()], Output(8)),
        "stages are random, here flip, vertical_flip: pass the name of the stage where the final part begins, which is "
        "drawn afresh for every use, such as split='vertical_flip'",
    ),
    (
        lambda _: first(load(VARIOUS, RECIPE, Refurbish(2, batch_size=2, reuse_factor=2), MemoryStore())),
        "got 40 x 30; put a resize before it or change its margin; for arrays of various sizes take a recipe that "
        "begins with a resize, such as rand_augment(224).for_arrays()",
    ),
    # Sources
    (lambda path: ImageFolder([path]), "root must be the path of one folder of class folders, got ["),  # type: ignore[arg-type]
    (
        lambda path: ImageFolder(path / "class_0"),
        "must hold one folder per class, images in them (root/class/image.jpg)",
    ),
    (lambda path: ImageFolder(path / "absent"), "root must be a folder of readable folders, but"),
    (
        lambda path: ImageFolder(path, transform=None),
        "'transform': images are transformed by a recipe, the loader's second",
    ),  # type: ignore[call-arg]
    (
        lambda path: ImageFolder(path).samples,
        "no attribute 'samples': the path of sample i is source.name(i), its label",
    ),
    (
        lambda path: ImageFolder(path).imgs,
        "no attribute 'imgs': the path of sample i is source.name(i), its label source.",
    ),
    (
        lambda path: ImageFolder(path).targets,
        "no attribute 'targets': labels are in source.labels, one row for each sample",
    ),
    (
        lambda path: ImageFolder(path).transforms,
        "no attribute 'transforms': images are transformed by a recipe, the loader's second argument",
    ),
    (lambda path: ImageFolder(path)[COUNT], "an index must be in -6..5, got 6: the source has 6 samples"),
    (
        lambda path: ImageFolder(path)[0:2],
        "a source is indexed by one int at a time, got slice(0, 2, None): source.subset(",
    ),  # type: ignore[index]
    (
        lambda path: ImageFolder(path)[np.array([0, 1])],  # type: ignore[index]
        "a source is indexed by one int at a time, got array([0, 1]): source.subset(",
    ),
    (
        lambda _: FileList(["a.jpg"]),
        "FileList: labels must be given: pass a number for each sample; ImageFolder finds them",
    ),  # type: ignore[call-arg]
    (lambda _: FileList("a.jpg", [0]), "paths must be a sequence of paths, but is 'a.jpg': pass [path]"),
    (
        lambda _: FileList("a/*.jpg", [0]),
        "but is 'a/*.jpg': pass [path]; sorted(glob.glob(pattern)) lists files, FileLi",
    ),
    (
        lambda _: FileList(["a.jpg"], [1 + 2j]),
        "labels must be numbers, or one name each, but are complex128: what has",
    ),
    (lambda _: FileList.from_csv(5), "path must be a path, got 5: pass such as"),  # type: ignore[arg-type]
    (lambda path: FileList.from_csv(path / "a.csv", root=5), "root must be a path, got 5: pass such as"),  # type: ignore[arg-type]
    (lambda path: ImageFolder(path / "*"), "No such file or directory: pass the path of one folder, without a pattern"),
    (
        lambda path: ImageFolder(path) + "photos",
        "must be sources, but number 1 is a str: pass such as ImageFolder(path)",
    ),
    (
        lambda path: ARRAYS + ImageFolder(path),
        "must be encoded alike, but number 1 has True and the first one False: TorchDataset(source) is one with dec",
    ),
    (
        lambda path: ImageFolder(path) + FileList(["a.jpg"], [0]),
        "but number 1 has None and the first one ['class_0', 'class_1']: if all mean the same, assign the one's",
    ),
    (
        lambda _: FileList([0], [0]),
        "paths must be a sequence of paths, but are not (expected str, bytes or os.PathLike",
    ),  # type: ignore[list-item]
    (
        lambda _: Arrays(np.zeros((2, 8, 8, 3)), [0, 1]),
        "images must be uint8 from 0 to 255, or uint16, but are float64",
    ),
    (
        lambda _: Arrays(np.zeros((2, 3, 8, 8), np.uint8), [0, 1]),
        "but have (2, 3, 8, 8): pass images.transpose(0, 2, 3, 1)",
    ),
    (lambda path: TorchDataset(str(path)), "dataset must be a data set, got the path '/"),
    (
        lambda _: TorchDataset(TENSORS),
        "remove ToTensor and Normalize from the dataset's transform, the recipe does both",
    ),
    (
        lambda _: TorchDataset([("photo.jpg", 0)]),
        "but is str: return Path(path).read_bytes(), or pass all paths to FileList(paths, labels)",
    ),
    (
        lambda _: TorchDataset([(Path("photo.jpg"), 0)]),
        "but is PosixPath: return Path(path).read_bytes(), or pass all paths to FileList(paths, labels)",
    ),
    (
        lambda _: HuggingFaceImages({"train": 1}),
        "must be one split, but is all of ['train']: pass dataset['train'], say",
    ),
    (lambda _: TarShards("/absent/{0..3}.tar"), "every shard must be readable, but /absent/0.tar is not"),
    (
        lambda _: TarShards("/absent/*.tar"),
        "a pattern must stand for shards, but /absent/*.tar does for none: check its",
    ),
    (
        lambda path: TarShards(path),
        "is not (Is a directory): check its address; train-{000..099}.tar stands for a hundred, ",
    ),
    (
        lambda _: TarShards(5),  # type: ignore[arg-type]
        "urls must be paths or addresses, but are not ('int' object is not iterable): pass such as 'train-{000..099}.t",
    ),
    (lambda _: TarShards("a.tar", image=5), "image must be an extension, got 5: pass such as 'jpg'"),  # type: ignore[arg-type]
    (
        lambda _: TarShards("a.tar", label=None),  # type: ignore[arg-type]
        "label must be an extension, or a function from a key to a label, got None: pass such as 'cls'",
    ),
    (lambda _: Concat(5), "sources must be several in a list, got one by itself: pass [source, ...]"),  # type: ignore[arg-type]
    (
        lambda path: Subset(path, [0]),  # type: ignore[arg-type]
        "source must be a source, got PosixPath('/",
    ),
    (
        lambda _: Subset(ARRAYS, [0], 1),  # type: ignore[call-arg]
        "Subset: of its arguments 2 at most can be given without a name, got 3: leave the others out",
    ),
    (lambda _: ARRAYS.subset([[0], [1, 2]]), "a subset's indices must be convertible to one NumPy array, but are not"),
    (
        lambda _: Concat(ARRAYS, ARRAYS),
        "Concat: of its arguments 1 at most can be given without a name, got 2: pass them in a list: Concat([one,",
    ),  # type: ignore[call-arg]
    (
        lambda _: ARRAYS.subset([0.5]),
        "a subset's indices must be at least one integer, in one dimension, or a mask of 6",
    ),
    # Loaders
    (
        lambda _: Loader(),  # type: ignore[call-arg]
        "Loader: source and recipe and planner must be given: source: pass ImageFolder(path) for a folder, Arrays(",
    ),
    (
        lambda _: load(TENSORS, RECIPE, PLANNER),
        "source must be a source, got a TensorDataset: pass ImageFolder(path) for",
    ),
    (
        lambda _: load(ARRAYS, PLANNER, RECIPE),
        "recipe must be a recipe, got a Refurbish: pass rand_augment(224), or another",
    ),
    (
        lambda _: load("photos", RECIPE, PLANNER),
        "source must be a source, got a str: pass ImageFolder('photos') for a folder of class folders; the order is",
    ),
    (
        lambda path: load(path, RECIPE, PLANNER),
        "source must be a source, got a PosixPath: pass ImageFolder('/",
    ),
    (
        lambda _: load(["a.jpg", "b.jpg"], RECIPE, PLANNER),
        "got a list: pass ImageFolder(path) for a folder, Arrays(images, labels) for arrays, FileList(paths, labels)",
    ),
    (
        lambda _: load(DataLoader(TENSORS), RECIPE, PLANNER),
        "got a DataLoader: a loader takes a DataLoader's place: pass TorchDataset(dataset) for its dataset; the order",
    ),
    (
        lambda _: load(ARRAYS, RECIPE, PLANNER, "cpu"),
        "store must be a store, got a str: partial_device= and final_device= say where images are made, 'cpu' or 'gpu'",
    ),
    (
        lambda _: load(ARRAYS, RECIPE, PLANNER, "/cache"),
        "store must be a store, got a str: pass DiskStore('/cache') for",
    ),
    (
        lambda _: load(ARRAYS, RECIPE, PLANNER, None, "cpu"),
        "Loader: of its arguments 4 at most can be given without a name, got 5: write such as Loader(Arrays(6 images",
    ),
    (lambda _: load(ARRAYS, RECIPE, PLANNER, "16GB"), "for a file, MemoryStore(max_bytes='16GB') for an amount of mem"),
    (
        lambda _: load(ARRAYS, RECIPE, PLANNER, torch.device("cuda:0")),
        "store must be a store, got a device: partial_device= and final_device= say where images are made",
    ),
    (lambda _: load(prefetches=4), "Loader: there is no argument 'prefetches': it is prefetch here"),
    (lambda _: Mix(mixupp=1), "Mix: there is no argument 'mixupp': it is mixup here"),  # type: ignore[call-arg]
    (lambda _: Mix(10, alpha=1), "'alpha': mixup= and cutmix= are alphas, 0 for never"),  # type: ignore[call-arg]
    (lambda _: Mix(), "Mix: num_classes must be given: write such as Mix(num_classes=...)"),  # type: ignore[call-arg]
    (lambda _: load().map(), "map: function must be given: write such as map(function=...)"),  # type: ignore[call-arg]
    (lambda _: load().map(len, 1), "map: of its arguments 1 at most can be given without a name, got 2: leave the oth"),  # type: ignore[call-arg]
    (lambda _: load().as_dicts(image="x"), "as_dicts: there is no argument 'image': it is images here"),  # type: ignore[call-arg]
    (
        lambda _: tune(ARRAYS),
        "tune: recipe must be given: pass rand_augment(224), or another preset; write such as tune(A",
    ),  # type: ignore[call-arg]
    (lambda _: simplified(RECIPE, layer=1), "simplified: there is no argument 'layer': it is layers here"),  # type: ignore[call-arg]
    (lambda _: tune(ARRAYS, RECIPE, epoch=3), "tune: there is no argument 'epoch': it is epochs here"),  # type: ignore[call-arg]
    (lambda _: CudaPrefetch(load(), devices=0), "CudaPrefetch: there is no argument 'devices': it is device here"),  # type: ignore[call-arg]
    (
        lambda _: DALIGenericIterator(load(), ["data", "label"]),
        "a loader is no pipeline of DALI: loader.dali_iterator() is the DALIGenericIterator of its batches",
    ),
    (lambda _: DALIClassificationIterator([load().as_dicts()]), "is no pipeline of DALI: loader.dali_iterator() is th"),
    (
        lambda _: pickle.dumps(MemoryStore()),
        "a store cannot be pickled or copied, since its memory and locks belong to",
    ),
    (
        lambda _: copy.deepcopy(Compressed(MemoryStore())),
        "make it beside its loader, in each process, a DiskStore with",
    ),
    (
        lambda path: copy.copy(DiskStore(path / "s")),
        "DiskStore with a path of its own; trainers take the class, such as",
    ),
    (
        lambda _: pickle.dumps(TieredStore(memory="1MB")),
        "cannot be pickled or copied, since its memory and locks belong",
    ),
    (lambda _: load(ARRAYS, rand_augment, PLANNER), "recipe must be a recipe, got a function"),
    (
        lambda _: load(ARRAYS, T.Compose([T.CenterCrop(32)]), PLANNER),
        "recipe must be a recipe, got torchvision's Compose: pass Recipe.from_torchvision(transforms); the order",
    ),
    (
        lambda _: load(torch.utils.data.Subset(ARRAYS, [0, 1]), RECIPE, PLANNER),
        "source must be a source, got a Subset: pass source.subset(subset.indices); the order",
    ),
    (lambda _: load(ARRAYS, RECIPE, PLANNER, MemoryStore), "store must be a store, got the class MemoryStore itself"),
    (
        lambda _: load(ARRAYS, simple(32), PLANNER),
        "the recipe starts from encoded images, but the source gives arrays: take recipe.for_arrays(), or have",
    ),
    (
        lambda _: load(ARRAYS.subset([0]), RECIPE, PLANNER),
        "must have the same number of samples, got 6 and 1; pass len(so",
    ),
    (
        lambda _: load(TALL, FLIPPED, PLANNER),
        "must leave images of the output's size 32 x 32, but makes 48 x 20 of the source's 48 x 20; make the recipe",
    ),
    (
        lambda _: load(ARRAYS, FLIPPED, PLANNER, views=[Recipe([HorizontalFlip(name="other")], Output(16), split=0)]),
        "must leave images of the output's size 16 x 16, but makes 32 x 32 of the source's 32 x 32; make the recipe",
    ),
    (
        lambda path: load(ImageFolder(path), simple(32).at(0), PLANNER, None, final_device="gpu"),
        "both parts must be on one device, got partial_device='cpu' and final_device='gpu': pass 'gpu' for both, or a",
    ),
    (
        lambda _: load(device="cuda"),
        "no argument 'device': partial_device= and final_device= say where images are made",
    ),
    (lambda _: load(final_device="cuda"), "got ('cpu', 'cuda'): name 'cpu' or 'gpu', the CUDA device of this process"),
    (
        lambda _: load(partial_device="gpu"),
        "got ('gpu', 'cpu'): name 'cpu' or 'gpu', the CUDA device of this process, and",
    ),
    (
        lambda _: load(batch_size=2),
        "no argument 'batch_size': the planner has it: Refurbish(len(source), batch_size=64",
    ),
    (
        lambda _: load(prefetch=4),
        "prefetch must be a Prefetch, got an int: pass Prefetch(num_threads=4), or leave it out",
    ),
    (
        lambda _: load(bad_samples="replace"),
        "bad_samples must be a BadSamplePolicy, got a str: pass BadSamplePolicy('repl",
    ),
    (lambda _: load(kernels="torch"), "kernels must be one of ('numba', 'cuda', 'dali') or None, got 'torch'"),
    (
        lambda _: load(rank=3),
        "rank must be (rank, world_size), got 3: pass this process's number and how many there are",
    ),
    (lambda _: load(rank=Rank(2, 2)), "rank must be an int in 0..1, got 2: ranks count from 0"),
    (
        lambda _: Prefetch(num_workers=4),
        "Prefetch: there is no argument 'num_workers': threads take the place of processes: prefetch=Prefetch(num_thr",
    ),  # type: ignore[call-arg]
    (
        lambda _: Standard(6, batch_size=2, generator=torch.Generator()),
        "'generator': the planner's seed is that of order and augmentation alike: Refurbish(..., seed=0)",
    ),  # type: ignore[call-arg]
    (
        lambda _: Prefetch(prefetch_factor=4),  # type: ignore[call-arg]
        "there is no argument 'prefetch_factor': prefetch=Prefetch(look_ahead=6) of the loader has it",
    ),
    (
        lambda _: BadSamplePolicy("skip"),
        "on_bad_sample must be 'raise' or 'replace', got 'skip': 'replace' serves a good",
    ),  # type: ignore[arg-type]
    (
        lambda _: load(ARRAYS, evaluate(32, raw=True), Evaluate(COUNT, batch_size=4, pad=True)),
        "pad=True needs with_indices=True: rows that only fill a batch up are told by their index, -1",
    ),
    # Loaders in use
    (lambda _: next(load()), "'Loader' object is not an iterator"),  # type: ignore[call-overload]
    (lambda _: load()(), "'Loader' object is not callable"),  # type: ignore[operator]
    (lambda _: load()[0], "a loader serves batches in the planner's order, not by index, got 0: iterate it"),
    (lambda _: first(DataLoader(load())), "around a Loader there needs to be no DataLoader"),  # type: ignore[arg-type]
    (
        lambda _: pickle.dumps(load()),
        "a loader cannot be pickled or copied, since its threads and pipelines belong to one",
    ),
    (
        lambda _: copy.deepcopy(load()),
        "in the process that iterates, and pass on loader.state_dict() if it is to go on there",
    ),
    (lambda _: after_close(), "the loader is closed; make a new one"),
    (lambda _: two_passes(), "a loader serves one pass at a time, but iterating it again has begun another one"),
    (lambda _: load().set_epoch(-1), "epoch must be an int of at least 0, got -1: epochs are counted from 0"),
    (
        lambda _: load().observe(torch.zeros(2)),
        "losses are for AutoAssist, but the planner is Refurbish: pass AutoAssist(",
    ),
    (
        lambda _: sent_state({"model": {}}),
        "the state is not what state_dict returned: it must hold batch, epoch, fingerprin",
    ),
    (lambda _: sent_state("state.pt"), "the state is not what state_dict returned: it must be a mapping, got str"),
    (lambda _: load().as_dicts("x", "x"), "names must be different texts, got ('x', 'x')"),
]


def test_there_are_as_many_as_are_promised() -> None:
    assert len(USES) >= 60
    assert len({message for _, message in USES}) == len(USES)


@pytest.mark.parametrize(("use", "words"), USES, ids=[words[:40] for _, words in USES])
def test_a_wrong_use_is_answered_in_one_line(use: Callable[[Path], Any], words: str, folder: Path) -> None:
    with pytest.raises((DalirefurbError, TypeError, AttributeError, IndexError)) as refusal:
        use(folder)
    message = str(refusal.value)
    assert words in message
    assert "\n" not in message
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None or refusal.value.__cause__


FLAGS: dict[Callable[..., Any], str] = {
    load: "with_indices pin_memory",
    partial(PartialSource, ARRAYS, RECIPE, PLANNER): "with_indices dali_labels pad_last_batch",
    lambda **flags: load().dali_iterator(**flags): "auto_reset dali_labels",
    partial(TorchDataset, TENSORS): "thread_safe progress",
    partial(TarShards, "nowhere.tar"): "progress",
    partial(DeviceStore, device="cpu"): "pinned_host",
    partial(Boxes, [[(0, 0, 2, 2)]]): "normalized",
    partial(Keypoints, [[[(0, 0, 2)]]]): "pixel_centres normalized",
    partial(Polygons, [[[]]]): "normalized",
    partial(InstanceMasks, [[[]]]): "normalized",
    partial(CocoDetection, "nowhere", "nowhere.json"): "keypoints polygons masks crowds empty contiguous",
    partial(YoloFolder, "nowhere", "nowhere"): "polygons masks",
    Recipe.from_timm: "is_training no_aug normalize",
    partial(Recipe.from_torchvision, None): "raw",
}
"""What takes flags, and which."""


@pytest.mark.parametrize("given", ["off", 1, None])
def test_what_is_no_flag_is_not_taken_for_one(given: Any) -> None:
    for call, names in FLAGS.items():
        for name in names.split():
            with pytest.raises(ConfigurationError, match=f"^{name} must be True or False, got {given!r}: "):
                call(**{name: given})


def test_numpys_flags_are_flags() -> None:
    with load(with_indices=np.True_, pin_memory=np.False_) as loader:
        assert loader.with_indices is True
        assert len(first(loader)) == 3


def test_an_empty_path_is_not_the_working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    photos = ImageFolder(folder)
    calls: list[Callable[[Any], Any]] = [
        *(ImageFolder, DiskStore, DiskStore.purge, DiskStore.verify),
        *(lambda path: Kept(photos, path), lambda path: Kept(photos, [folder / "keep", path])),
        *(lambda path: MaskFolder(folder, path), lambda path: MaskFolder(path, folder)),
        *(lambda path: CocoDetection(path, "nowhere.json"), lambda path: YoloFolder(path, path)),
        *(lambda path: BadSamplePolicy("replace", quarantine=path), lambda path: TarShards(photos.name(0), index=path)),
        lambda path: tune(photos, {"paper": rand_augment(32)}, disk=path),
    ]
    there = sorted(folder.iterdir())
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"a path must be that of a file or a folder, got '': pass '\.'"):
            call("")
    assert sorted(folder.iterdir()) == there


@NO_GPU
def test_a_gpu_that_is_not_there_is_named() -> None:
    for settings in ({"final_device": "gpu"}, {"partial_device": "gpu", "final_device": "gpu"}):
        with pytest.raises(
            DalirefurbError, match="a part is placed on 'gpu', but torch finds no CUDA device; use partia"
        ):
            load(**settings)
    with pytest.raises(
        DalirefurbError, match="pin_memory=True needs a CUDA device, and torch finds none; pass pin_mem"
    ):
        load(pin_memory=True)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((ARRAYS, RECIPE, PLANNER), "Refurbish reuses partial images, but there is no store to keep them in"),
        (
            (ARRAYS, evaluate(32, raw=True), PLANNER, MemoryStore()),
            "with Refurbish something in the recipe should be random, .*: pass Evaluate(...) to validate, or",
        ),
        (
            (ARRAYS, FLIPPED, Evaluate(COUNT, batch_size=4)),
            "with Evaluate nothing should be random, .*, got flip in the recipe: pass evaluate(32)",
        ),
        (
            (
                ARRAYS,
                FLIPPED.at(1),
                SmartCache(COUNT, batch_size=2, num_cache_objects=4, replace_percent=0.5),
                MemoryStore(),
            ),
            "with SmartCache the partial part should not be random, .*, got flip in it: pass recipe.at(recipe.determ",
        ),
        (
            (ARRAYS, RECIPE, PLANNER, MemoryStore(max_bytes="4KB")),
            "3 slots need 9.22 KB and 4.00 KB are allowed by max_bytes",
        ),
    ],
)
def test_what_works_and_gains_nothing_is_warned_of(parts: Any, words: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with load(*parts) as loader:
            first(loader)
    ((told, where),) = [(str(each.message), each.filename) for each in caught if issubclass(each.category, UserWarning)]
    assert where == __file__ or "max_bytes" in words  # A store may be opened later.
    assert re.search(re.escape(words).replace(r"\.\*", ".*"), told)


def test_where_nothing_is_reused_nothing_has_to_be_random() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for planner in (Standard(COUNT, batch_size=2), Refurbish(COUNT, batch_size=2, reuse_factor=1)):
            load(ARRAYS, evaluate(32, raw=True), planner).close()


def test_what_draws_in_a_view_alone_is_warned_of() -> None:
    still = Recipe([CenterCrop(32)], Output(32), split=0)
    planner = Evaluate(COUNT, batch_size=2)
    with (
        pytest.warns(UserWarning, match="with Evaluate nothing should be random, .*, got flip in the recipe"),
        load(ARRAYS, still, planner, views=[FLIPPED]),
    ):
        pass


STILL = evaluate(32, raw=True)


@pytest.mark.parametrize(
    ("recipe", "planner", "told"),
    [
        (FLIPPED, AutoAssist(Evaluate(COUNT, batch_size=2), lag=99), ["with Evaluate nothing should be random"]),
        (STILL, AutoAssist(PLANNER, lag=99), ["with Refurbish something in the recipe should be random"]),
        (STILL, Fresh(PLANNER), []),
    ],
)
def test_what_a_planner_is_made_of_is_warned_of_but_no_control(recipe: Recipe, planner: Any, told: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(ARRAYS, recipe, planner, MemoryStore()).close()
    assert [str(each.message).partition(",")[0] for each in caught] == told


def test_a_source_stands_for_its_length(folder: Path) -> None:
    assert Refurbish(ImageFolder(folder), batch_size=2, reuse_factor=2) == PLANNER  # type: ignore[arg-type]
    assert Evaluate(ARRAYS, batch_size=2) == Evaluate(COUNT, batch_size=2)  # type: ignore[arg-type]


def test_threads_that_share_a_pass_are_told() -> None:
    with load() as loader:
        batches, waiting, release = iter(loader), threading.Event(), threading.Event()
        serve = batches._serve  # type: ignore[attr-defined]

        def slowly() -> Any:
            waiting.set()
            assert release.wait(600)
            return serve()

        batches._serve = slowly  # type: ignore[attr-defined]
        other = threading.Thread(target=next, args=(batches,))
        other.start()
        assert waiting.wait(600)
        with pytest.raises(
            DalirefurbError, match="a loader serves one thread, but another one waits for a batch of it"
        ):
            next(batches)
        release.set()
        other.join(600)


def test_a_thread_whose_batch_failed_waits_no_longer() -> None:
    with load() as loader:
        batches, found = iter(loader), []
        serve, fails = batches._serve, iter([True])  # type: ignore[attr-defined]

        def served() -> Any:
            if next(fails, False):
                raise RuntimeError("once")
            return serve()

        batches._serve = served  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="once"):
            next(batches)
        other = threading.Thread(target=lambda: found.append(next(batches)))
        other.start()
        other.join(600)
        assert len(found) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, "mixup= and cutmix= are alphas, 0 for never") for name in ("mixup_alpha", "cutmix_alpha")),
        *((name, "each batch is mixed; with both alphas each step tosses a coin") for name in ("prob", "switch_prob")),
        ("smoothing", "it is label_smoothing here"),
    ],
)
def test_timms_and_torchvisions_arguments_of_a_mix_are_told(name: str, told: str) -> None:
    with pytest.raises(TypeError, match=f"^Mix: there is no argument '{name}': {told}$"):
        Mix(10, **{name: 1})  # type: ignore[arg-type]


CALLS: list[Any] = [Refurbish, Standard, Evaluate, Echo, MemoryStore, ImageFolder, Arrays, Recipe, Output, rand_augment]


@pytest.mark.parametrize("name", sorted(inspect.signature(DataLoader.__init__).parameters.keys() - {"self"}))
def test_an_argument_of_a_data_loader_is_told_what_takes_its_place(name: str) -> None:
    """None is taken for another argument that is spelt alike."""
    told = DATA_LOADER[name]
    for call in [*CALLS, Loader]:
        if name not in inspect.signature(call).parameters:
            with pytest.raises(TypeError) as refusal:
                call(**{name: 1})
            assert str(refusal.value).endswith(f"no argument {name!r}: {told}")


ADVICE = {
    "dataset": "TorchDataset(dataset)",
    "batch_size": "batch_size=64",
    "shuffle": "Evaluate serves in the source's order",
    "sampler": "by the weights",
    "batch_sampler": "by batch_size and drop_last",
    "num_workers": "Prefetch(num_threads=4)",
    "pin_memory": "Loader(..., pin_memory=True)",
    "drop_last": "drop_last=True",
    "timeout": "time out",
    "worker_init_fn": "drawn by the planner's seed",
    "generator": "seed=0",
    "prefetch_factor": "look_ahead",
    "persistent_workers": "as long as the loader does",
    "pin_memory_device": "CudaPrefetch(loader)",
    "in_order": "in the planner's order",
    "num_replicas": "shards=S",
    "world_size": "rank=(rank, world_size)",
    "last_batch_policy": "Evaluate(..., pad=True) fills it up",
    "replicas": "Prefetch(replicas=...)",
    "quarantine": "BadSamplePolicy(quarantine=...)",
    "target_transform": "source.labels",
    "loader": "decoded by DALI",
    "is_valid_file": "FileList(paths, labels)",
    "antialias": "anti-aliasing",
    "resize_size": "resize",
    "size_limit": "max_bytes",
    "m": "magnitude",
    "n": "layers",
    "auto_augment_policy": "auto_augment(), trivial_augment()",
    "batches_per_group": "Prefetch(batches_per_group=...)",
    "collate_fn": "loader.map(function)",
    "crop_size": "it is size here",
    "device": "partial_device= and final_device=",
    "epochs": "for epoch in range(90)",
    "hflip_prob": "it is flip here",
    "labels": "FileList(paths, labels) takes them",
    "look_ahead": "Prefetch(look_ahead=...)",
    "max_pixels": "BadSamplePolicy(max_pixels=...)",
    "memory": "Prefetch(memory=...)",
    "memory_limit": "it is max_bytes here",
    "multiprocessing_context": "there are no worker processes",
    "num_epochs": "for epoch in range(90)",
    "num_ops": "it is layers here",
    "num_threads": "Prefetch(num_threads=...)",
    "on_bad_sample": "BadSamplePolicy(on_bad_sample=...)",
    "random_shuffle": "Evaluate serves in the source's order",
    "rank": "Loader(rank=(rank, world_size)) says which this is",
    "retry_s": "BadSamplePolicy(retry_s=...)",
    "reuse_factor": "not Standard, which reuses nothing",
    "seed": "Refurbish(..., seed=0)",
    "shard_id": "Loader(rank=(rank, world_size)) says which rank this is",
    "shards": "Refurbish(..., shards=8)",
    "transform": "the loader's second argument: rand_augment(224)",
    "transforms": "the loader's second argument: rand_augment(224)",
}
"""Words of what takes the place of an argument from elsewhere."""

HELPS = {
    "source": "ImageFolder(path) for a folder, Arrays(images, labels)",
    "recipe": "rand_augment(224)",
    "planner": "Refurbish(len(source), batch_size=64, reuse_factor=3)",
    "store": "MemoryStore(), or DiskStore(path)",
    "prefetch": "Prefetch(num_threads=4), or leave it out",
    "bad_samples": "BadSamplePolicy('replace')",
    "labels": "ImageFolder finds them in the names of folders",
    "reuse_factor": "2 or 3; Standard(...) reuses nothing",
    "batch_size": "rows of a batch, of all ranks together",
    "path": "on a fast local disk",
    "sources": "Concat([one, other])",
}
"""Words of what is to be passed for an argument."""


def test_each_advice_is_of_what_does_the_same() -> None:
    for known, expected in ((INSTEAD, ADVICE), (NEEDED, HELPS)):
        assert known.keys() == expected.keys()
        assert [name for name, words in expected.items() if words not in known[name]] == []


@pytest.mark.parametrize("name", ["source", "recipe", "planner", "store", "prefetch", "bad_samples"])
def test_a_loader_tells_of_each_part_what_to_pass(name: str) -> None:
    parts: dict[str, Any] = {"source": ARRAYS, "recipe": RECIPE, "planner": PLANNER, name: 1}
    with pytest.raises(ConfigurationError, match=f"^{name} must be a ") as refusal:
        Loader(**parts)
    assert f": {NEEDED[name]}; the order is Loader(source, recipe, planner, store)" in str(refusal.value)


MIX_ALPHAS, MIX_SOMETIMES = "mixup= and cutmix= are alphas, 0 for never", "with both alphas each step tosses a coin"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("alpha", MIX_ALPHAS),
        ("mixup_alpha", MIX_ALPHAS),
        ("cutmix_alpha", MIX_ALPHAS),
        ("prob", MIX_SOMETIMES),
        ("switch_prob", MIX_SOMETIMES),
        ("smoothing", "it is label_smoothing here"),
    ],
)
def test_mix_tells_what_takes_the_place_of_other_libraries_arguments(name: str, told: str) -> None:
    with pytest.raises(TypeError, match=f"there is no argument '{name}': .*{told}"):
        Mix(10, **{name: 0.5})


def test_a_sampler_is_led_to_a_subset_and_a_function_of_batches_to_map() -> None:
    assert "source.subset(indices), indices drawn by the weights" in DATA_LOADER["sampler"]
    assert "loader.map(function)" in DATA_LOADER["collate_fn"]
    assert "Mix" in DATA_LOADER["collate_fn"]


@pytest.mark.parametrize("name", ["samplers", "shard_id", "random_shuffle", "last_batch_policy", "num_threads"])
def test_no_name_is_taken_for_one_that_is_only_spelt_alike(name: str) -> None:
    with pytest.raises(TypeError, match=f"there is no argument '{name}': ") as refusal:
        Refurbish(COUNT, batch_size=2, reuse_factor=2, **{name: 1})  # type: ignore[arg-type]
    assert "it is " not in str(refusal.value)
    assert ("it takes " in str(refusal.value)) == (name not in INSTEAD)


@pytest.mark.parametrize("name", ["shards", "reuse_factor", "seed", "drop_last"])
def test_a_loader_leads_to_the_planner_that_has_an_argument(name: str) -> None:
    with pytest.raises(TypeError, match=rf"'{name}': the planner has it: Refurbish\(.*{name}="):
        load(**{name: 1})


def test_what_is_missing_is_not_told_of_what_is_not_there() -> None:
    with pytest.raises(TypeError, match="'path': it takes root"):
        ImageFolder(path="photos")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'labels': ImageFolder finds them in the names of folders, FileList"):
        ImageFolder("photos", labels=[0])  # type: ignore[call-arg]


def test_signatures_are_those_that_are_called() -> None:
    """What explains wrong arguments does not stand in the way of `help`."""
    assert [*inspect.signature(Refurbish).parameters][:3] == ["num_samples", "batch_size", "seed"]
    required = [name for name, each in inspect.signature(Loader).parameters.items() if each.default is each.empty]
    assert required == ["source", "recipe", "planner"]
    assert [*inspect.signature(MemoryStore).parameters] == ["max_bytes"]
    assert [*inspect.signature(rand_augment).parameters][:2] == ["size", "layers"]


@pytest.mark.parametrize("name", [name for name, told in INSTEAD.items() if told.startswith("it is ")])
def test_another_name_is_told_only_where_it_is_one(name: str) -> None:
    named = INSTEAD[name].split()[2]
    for call in (Refurbish, MemoryStore, ImageFolder, Prefetch, rand_augment, evaluate):
        if name not in (parameters := inspect.signature(call).parameters):
            with pytest.raises(TypeError, match=f"there is no argument '{name}'") as refusal:
                call(**{name: 1})
            assert (f"it is {named} here" in str(refusal.value)) == (named in parameters)


def test_a_functions_own_error_is_not_taken_for_a_wrong_call() -> None:
    given: list[Any] = []

    @explains
    def function(*, number: Any = 1) -> None:
        given.append(number)
        raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        function(number=np.int64(3))
    assert (given, type(given[0])) == ([3], int)
    with pytest.raises(
        TypeError, match=r"^function: of its arguments none can be given without a name, got 1: write suc"
    ):
        function(2)  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"^function: there is no argument 'numbers': it is number here$"):
        function(numbers=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^<lambda>: there is no argument 'x': it takes none$"):
        explains(lambda: None)(x=1)  # type: ignore[call-arg]


def test_an_error_from_within_is_not_taken_for_a_wrong_call() -> None:
    class Broken(Arrays):
        def __init__(self) -> None:
            raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        Broken()
    with pytest.raises(TypeError, match="abstract"):
        type(ARRAYS).__mro__[1]()  # Source
