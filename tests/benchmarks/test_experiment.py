import json
import socket
from dataclasses import dataclass
from pathlib import Path

import experiment
import pytest
from claims import Claim, Spread
from experiment import Experiment


@dataclass(frozen=True)
class Config:
    data: str = ""
    sizes: tuple[int, ...] = (1, 2)
    rounds: int = 5


def nothing(**settings):
    """Make an experiment whose results are its sizes."""
    made = {"measure": lambda config, options: {"sizes": config.sizes}, "data": None, **settings}
    return Experiment(config=Config(), quick=Config(sizes=(1,), rounds=1), name="nothing", **made)


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """The folder of results."""
    monkeypatch.setattr(experiment, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        ([], Config()),
        (["--quick"], Config(sizes=(1,), rounds=1)),
        (["--rounds", "7", "--of", "3", "4", "--other", "8"], Config(sizes=(3, 4), rounds=7)),
        (["--quick", "--rounds", "7"], Config(sizes=(1,), rounds=7)),
    ],
)
def test_an_option_replaces_the_field_that_it_names(arguments, config):
    options = {"--of": {"dest": "sizes", "nargs": "+", "type": int}, "--other": {"type": int}}
    assert nothing(options=options).read(arguments)[1] == config


def test_data_is_the_name_of_its_folder(folder):
    _, config = nothing(data=experiment.PHOTOS).read(["--data", str(folder / ".." / folder.name)])
    assert config.data == "pictures"


def test_results_name_no_host_and_no_folder(folder, tmp_path):
    out = tmp_path / "out.json"
    assert nothing(data=experiment.PHOTOS).main(["--data", str(folder), "--out", str(out)]) == 0
    for private in (socket.gethostname(), str(folder.parent), str(Path(experiment.__file__).parents[1])):
        assert private not in out.read_text()


def test_what_was_measured_is_written_where_results_are_or_where_it_is_asked_for(results, tmp_path):
    assert nothing().main([]) == 0
    assert nothing().main(["--quick", "--out", str(tmp_path / "folder" / "out.json")]) == 0
    whole, quick = (
        json.loads(path.read_text()) for path in (results / "nothing.json", tmp_path / "folder" / "out.json")
    )
    assert (whole["results"], quick["results"]) == ({"sizes": [1, 2]}, {"sizes": [1]})
    assert (whole["config"]["rounds"], quick["config"]["rounds"]) == (5, 1)
    assert whole["environment"].keys() == quick["environment"].keys() >= {"cpu", "cores", "commit"}


def test_quick_figures_are_gone_unless_they_are_asked_for(results):
    places = []
    assert nothing(measure=lambda config, options: places.append(options.out)).main(["--quick"]) == 0
    assert not places[0].parent.exists()
    assert not results.exists()


def test_who_does_not_keep_a_promise_ends_with_1_but_not_with_tiny_sizes():
    missed = Claim("it / the other", Spread(1.4, 1.5, 1.6), least=2.0)
    for broken in (nothing(holds=lambda results: False), nothing(measure=lambda *_: {"cases": [{"claims": [missed]}]})):
        assert broken.main([]) == 1
        assert broken.main(["--quick"]) == 0
