"""The model against `benchmarks/results/tune.json`: what a loader reached on one machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dalirefurb.tuning.costs import Costs
from dalirefurb.tuning.model import Configuration, Machine, Workload, predict

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "tune.json"
CASES = {case["data"]: case for case in json.loads(RECORDED.read_text())["results"]["tuned"]}
PHOTOGRAPHS = CASES["photographs"]


def predicted(case, run, **machine):
    """What the model says of a run that was recorded, from the costs that were recorded before it."""
    costs = Costs.from_dict(case["costs"])
    split = next(each for each in costs.splits if (each.recipe, each.split) == (run["recipe"], run["split"]))
    configuration = Configuration(split, run["reuse_factor"], 1.0, run["tier"])
    workload = Workload(**case["workloads"][f"{run['step']:g}"])
    return predict(costs, replace(Machine(**case["machine"]), **machine), workload, configuration).images_per_s


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_model_says_what_it_said_when_this_was_recorded(case):
    assert len(case["runs"]) >= 90
    for run in case["runs"]:
        assert predicted(case, run) == pytest.approx(run["predicted"], rel=1e-9)


def test_it_is_within_one_percent_of_one_measurement():
    """Reuse factor 3 behind the crop, in memory, with a step as long as standard's batch."""
    (run,) = (
        each
        for each in PHOTOGRAPHS["runs"]
        if (each["recipe"], each["split"], each["reuse_factor"], each["tier"], each["step"])
        == ("paper", 2, 3, "memory", 1.0)
    )
    assert predicted(PHOTOGRAPHS, run) == pytest.approx(run["achieved"], rel=0.01)


@pytest.mark.parametrize("more", [{"cores": 4}, {"core_speed": 1.5}, {"page_cache_bytes": 1 << 60}])
def test_more_of_anything_is_not_slower_with_costs_that_were_measured(more):
    for run in PHOTOGRAPHS["runs"]:
        assert predicted(PHOTOGRAPHS, run, **more) >= predicted(PHOTOGRAPHS, run) * (1 - 1e-9)
