"""README and the site: links lead somewhere, every public name has a page, and figures are those of the results."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import dalirefurb
from dalirefurb import planning
from tests.pictures import write_folder

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]
PUBLIC = ("", "augment", "augment.published", "errors", "planning", "source", "store", "testing", "tuning")
TRAINERS = ("accelerate", "fabric", "lightning", "timm", "transformers")
NOT_FOR_USERS = {"how_to_install", "shortened", "warn", "Image"}


def text_of(page: Path) -> str:
    """Return a page's text, or that of a notebook's cells, without blocks of code."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell) for cell in cells)
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """Find the targets of links and pictures."""
    text = re.sub(r"`[^`\n]*`", lambda match: "" if "](" in match[0] else match[0], text)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings have, as GitHub and the site make them."""
    found: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#{1,6} (.*?) *$", text_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return made


def broken(page: Path) -> list[str]:
    """Return a page's links that lead nowhere; those to other machines are not followed."""
    wrong = []
    for target in links(text_of(page)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_headings_and_files(page: Path) -> None:
    assert not broken(page)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# A title\n\n[b](b.md#there) [c](c.md) ![d](d.png) [a](#a-title) [no](#no) `[e](e)`\n"
    )
    (tmp_path / "b.md").write_text("# B\n\n## There\n\n```text\n# No heading\n```\n")
    assert broken(tmp_path / "a.md") == ["c.md", "d.png", "#no"]


def documented() -> set[str]:
    """Return what the pages of the reference are made of: full names."""
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    return set(re.findall(r"^\.\. auto(?:class|function):: ([\w.]+)$", text, re.MULTILINE))


def defined(module: str) -> set[str]:
    """Return the public classes and functions of a module of `trainers`, whose packages need not be installed."""
    text = (ROOT / "dalirefurb" / "trainers" / f"{module}.py").read_text()
    return set(re.findall(r"^(?:class|def) ([A-Za-z]\w*)", text, re.MULTILINE)) - NOT_FOR_USERS


def test_every_public_name_has_a_page() -> None:
    pages = documented()
    named = {name.rpartition(".")[2] for name in pages}
    for package in PUBLIC:
        module = importlib.import_module(f"dalirefurb.{package}" if package else "dalirefurb")
        public = set(getattr(module, "__all__", ())) or {
            name
            for name, each in vars(module).items()
            if str(getattr(each, "__module__", "")).startswith(module.__name__)
        }
        assert {name for name in public if not name.startswith("_")} - NOT_FOR_USERS <= named, package
    for trainer in TRAINERS:
        assert {f"dalirefurb.trainers.{trainer}.{name}" for name in defined(trainer)} <= pages


def test_every_name_of_the_reference_is_there() -> None:
    for full_name in documented():
        module, _, name = full_name.rpartition(".")
        if module.startswith("dalirefurb.trainers."):
            assert name in defined(module.rpartition(".")[2]) | NOT_FOR_USERS, full_name
        else:
            assert hasattr(importlib.import_module(module), name), full_name


def test_the_reference_shows_the_methods_of_what_others_are_derived_from() -> None:
    """Those who write a stage, a source, a store or a planner of their own need them."""
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    classes = {
        name.rpartition(".")[2]: options
        for name, options in re.findall(r"^\.\. autoclass:: ([\w.]+)\n((?:   .*\n)*)", text, re.MULTILINE)
        if not name.startswith("dalirefurb.trainers.")
    }
    kinds = [each for name in documented() if isinstance(each := _object(name), type)]
    bases = {base.__name__ for kind in kinds for base in kind.__mro__[1:] if base in kinds}
    assert {"Planner", "Source", "Stage", "Store"} <= bases
    with_methods = {kind.__name__ for kind in kinds if any(map(_is_method, vars(kind).items()))}
    assert not [name for name in bases & with_methods if ":members:" not in classes[name]]


def _is_method(entry: tuple[str, object]) -> bool:
    name, value = entry
    return not name.startswith("_") and (callable(value) or isinstance(value, property))


def _object(full_name: str) -> object:
    module, _, name = full_name.rpartition(".")
    return None if module.startswith("dalirefurb.trainers.") else getattr(importlib.import_module(module), name)


