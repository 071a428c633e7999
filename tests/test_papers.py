"""The page of the papers' figures: each row says what is known, and names what is there."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks.running import BENCHMARKS
from tests.test_docs import module
from tests.test_site import figures

ROOT = BENCHMARKS.parent
PAGE = (ROOT / "docs" / "papers.md").read_text()
VERDICT = re.compile(r"\*\*(reproduced|not reproduced|not possible here|not about this library)\*\*")
SHOWN_BY = {"reproduced": "::test_|/results/", "not possible here": "`python "}


@pytest.mark.parametrize("row", re.findall(r"^\| (?!.* here \|$).* \| (.+) \|$", PAGE, re.MULTILINE))
def test_a_row_says_what_is_known_and_what_shows_it(row):
    known = VERDICT.match(row)
    assert known or row == "*seen by number alone*"
    assert known is None or re.search(SHOWN_BY.get(known[1], ""), row)
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row):
        assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"python ((?:benchmarks|pipelines)/[^`#\n]*\w)", PAGE))))
def test_a_command_is_understood(command):
    script, *arguments = command.split()
    kept = import_module(Path(script).stem).EXPERIMENT if "benchmarks" in script else module(ROOT / script)
    kept.parser().parse_args(arguments)


def test_a_figure_in_a_sentence_is_that_of_its_file(tmp_path):
    made, page = figures(), tmp_path / "page.md"
    made.RESULTS = tmp_path
    claims = [{"name": "a / b", "figure": {"median": 1.644}}, {"name": "c", "figure": {"mean": -0.2, "half_width": 1}}]
    (tmp_path / "x.json").write_text(json.dumps({"results": [{}, {"claims": claims}]}))
    page.write_text('[9](../results/x.json "#1 a / b"), [](results/x.json "#1 c"), [9](x.json "a")')
    assert made.renewed(page) == page.read_text().replace("[9]", "[1.64]", 1).replace("[]", "[-0.20 ± 1.00]")
    page.write_text('[9](results/x.json "#1 d")')
    with pytest.raises(KeyError, match=r"x.json, case 1, has no figure 'd', but \['a / b', 'c'\]"):
        made.renewed(page)
