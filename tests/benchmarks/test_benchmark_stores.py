import mmap
import os
from collections import defaultdict
from contextlib import ExitStack
from itertools import islice
from statistics import median

import harness
import numpy as np
import page_cache
import pytest
import small_samples
import store_groups
import stores as script
import tier_hits
from PIL import Image
from sources import repeated

from dalirefurb import MemoryStore, rand_augment
from dalirefurb.planning import Frozen
from dalirefurb.store import DiskStore, StoreSpec, TieredStore
from dalirefurb.store.tiered import Tier
from tests.benchmarks.running import quick as run_quick

pytestmark = pytest.mark.usefixtures("traced_once")
SINGLE = ["MemoryStore", "DiskStore"]
HALF, WHOLE = "TieredStore, 50 % in memory", "TieredStore, 100 % in memory"
ALONE, PLAIN = "DiskStore alone", "plain reads, 2 threads"
CONTENDERS = {
    "warm": [*SINGLE, HALF, WHOLE, "Compressed"],
    "cold": [*SINGLE, ALONE, PLAIN, HALF],
    "refurbish": [*SINGLE, HALF],
}
SHAPE = (8, 8, 3)


@pytest.fixture(scope="module")
def quick(folder, tmp_path_factory):
    """The JSON of a quick run, and what was printed: weekly, as the contenders and the counts are tested one by one."""
    work = tmp_path_factory.mktemp("results")
    rng = np.random.default_rng(0)
    for label in range(10):
        mosaic = rng.integers(0, 256, (64, 128, 3), np.uint8)
        Image.fromarray(mosaic).save(work / f"test_{label}_name.webp", lossless=True)
    out = work / "stores.json"
    arguments = ["--rounds", 1, "--data", folder, "--small", work, "--folder", work]
    written, printed = run_quick("stores", out, *arguments)
    assert sorted(path.suffix for path in work.iterdir()) == [".json"] + 10 * [".webp"], "nothing is left behind"
    return written, printed


