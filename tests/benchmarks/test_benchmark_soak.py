"""The soak says what grows, and can tell a leak."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import soak

from tests.benchmarks.running import quick_alone, run
from tests.placements import NEEDS_GPU, ON_GPU, Placement


@pytest.mark.weekly
def test_a_quick_soak_prints_and_writes_what_was_left_after_each_epoch_and_can_be_drawn(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    written, said = quick_alone("soak", out)
    soaked, sizes = written["results"]["soaked"], soak.EXPERIMENT.quick
    assert [each["technique"] for each in soaked] == list(sizes.names or ())
    for each in soaked:
        assert each["technique"] in said
        for kind in ("resident_mb", "threads", "descriptors"):
            assert len(each[kind]) == sizes.epochs
            assert min(each[kind]) > 0
    drawn = run("plot.py", "--results", out)
    assert drawn.returncode == 0, drawn.stderr
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_every_technique_is_soaked_by_default() -> None:
    names = {technique.name for technique in soak.techniques(soak.Config())}
    assert {"standard", "AutoAssist", "SmartCache", "frozen", soak.ON_DISK, soak.IN_PART, soak.ON_DEVICE} < names
    planners = {type(technique.planner).__name__ for technique in soak.techniques(soak.Config())}
    assert planners == {"Standard", "Refurbish", "Echo", "BatchEcho", "SmartCache", "AutoAssist", "Frozen"}


@pytest.mark.parametrize(
    ("resident", "threads", "device", "verdict"),
    [
        ([90.0, 100.0, 109.0, 91.0, 100.9], [9] * 5, [0.0] * 5, "flat"),
        ([90.0, 100.0, 100.0, 103.0, 100.0], [9] * 5, [0.0] * 5, "GROWS by more than 1%"),
        ([90.0, *[100.0] * 10, 150.0, *[100.9] * 10], [9] * 22, [0.0] * 22, "flat"),
        ([90.0, *[100.0] * 10, 101.0, *[101.1] * 10], [9] * 22, [0.0] * 22, "GROWS by more than 1%"),
        ([100.0] * 5, [8, 9, 9, 9, 10], [0.0] * 5, "GROWS by more than 1%"),
        ([100.0] * 5, [9] * 5, [300.0, 400.0, 400.0, 403.0, 404.0], "flat"),
        ([100.0] * 5, [9] * 5, [300.0, 400.0, 400.0, 404.0, 405.0], "GROWS by more than 1%"),
    ],
)
def test_what_grows_after_the_second_epoch_by_more_than_a_hundredth_is_a_leak(
    resident: list[float], threads: list[int], device: list[float], verdict: str
) -> None:
    soaked = [soak.Soaked("technique", resident, threads, [5] * len(resident), device)]
    assert soak.holds({"soaked": soaked}) == (verdict == "flat")
    assert soak.show(soaked).rstrip().endswith(verdict)


@pytest.mark.parametrize("placement", [pytest.param(each, marks=NEEDS_GPU, id="/".join(each)) for each in ON_GPU])
def test_fifty_epochs_on_a_gpu_leave_no_more_behind_than_two(placement: Placement) -> None:
    """DALI takes memory in blocks of up to 64 MiB: batches on their way, whose number varies, fit into one.

    All that are served take 300 MB.
    """
    names = ["standard", "reuse factor 2", soak.IN_PART]
    if importlib.util.find_spec("cupy") is not None:
        names.append(soak.ON_DEVICE)
    partial_device, final_device = placement
    config = soak.Config(
        epoch_batches=16,
        batch_size=8,
        size=64,
        names=tuple(names),
        partial_device=partial_device,
        final_device=final_device,
    )
    results = soak.measure(config)
    assert all(min(each.device_mb) > 0 for each in results["soaked"])
    assert soak.holds(results), soak.show(results["soaked"])
