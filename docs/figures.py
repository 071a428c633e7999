"""Figures of README and docs: what is between `<!-- figures NAME -->` and `<!-- end -->`, made of the results' JSON.

    python docs/figures.py    writes all of them anew

`headline`, `against`, `assistants`, `throughput`, `kernels`, `tuned` and `accuracy` are tables of their own, `sources`
lists every file with its machine, and `claims FILE [CASE]` is a table of what a script claims: of the case with this
number or name. In a sentence `[2.5](results/FILE.json "CLAIM")` is the figure of a claim, or of what a case of accuracy
differs by; `"#1 CLAIM"` is one of case 1.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(?<=^<!-- figures )(.*?) -->\n.*?(?=^<!-- end -->)", re.MULTILINE | re.DOTALL)
IN_SENTENCE = re.compile(r'\[[^][\n]*\](?=\(\S*results/(\w+)\.json "(?:#(\d+) )?([^"\n]+)"\))')


def read(name: str) -> dict[str, Any]:
    """Return what a script has written."""
    run: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return run


def pages() -> list[Path]:
    """Return the pages that may have figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(page: Path) -> str:
    """Return a page with its figures as the files have them now."""
    text = page.read_text()
    marks = re.findall("^<!-- (figures|end)", text, re.MULTILINE)
    assert marks == ["figures", "end"] * text.count("<!-- figures "), f"{page} has a mark without its other one"
    to_results, to_pages = (os.path.relpath(folder, page.parent) for folder in (RESULTS, ROOT / "docs"))

    def block(match: re.Match[str]) -> str:
        kind, *arguments = match[1].split()
        made = BLOCKS[kind](*arguments).replace("](results/", f"]({to_results}/").replace("](docs/", f"]({to_pages}/")
        return f"{match[1]} -->\n{made}\n"

    return IN_SENTENCE.sub(lambda match: f"[{figure(match[1], match[2] or '0', match[3])}]", BLOCK.sub(block, text))


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Write a figure with three digits, or with whole thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.2f}"


def where(name: str, times: str = "") -> str:
    """Say on what a file's figures were taken, how often, and when."""
    run = read(name)
    machine, config = run["environment"], run["config"]
    cpu = machine["cpu"].replace("(R)", "").replace(" Processor", "")
    if "rounds" in config and not times:
        times = f"{config['rounds']} rounds, "
    file = f"[{name}.json](results/{name}.json)"
    warning = ",\nby the first harness, which counts some batches that were made ahead" if _harness(name) == 1 else ""
    return f"{times}{machine['cores']} cores of {_article(cpu)} {cpu}, {machine['date']}, {file}{warning}"


def _harness(name: str) -> int | None:
    """Return which version of `benchmarks/harness.py` took turns; None if nobody did."""
    run = read(name)
    version: int = run["environment"].get("harness", 1)
    return version if '"slices"' in json.dumps(run) else None


def _article(word: str) -> str:
    return "an" if word[0] in "AEIOU" else "a"


def claims(name: str, case: str = "0") -> str:
    """Write a table of what a file claims, with what is promised of it."""
    rows = [[each["name"], *_spread(each), _promise(each)] for each in _case(name, case)["claims"]]
    return f"{table(['figure', 'median', 'quartiles', 'promised'], rows)}\n\n{where(name)}."


def figure(name: str, case: str, title: str) -> str:
    """Write one figure of a file: the median of a claim, or the mean of a difference and its interval."""
    found = {each["case"]: each["difference"] for each in _case(name, case).get("accuracy", ())}
    found |= {each["name"]: each["figure"] for each in _case(name, case)["claims"]}
    if title not in found:
        raise KeyError(f"{name}.json, case {case}, has no figure {title!r}, but {sorted(found)}")
    chosen = found[title]
    if "median" in chosen:
        return number(chosen["median"])
    if "half_width" in chosen:
        return f"{number(chosen['mean'])} ± {number(chosen['half_width'])}"
    return f"{chosen['mean']:+.2f} ({chosen['lower']:+.2f} to {chosen['upper']:+.2f})"