def test_where_to_ask_is_where_the_package_says() -> None:
    """Until the package has addresses the page says so, and it never names others."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    addresses = toml.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    page = (DOCS / "faq.md").read_text().partition("## Where to ask")[2]
    told = [url for name, url in addresses.items() if re.search("issue|track|discuss", name, re.IGNORECASE)]
    assert all(url in page for url in told)
    assert ("has no public address yet" in page) == (not addresses)
    assert set(re.findall(r"https?://[^)\s]+", page)) <= {*addresses.values()}


def figures() -> ModuleType:
    """Import what makes the figures of the pages."""
    spec = importlib.util.spec_from_file_location("figures_of_docs", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_those_of_the_results() -> None:
    made = figures()
    stale = [str(page.relative_to(ROOT)) for page in made.pages() if made.renewed(page) != page.read_text()]
    assert not stale, f"python docs/figures.py writes the figures of {stale} anew"


def test_a_figure_that_is_not_of_the_results_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- figures headline -->\n9.9 times as fast\n<!-- end -->\n\nMore.\n")
    renewed = figures().renewed(page)
    assert "9.9" not in renewed
    assert "| stock DALI, as it comes |" in renewed
    assert renewed.endswith("<!-- end -->\n\nMore.\n")


def test_what_no_script_claims_of_standard_is_a_median_of_rounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two contenders whose medians are of different rounds: 4 times, 2 times and 3 times, not 2 times."""
    made = figures()
    speeds = {"standard": [1.0, 2.0, 3.0], "every sample a hit": [4.0, 4.0, 9.0]}
    case = {"order": "paper", "batch_size": 256, "claims": [], "images_per_s": {}, "slices": []}
    case["images_per_s"] = {name: {"median": sorted(own)[1]} for name, own in speeds.items()}
    case["slices"] = [
        {"contender": name, "round": number, "images": speed, "seconds": 1.0}
        for name, own in speeds.items()
        for number, speed in enumerate(own)
    ]
    monkeypatch.setattr(made, "read", lambda name: {"results": [case]})
    assert [row[3] for row in made._bars("throughput", "compiled")] == ["1.00", "3.00"]


@pytest.mark.parametrize(
    ("claim", "promise"),
    [
        ({"figure": {"median": 0.9}, "least": 0.95, "most": None}, "at least 0.95: **missed**"),
        ({"figure": {"median": 0.95}, "least": 0.95, "most": None}, "at least 0.95"),
        ({"figure": {"median": 1.2}, "least": None, "most": 1.15}, "at most 1.15: **missed**"),
        ({"figure": {"mean": 1.06}, "promise": "at most 0.7", "holds": False}, "at most 0.7: **missed**"),
        ({"figure": {"mean": 0.6}, "promise": "at most 0.7", "holds": True}, "at most 0.7"),
        ({"figure": {"median": 1.0}, "least": None, "most": None}, ""),
    ],
)
def test_what_is_missed_is_called_so(claim: dict[str, object], promise: str) -> None:
    assert figures()._promise(claim) == promise


def test_readme_is_short_and_tells_kernels_and_reuse_apart() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert not [line for line in lines if len(line) > 120 and "](http" not in line]
    assert "| images/s, compared with | nothing reused | reuse factor 3 |" in lines


def test_presets_and_planners_of_the_tables_are_exported() -> None:
    rows = re.findall(r"^\| `?[^|]*\|", (DOCS / "techniques.md").read_text() + (DOCS / "sources.md").read_text(), re.M)
    called = {name for row in rows for name in re.findall(r"`([A-Z]\w+)\(", row)}
    assert called
    assert called <= {*dalirefurb.__all__, *dir(planning)}


@pytest.mark.parametrize("page", ["index.md", "reference/index.md"])
def test_five_names_suffice_to_begin(page: str, tmp_path: Path) -> None:
    told = re.search(r"Five names suffice to begin: ([^;.]*)", (DOCS / page).read_text())
    assert told is not None
    source, preset, planner, store, loader = (getattr(dalirefurb, name) for name in re.findall(r"`(\w+)`", told[1]))
    images = source(write_folder(tmp_path, num_samples=20))
    with loader(images, preset(32), planner(len(images), batch_size=8, reuse_factor=2), store()) as begun:
        assert sum(len(labels) for _, labels in begun) == len(images)