@pytest.fixture
def on_disk(tmp_path):
    """A folder of which bytes can be seen to be fetched from a disk."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(4096))
    page_cache.drop([probe])
    before = page_cache.Usage.now(0)
    probe.read_bytes()
    if not (page_cache.Usage.now(0) - before).disk_bytes:
        pytest.skip("the temporary folder is not on a disk")
    return tmp_path


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), np.uint8)


def filled(store, count):
    store.open(StoreSpec(SHAPE, count, {}))
    indices = np.arange(count)
    assert store.put(indices, np.zeros_like(indices), list(images(count))).all()
    return store


def groups(results):
    return {group["name"]: group for group in results["results"]["groups"]}


@pytest.mark.weekly
def test_every_store_takes_its_turn_in_every_group(quick):
    results, printed = quick
    for name, contenders in CONTENDERS.items():
        group = groups(results)[name]
        if "Compressed" in contenders:
            pytest.importorskip("zstandard")
        assert [each["name"] for each in group["served"]] == contenders
        assert sorted(each["contender"] for each in group["slices"]) == sorted(contenders)
        assert all(each in printed for each in contenders)


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("group", "upper", "lower", "least"),
    [
        ("warm", "DiskStore", ["MemoryStore"], 0.85),
        ("warm", HALF, ["DiskStore"], 0.95),
        ("warm", WHOLE, ["MemoryStore"], 0.95),
        ("cold", ALONE, [PLAIN], 0.7),
        ("cold", "DiskStore", [PLAIN, "MemoryStore"], 0.7),
        ("cold", HALF, ["DiskStore"], 0.95),
        ("refurbish", HALF, ["DiskStore"], 0.95),
    ],
)
def test_each_store_is_compared_with_what_limits_it(group, upper, lower, least, quick):
    results, _ = quick
    found = groups(results)[group]
    speeds = {each["contender"]: each["images"] / each["seconds"] for each in found["slices"]}
    names = {(PLAIN,): "the disk", (PLAIN, "MemoryStore"): "the disk or memory"}
    claims = {claim["name"]: claim for claim in found["claims"]}
    claim = claims[f"{upper} / {names.get(tuple(lower), lower[0])}"]
    assert claim["figure"]["median"] == pytest.approx(speeds[upper] / min(speeds[name] for name in lower))
    assert claim["least"] == least


@pytest.mark.weekly
def test_that_bytes_come_from_the_disk_is_a_claim_of_its_own(quick):
    results, _ = quick
    group = groups(results)["cold"]
    served = {each["name"]: each for each in group["served"]}
    claims = {claim["name"]: claim for claim in group["claims"]}
    for name in ("DiskStore", ALONE):
        (usage,) = served[name]["usages"]
        share = usage["disk_bytes"] / usage["images"] / (3 * 48**2)
        assert claims[f"{name}, from the disk"]["figure"]["median"] == pytest.approx(share)
        assert claims[f"{name}, from the disk"]["least"] == 0.95


@pytest.mark.weekly
def test_hits_of_tiers_are_shares(quick):
    results, _ = quick
    for group in groups(results).values():
        shares = {each["name"]: (each["fast_hits"], each["most_fast"]) for each in group["served"]}
        assert 0 < shares[HALF][0] < 1
        assert 0 < shares[HALF][1] < 1
        assert shares.get(WHOLE, (1, 1)) == (1, 1)
        assert all(shares[name] == (None, None) for name in SINGLE)


@pytest.mark.weekly
def test_small_samples_are_compared_in_every_step(quick):
    results, printed = quick
    small = results["results"]["small"]
    assert (small["num_samples"], small["sample_bytes"]) == (80, 3072)
    us = defaultdict(list)
    for step in small["steps"]:
        us[step["keeper"], step["name"]].append(step["us"])
    for claim in small["claims"]:
        step, files = claim["name"].split(": DiskStore / ")
        ratios = np.divide(us[files, step], us["DiskStore", step])
        assert len(ratios) == (3 if step == "cold" else 1)
        assert claim["figure"]["median"] == pytest.approx(np.median(ratios))
        assert claim["least"] == (20 if files == "an .npy file each" and step != "write" else None)
        assert claim["name"] in printed
    assert len(us) == 9
    assert len(small["claims"]) == 6


def test_data_that_cannot_be_used_is_refused(folder, tmp_path, capsys):
    for arguments, message in [
        (["--data", tmp_path], "--data must hold one folder of images per class"),
        (
            ["--data", folder, "--small", tmp_path],
            f"test_<label>_<name>.webp, but {tmp_path} holds none: pass another",
        ),
    ]:
        with pytest.raises(SystemExit) as ended:
            script.EXPERIMENT.main(["--quick", *map(str, arguments)])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_what_is_dropped_is_fetched_from_the_disk_again_and_nothing_else_is(on_disk):
    path = on_disk / "file"
    path.write_bytes(os.urandom(1 << 20))
    fetched = []
    for paths in ([], [path], []):
        page_cache.drop(paths)
        before = page_cache.Usage.now(0)
        path.read_bytes()
        fetched.append((page_cache.Usage.now(0) - before).disk_bytes)
    assert fetched[0] == fetched[2] == 0
    assert fetched[1] >= 1 << 20


def test_what_is_dropped_is_fetched_again_although_this_process_maps_it(on_disk):
    path = on_disk / "file"
    path.write_bytes(bytes(40 * 4096))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        assert pages[:] == bytes(40 * 4096)
        page_cache.drop([path])
        before = page_cache.Usage.now(0)
        assert pages[:] == bytes(40 * 4096)
        assert (page_cache.Usage.now(0) - before).disk_bytes >= 40 * np.prod(SHAPE)


def test_plain_reads_fetch_each_sample_of_the_plan_from_its_slot(on_disk):
    planner = Frozen(40, batch_size=10)
    path = on_disk / "store"
    filled(DiskStore(path), 40).close()
    reads = page_cache.PlainReads(path, planner, sample_bytes=int(np.prod(SHAPE)), threads=3)
    for _ in range(2):
        page_cache.drop([path])
        before = page_cache.Usage.now(0)
        with reads.turn() as contender:
            assert list(islice(contender.batches, len(planner))) == [10, 10, 10, 10]
        assert (page_cache.Usage.now(0) - before).disk_bytes >= 40 * np.prod(SHAPE)
    os.truncate(path, 70_000)
    message = r"store must have a slot for sample \d+, but ends before it"
    with reads.turn() as contender, pytest.raises(EOFError, match=message):
        next(contender.batches)


def test_a_store_must_lend_every_sample_of_the_plan():
    planner = Frozen(40, batch_size=10)
    with filled(MemoryStore(), 40) as store:
        reads = page_cache.StoreReads("the store", store, planner)
        with reads.turn() as contender:
            assert list(islice(contender.batches, 9)) == 9 * [10]
        store.evict(np.array([7]))
        with reads.turn() as contender, pytest.raises(LookupError, match="the store must hold every sample, but 1 are"):
            list(islice(contender.batches, len(planner)))


def test_usage_is_that_of_the_timed_batches():
    contender = harness.Contender("counting", harness.Placement(1, 1), 3, (size for size in range(1, 100)))
    metered = store_groups.Metered(contender)
    slices = harness.interleave([metered], rounds=2, timed_batches=4, most_rotations=0)
    # Three batches made ahead and two of the ramp come first.
    assert [usage.images for usage in metered.timed(slices)] == [6 + 7 + 8 + 9, 15 + 16 + 17 + 18]
    assert [each.images for each in slices] == [30, 66]


def test_each_turn_of_a_store_serves_an_epoch_and_begins_one_in_which_all_are_hits(folder):
    source, planner = repeated(folder, 12), Frozen(12, batch_size=4)
    with ExitStack() as stack:
        turns = store_groups.StoreTurns(stack, "", source, rand_augment(32), planner)
        turns.settle()
        states = [turns._state]
        for taken in (1, 3, 4):
            with turns.turn() as contender:
                for _ in range(taken):
                    next(contender.batches)
            states.append(turns._state)
    assert [(state["epoch"], state["batch"]) for state in states] == [(2, 0), (4, 0), (6, 0), (9, 0)]


@pytest.mark.weekly
def test_memory_serves_the_most_hits_it_could_and_again_after_a_restart(quick):
    results, printed = quick
    hits = results["results"]["hits"]
    assert len(hits["counted"]) == 4
    for each in hits["counted"]:
        assert each["name"] in printed
        for of_most in each["of_most"].values():
            assert len(of_most) == 4
            assert all(0.95 < share <= 1 for share in of_most)
    assert len(hits["claims"]) == 8
    assert all(claim["least"] == 0.98 for claim in hits["claims"])


def test_hits_of_single_pixels_are_counted_in_each_tier():
    planner = Frozen(60, batch_size=7)
    with TieredStore.of(Tier(MemoryStore(), 20), Tier(MemoryStore())) as store:
        store.open(StoreSpec((1, 1, 1), 60, {}))
        counted = tier_hits.count_hits(planner, store, range(3))
    assert counted.tolist() == [[0, 0], [20, 40], [20, 40]]
    assert tier_hits.most_hits(planner, 20, range(3)).tolist() == counted[:, 0].tolist()


@pytest.mark.parametrize("keeper", small_samples.KEEPERS)
def test_small_samples_are_all_written_and_all_read(keeper, on_disk):
    samples = np.random.default_rng(0).integers(0, 256, (30, 32, 32, 3), np.uint8)
    small = small_samples.compare_small(samples, on_disk, rounds=2)
    own = [step for step in small["steps"] if step["keeper"] == keeper]
    steps = ["write", "warm", "cold", "cold", "cold"]
    assert [(step["name"], step["round"]) for step in own] == [(name, number) for number in range(2) for name in steps]
    assert median(step["from_disk"] for step in own if step["name"] == "cold") >= 1
    assert all(step["from_disk"] == 0 for step in own if step["name"] == "warm")


@pytest.mark.parametrize("keeper", [small_samples.FileEach, small_samples.ArrayEach])
def test_a_sample_in_a_file_of_its_own_is_that_sample_and_every_one_is_read(keeper, tmp_path):
    samples = images(30)
    files = keeper(tmp_path, samples)
    files.write(samples)
    paths = sorted(tmp_path.iterdir())
    np.testing.assert_array_equal([files._load(path) for path in paths], samples)
    files.read()
    paths[17].unlink()
    with pytest.raises(FileNotFoundError):
        files.read()