def _case(name: str, case: str) -> dict[str, Any]:
    results = read(name)["results"]
    cases = results.get("groups", [results]) if isinstance(results, Mapping) else results
    chosen: dict[str, Any] = cases[int(case)] if case.isdigit() else results[case]
    return chosen


def _spread(claim: Mapping[str, Any]) -> tuple[str, str]:
    figure = claim["figure"]
    if "mean" in figure and "half_width" not in figure:
        return number(figure["mean"]), f"{number(figure['lower'])} to {number(figure['upper'])} (mean, 95 %)"
    if "mean" in figure:
        return number(figure["mean"]), f"± {number(figure['half_width'])} (mean, 95 %)"
    of_one = figure["lower"] is None  # Of fewer figures than have quartiles.
    return number(figure["median"]), "" if of_one else f"{number(figure['lower'])} to {number(figure['upper'])}"


def _promise(claim: Mapping[str, Any]) -> str:
    least, most, median = claim.get("least"), claim.get("most"), claim["figure"].get("median")
    if (bound := claim.get("bound")) is not None and least is None:
        return f"cannot exceed {bound:.3g}"
    if least is not None:
        return f"at least {least:g}" + ("" if median >= least else ": **missed**")
    if most is not None:
        return f"at most {most:g}" + ("" if median <= most else ": **missed**")
    return str(claim.get("promise", "")) + ("" if claim.get("holds", True) else ": **missed**")


RIVALS = {
    "stock DALI, nearest interpolation": "stock DALI, nearest",
    "stock DALI, as it comes": "stock DALI, default",
    "the better PyTorch `DataLoader`": "the better DataLoader",
}


def _ratio(upper: str, lower: str) -> float:
    for claim in read("against")["results"]["claims"]:
        if claim["name"] == f"{upper} / {lower}":
            return float(claim["figure"]["median"])
    raise KeyError(f"{upper} / {lower}")


def headline() -> str:
    """Write the README's figure: what kernels do, and what reuse does on top of it."""
    alone = [_ratio("standard", rival) for rival in RIVALS.values()]
    both = [_ratio("reuse factor 3, paper", rival) for rival in RIVALS.values()]
    rows = [[name, f"{one:.1f} times", f"{two:.1f} times"] for name, one, two in zip(RIVALS, alone, both, strict=True)]
    kept = {each["name"]: each["figure"]["median"] for each in read("keep")["results"]["claims"]}
    rival = next(iter(RIVALS.values()))
    one, two = (kept[f"as they are: {ours} / {rival}"] for ours in ("kept in memory", "kept, reuse factor 3"))
    lighter = [kept[f"4:2:0: {ours} / {rival}"] for ours in ("standard", "reuse factor 3")]
    page = "[images decoded once](docs/how-to/keep.md)"
    rows.append([f"{next(iter(RIVALS))}, ours with {page}", f"{one:.1f} times", f"{two:.1f} times"])
    heading = ["images/s, compared with", "nothing reused", "reuse factor 3"]
    reuse = f"reuse factor 3 multiplies it by {_ratio('reuse factor 3, paper', 'standard'):.1f}"
    files = "Files that decode\nfaster gain more: the same photographs as JPEGs of 4:2:0"
    return (
        f"{table(heading, rows)}\n\nThe first column is the effect of compiled kernels alone; {reuse}. {files}, "
        f"{lighter[0]:.1f} and {lighter[1]:.1f} times in the first row.\n\n"
        f"Medians of {where('against')};\nof the last row and of 4:2:0: {where('keep')}."
    )


def against() -> str:
    """Write images/s of every contender: of those that do all of the recipe, and of those that crop and flip."""
    results, alone = read("against")["results"], ", crop and flip"
    kinds: dict[str, list[dict[str, str]]] = {"loader": [], "loader, crop and flip alone": []}
    for each in sorted(results["competitors"], key=lambda each: -each["images_per_s"]["median"]):
        kind = list(kinds)[each["name"].endswith(alone)]
        kinds[kind].append(
            {
                kind: ("**dalirefurb**, " if each["ours"] else "") + each["name"].removesuffix(alone),
                "at its best setting": "" if each["ours"] else each["setting"],
                "images/s": number(each["images_per_s"]["median"]),
                **_besides(each),
            }
        )
    parts = [table(list(rows[0]), [list(row.values()) for row in rows]) for rows in kinds.values() if rows]
    counted = "files_in_memory" in results
    parts.append(_BESIDES.format(files="" if counted else ",\nwithout files below /dev/shm, where our keeps are"))
    if missing := results["missing"]:
        parts.append(f"Left out: {'; '.join(f'{name} ({why})' for name, why in missing.items())}.")
    return "\n\n".join([*parts, f"{where('against')}."])


_BESIDES = """\
The first epoch, of 2,048 images, is of a process of its own: from its start, with all that it imports and writes of the
images; our kernels are compiled before. MB are the memory of all its processes after that{files}.
An interrupted epoch resumes exactly, with the images that it would have had; by sample, with the samples that are left,
augmented anew; or not. DALI's does by its own checkpoints."""


def _besides(competitor: Mapping[str, Any]) -> dict[str, str]:
    """Write what a loader does beside being fast."""
    different = 100 * competitor["different"]
    return {
        "first epoch, s": number(competitor["first_epoch_s"]),
        "MB": number(competitor["memory_mb"]),
        "kept between epochs": competitor["kept"] + (f", {different:.0f} of 100 different" if different < 100 else ""),
        "resumes": competitor["resumes"],
    }


def throughput() -> str:
    """Write images/s of each reuse factor in the largest batches, with its share of the bound."""
    rows = [
        row for name, kind in (("throughput", "compiled"), ("throughput_dali", "DALI's")) for row in _bars(name, kind)
    ]
    heading = ["order, kernels", "served", "images/s", "of standard", "of its bound"]
    return f"{table(heading, rows)}\n\nCompiled: {where('throughput')}.\nDALI's: {where('throughput_dali')}."


def _bars(name: str, kind: str) -> Iterator[list[str]]:
    cases = read(name)["results"]
    largest = max(case["batch_size"] for case in cases)
    for case in (each for each in cases if each["batch_size"] == largest):
        found = {claim["name"]: claim["figure"]["median"] for claim in case["claims"]}
        rounds: dict[str, dict[int, float]] = {}
        for each in case["slices"]:
            rounds.setdefault(each["contender"], {})[each["round"]] = each["images"] / each["seconds"]
        for served, speed in case["images_per_s"].items():
            if served.endswith("-only"):
                continue
            standard = statistics.median(own / rounds["standard"][key] for key, own in rounds[served].items())
            share = found.get(f"{served} / its bound", found.get(f"{served} / final-only"))
            of_bound = "" if share is None else f"{share:.2f}"
            yield [f"{case['order']}, {kind}", served, number(speed["median"]), f"{standard:.2f}", of_bound]


def kernels() -> str:
    """Write how many times the CPU time of a compiled kernel others take."""
    rows = [
        [each["name"], _times(each["ratio"]), _times(each["torchvision_ratio"])]
        for each in read("kernels")["results"]["kernels"]
    ]
    heading = ["stage", "DALI's operators", "torchvision's v2"]
    return f"{table(heading, rows)}\n\n{where('kernels')}."


def _times(ratio: Mapping[str, float] | None) -> str:
    return "" if ratio is None else f"{number(ratio['median'])} times"


def accuracy() -> str:
    """Write test accuracy and loss of every case, with its paired difference, then the curve."""
    run = read("accuracy_reduced")
    results, rows = run["results"], []
    for case in sorted(results["accuracy"], key=lambda case: -case["diversity"]):
        row = [case["case"], f"{case['diversity']:.3f}", f"{case['seeds']}", f"{case['accuracy']['mean']:.1f} %"]
        apart = [case["difference"], case["loss_difference"]] if case["difference"] else []
        p = f"{case['difference']['p']:.3f}" if apart else ""
        rows.append([*row, *([_ends(each) for each in apart] or ["", ""]), p, f"{case['fresh']:,}"])
    heading = ["served", "kept", "seeds", "test accuracy", "difference, points", "of test loss", "p", "made anew"]
    parts = [table(heading, rows)]
    for fitted in results["curve"].values():
        (best, least, most), (share, *ends) = fitted["halving"], fitted["floor"]
        lost = f"{run['config']['margin']:g} points where {share:.2f} [{ends[0]:.2f}, {ends[1]:.2f}] are kept"
        parts.append(
            f"With each halving of the different images {best:+.2f} points [{least:+.2f}, {most:+.2f}] are lost, "
            f"fitted to {fitted['runs']} runs of reuse: "
            f"{lost if least > 0 else 'so no loss is shown, and no floor follows'}."
        )
    if run.get("draft"):
        parts.insert(0, "**Not finished**: more pairs are to come, and what is shown can change.")
    times = f"{10 * run['config']['train_per_class']:,} images, {run['config']['epochs']} epochs, "
    return "\n\n".join([*parts, f"Means of seeds, paired, 95 % intervals; {where('accuracy_reduced', times)}."])


def _ends(figure: Mapping[str, float]) -> str:
    return f"{figure['mean']:+.2f} [{figure['lower']:+.2f}, {figure['upper']:+.2f}]"


def assistants() -> str:
    """Write what AutoAssist needs with an Assistant that learns, and with those that know."""
    least = min(each["level"] for each in read("autoassist")["results"]["comparisons"])
    rows = [
        [each["contender"], f"{each['ratio']['mean']:.2f} ± {each['ratio']['half_width']:.2f}"]
        for each in read("autoassist")["results"]["comparisons"]
        if each["level"] == least
    ]
    return f"{table(['Assistant', f'samples to {least:g} / uniform'], rows)}\n\n{where('autoassist')}."


def tuned() -> str:
    """Write how far off tune's predictions were, by what was cached where, and how steady the machine was."""
    rows, steady = [], []
    for case in read("tune")["results"]["tuned"]:
        speeds = [run["speed"] for run in case["runs"]]
        steady.append(f"{min(speeds):.2f} to {max(speeds):.2f} with {case['data']}")
        for tier, cached in (("none", "nothing"), ("memory", "in memory"), ("disk", "on a disk")):
            runs = [run for run in case["runs"] if run["tier"] == tier]
            row = [case["data"], cached, str(len(runs))]
            for kind in ("predicted", "predicted_then"):
                off = [abs(run[kind] / run["achieved"] - 1) for run in runs]
                row += [f"{statistics.median(off):.1%}", f"{np.quantile(off, 0.95):.0%}"]
            rows.append(row)
    heading = ["data", "cached", "runs", "off, median", "95th percentile", "at the speed it had then, median"]
    return (
        f"{table([*heading, '95th percentile'], rows)}\n\nThe speed that the machine had then, of the one that it had "
        f"when tune measured: {', '.join(steady)}.\n\n{where('tune')}."
    )


def sources() -> str:
    """Write every file's machine, number of rounds, date and commit."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        run = read(path.stem)
        machine, config = run["environment"], run["config"]
        cpu = machine["cpu"].replace("(R)", "").replace(" Processor", "")
        rows.append(
            [
                f"[{path.stem}](results/{path.name})",
                f"{cpu}, {machine['cores']} cores",
                f"{config.get('rounds', '')}",
                f"{_harness(path.stem) or ''}",
                f"{machine['date']}, {machine['commit'][:7]}{'+' * bool(machine['uncommitted_changes'])}",
            ]
        )
    return table(["file", "machine", "rounds", "harness", "date, commit"], rows)


BLOCKS = {
    "accuracy": accuracy,
    "against": against,
    "assistants": assistants,
    "claims": claims,
    "headline": headline,
    "kernels": kernels,
    "sources": sources,
    "throughput": throughput,
    "tuned": tuned,
}


def main() -> None:
    """Write figures anew in all pages."""
    for page in pages():
        text = renewed(page)
        if text != page.read_text():
            page.write_text(text)


if __name__ == "__main__":
    main()
