"""Tables against numbers computed by hand, figures, and the page as a browser loads it."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transhash.errors import DataError
from transhash.experiments.plan import MethodSpec
from transhash.hashers import METHODS
from transhash.report import write_report
from transhash.report.figures import css_variables
from transhash.report.formats import html_table, latex, markdown
from transhash.report.summary import Mean, Summary, confidence_interval, published_maps
from transhash.report.tables import ablation, comparison, costs, differences, margins

from .tiny import run

# method -> MAP of seeds 0 and 1, image to text; text to image is a tenth higher.
SCORES = {"QCH": (0.50, 0.52), "DCMH": (0.52, 0.50), "THN-D": (0.54, 0.54), "THN": (0.60, 0.58)}


def summary(
    scores: dict[str, tuple[float, ...]] = SCORES, benchmark: str = "mine", bits: int = 8
) -> Summary:
    rows: list[dict[str, Any]] = [
        {
            "benchmark": benchmark,
            "method": method.partition("@")[0],
            "teacher": method.partition("@")[2] or None,
            "bits": bits,
            "seed": seed,
            "image_to_text_map": value,
            "text_to_image_map": value + 0.1,
            "image_to_text_chance": 0.0625,
            "text_to_image_chance": 0.07,
            "held_out_map": [0.7, 0.8],
            "training_seconds": 1.25,
            "tuning_seconds": 10.0,
            "encode_seconds": 0.5,
            "distinct_codes": {"images": 100, "texts": 90},
            "bit_balance": [0.25, 0.75],
            "items": {
                "query_images": 20,
                "database_images": 80,
                "query_texts": 20,
                "database_texts": 60,
            },
            "mmd": {"images": {"before": 0.5, "after": 0.125}} if method == "THN" else None,
        }
        for method, values in scores.items()
        for seed, value in enumerate(values)
    ]
    return Summary(rows, Path())


def test_the_markdown_table_has_means_deviations_ranks_and_chance() -> None:
    assert markdown(comparison(summary())).splitlines() == [
        "**MAP of cross-modal retrieval on mine, mean ± sd over 2 seeds**",
        "",
        "| Task | Method | 8 bits |",
        "|---|---|---:|",
        "| I → T | QCH | 0.5100 ± 0.0141 |",  # sd of (.50, .52) is .02 / √2
        "|  | DCMH | 0.5100 ± 0.0141 |",
        "|  | THN-D (no target data) | <u>0.5400</u> ± 0.0000 |",
        "|  | THN | **0.5900** ± 0.0141 |",
        "|  | chance | 0.0625 ± 0.0000 |",
        "| T → I | QCH | 0.6100 ± 0.0141 |",
        "|  | DCMH | 0.6100 ± 0.0141 |",
        "|  | THN-D (no target data) | <u>0.6400</u> ± 0.0000 |",
        "|  | THN | **0.6900** ± 0.0141 |",
        "|  | chance | 0.0700 ± 0.0000 |",
    ]


def test_the_latex_table_has_the_papers_shape() -> None:
    text = latex(comparison(summary({"QCH": (0.5,), "THN": (0.6,)})))
    assert text.splitlines() == [
        r"\begin{table}[t]",
        r"\centering\small",
        r"\caption{MAP of cross-modal retrieval on mine, one seed}",
        r"\label{table:comparison}",
        r"\begin{tabular}{l|l|c}",
        r"\hline",
        r" &  & \multicolumn{1}{c}{mine} \\",
        r"Task & Method & 8 bits \\",
        r"\hline",
        r"\multirow{3}{*}{I $\rightarrow$ T} & QCH & \underline{0.5000} \\",
        r"\cline{2-3}",
        r" & THN & \textbf{0.6000} \\",
        r"\cline{2-3}",
        r" & chance & 0.0625 \\",
        r"\hline",
        r"\multirow{3}{*}{T $\rightarrow$ I} & QCH & \underline{0.6000} \\",
        r"\cline{2-3}",
        r" & THN & \textbf{0.7000} \\",
        r"\cline{2-3}",
        r" & chance & 0.0700 \\",
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_methods_with_equal_printed_scores_share_a_rank() -> None:
    text = markdown(comparison(summary({"QCH": (0.600001,), "DCMH": (0.6,), "THN": (0.5,)})))
    assert text.count("**0.6000**") == 2
    assert text.count("<u>0.5000</u>") == 1


def test_margins_are_paired_by_seed_and_averaged_over_code_lengths() -> None:
    results = summary()
    # QCH and DCMH have the same mean; QCH comes first. Seeds: 60 - 50 = 10 and 58 - 52 = 6.
    margin = results.margin("image_to_text")
    assert margin is not None
    assert margin.value == pytest.approx(8.0)
    assert margin.sd == pytest.approx(4 / 2**0.5)
    assert results.margin("image_to_text", MethodSpec("THN-D")) == Mean(
        pytest.approx(5.0), pytest.approx(2 / 2**0.5)
    )
    assert results.wins() == (2, 2)
    lines = markdown(margins(results))
    assert "THN is above every baseline in 2 of 2 cells" in lines
    assert "| best baseline of each cell | 8.0 ± 2.8 | 8.0 ± 2.8 |" in lines


def test_paired_differences_have_an_interval_corrected_for_overlapping_splits() -> None:
    # 60 - 50 and 58 - 52: mean 8, sd 2.828; 12.706 · 2.828 · sqrt(1/2 + 20/80) = 31.1 for queries
    # that are images, and sqrt(1/2 + 20/60) instead, 32.8, for texts.
    lines = markdown(differences(summary()))
    assert "| THN | QCH | 8.0 ± 2.8 | -23.1 to +39.1 | 8.0 ± 2.8 | -24.8 to +40.8 |" in lines
    both = markdown(
        differences(summary({"THN": (0.5, 0.5), "QCH@THN": (0.4, 0.3), "THN@THN": (0.6, 0.7)}))
    )
    other = "QCH, on THN's fine-tuned backbone"
    assert f"| THN, fine-tuned | {other} | 30.0 ± 14.1 | -125.6 to +185.6" in both
    assert both.count(f"| {other} |") == 2


def test_the_interval_follows_a_hand_calculation() -> None:
    # mean 2, s² = 1, n = 3: variance 1/3 + 1/4 = .5833; t(.975, 2) = 4.3027 · .7638 = 3.2862
    assert confidence_interval([1, 2, 3], 1 / 4) == pytest.approx((-1.2862, 5.2862), abs=1e-4)
    # without a correction 4.3027 / sqrt 3 = 2.4841
    assert confidence_interval([1, 2, 3], 0) == pytest.approx((-0.4841, 4.4841), abs=1e-4)
    assert confidence_interval([1], 0.25) is None


def test_corrected_intervals_cover_the_mean_of_splits_that_share_items() -> None:
    # Scores of splits with n_test / n_train = 1/3 correlate by n_test / n = 1/4.
    rng, count = np.random.default_rng(0), 2000
    shared, own = rng.normal(size=(count, 1)), rng.normal(size=(count, 5))
    scores = 0.25**0.5 * shared + 0.75**0.5 * own

    def coverage(ratio: float) -> float:
        intervals = [confidence_interval(row, ratio) for row in scores.tolist()]
        return float(np.mean([low < 0 < high for low, high in filter(None, intervals)]))

    assert coverage(1 / 3) == pytest.approx(0.95, abs=0.015)
    assert coverage(0) < 0.85


def test_the_ablation_has_both_directions_side_by_side() -> None:
    lines = markdown(ablation(summary())).splitlines()
    assert lines[2] == "| Method | I → T 8 bits | T → I 8 bits |"
    assert lines[-1] == "| THN | **0.5900** ± 0.0141 | **0.6900** ± 0.0141 |"


def test_the_papers_numbers_are_shown_for_its_data_only() -> None:
    text = markdown(comparison(summary(benchmark="imagenet-yahooqa")))
    assert "| Task | Method | ours 8 bits | paper 8 bits |" in text
    assert "|  | THN | **0.5900** ± 0.0141 | **0.5451** |" in text
    assert "paper" not in markdown(comparison(summary()))


def test_the_papers_margins_follow_from_its_tables() -> None:
    # "5.03% and 6.91% in average MAP" over DCMH, "4.06% / 6.09%" over THN-D.
    printed = published_maps()["imagenet-yahooqa"]
    for direction, other, points in (
        ("image_to_text", "DCMH", 5.03),
        ("text_to_image", "DCMH", 6.91),
        ("image_to_text", "THN-D", 4.06),
        ("text_to_image", "THN-D", 6.09),
    ):
        ours, theirs = printed[direction]["THN"], printed[direction][other]
        gain = sum(ours[bits] - theirs[bits] for bits in ours) / 4
        assert 100 * gain == pytest.approx(points, abs=0.006)


def test_the_costs_of_a_method_are_shown() -> None:
    line = markdown(costs(summary())).splitlines()[-1]
    assert line == (
        "| THN | 8 bits | 1.2 | 10.0 | 0.50 | 0.7500 | 100 | 90 | 0.25 to 0.75 "
        "| 0.500 to 0.125 | – |"
    )


def test_a_method_of_another_version_is_shown_but_is_not_a_baseline() -> None:
    results = summary({"QCH": (0.5,), "Later": (0.9,), "THN": (0.6,)})
    assert list(map(str, results.methods)) == ["Later", "QCH", "THN"]
    assert "| I → T | Later | **0.9000** |" in markdown(comparison(results))
    assert "| Later | -30.0 | -30.0 |" in markdown(margins(results))
    assert results.best_baseline("image_to_text", 8) == MethodSpec("QCH")
    assert results.wins() == (2, 2)


def test_a_method_without_codes_is_shown_with_the_others() -> None:
    results = summary({"kNN": (0.7,), "QCH": (0.5,), "THN": (0.6,)})
    for row in results.rows:
        if row["method"] == "kNN":
            row["distinct_codes"] = row["bit_balance"] = None
    label = "kNN (real-valued)"
    assert f"| I → T | {label} | **0.7000** |" in markdown(comparison(results))
    assert f"| {label} | -10.0 | -10.0 |" in markdown(margins(results))
    assert results.best_baseline("image_to_text", 8) == MethodSpec("QCH")
    lines = markdown(costs(results)).splitlines()
    (number,) = [number for number, line in enumerate(lines) if line.startswith("| kNN")]
    costs_of_fit = "1.2 | 10.0 | 0.50 | 0.7500"
    assert lines[number] == f"| {label} | no codes | {costs_of_fit} | – | – | – | – | – |"
    assert lines[number + 1].startswith("| QCH | 8 bits |")  # kNN has one line for all lengths
    assert "var(--knn)" in html_table(comparison(results), {label: "kNN"})


def test_every_method_has_its_own_marker_and_colors() -> None:
    for look in ("marker", "color"):
        assert len({getattr(method, look) for method in METHODS}) == len(METHODS)
    light = [pair[0] for pair in css_variables().values()]
    assert len(set(light)) == len(light), "the page replaces colors by their value"
    assert all(re.fullmatch(r"[a-z-]+", name) for name in css_variables())


class PageParser(HTMLParser):
    """Collects what a browser would fetch, and the tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "href", "xlink:href") and not str(value).startswith(("#", "data:")):
                self.fetched.append(str(value))
        if tag not in ("meta", "link", "br", "use", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


@pytest.fixture(scope="module")
def reported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("reported") / "run"
    shutil.copytree(finished, out)
    metrics = out / "training" / "QCH-16-0"
    metrics.mkdir(parents=True)
    steps = [{"step": i, "objective": 1 / (i + 1), "relation": 0.9 / (i + 1)} for i in range(60)]
    (metrics / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert write_report(out) == out / "report.html"
    return out


def test_the_report_has_tables_and_every_figure(reported: Path) -> None:
    names = {path.name for path in (reported / "figures").iterdir()}
    figures = ["map", "pr-rank-8", "pr-rank-16", "pr-radius-8", "pr-radius-16", "training"]
    assert names == {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    assert "| Task | Method | 8 bits | 16 bits |" in (reported / "tables.md").read_text()
    assert r"\begin{tabular}" in (reported / "tables.tex").read_text()


def test_the_page_fetches_nothing_and_has_a_dark_mode(reported: Path) -> None:
    text = (reported / "report.html").read_text()
    page = PageParser()
    page.feed(text)
    assert page.fetched == []
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert set(page.open) <= {"html"}  # <html> and <body> are closed at the end
    assert "prefers-color-scheme: dark" in text
    assert "var(--qch)" in text
    svgs = text[text.index("<svg") : text.rindex("</svg>")]
    assert "#0c8560" not in svgs, "a figure has a fixed color"
    assert "QCH" in svgs


def test_unknown_methods_and_methods_without_codes_are_drawn_and_escaped(
    finished: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    rows = [json.loads(line) for line in (finished / "results.jsonl").read_text().splitlines()]
    for row in rows:
        if row["method"] == "CVH":
            row["method"] = "<i>later</i>"
        else:
            row["method"] = "kNN"
            row["distinct_codes"] = row["bit_balance"] = None
            for direction in ("image_to_text", "text_to_image"):
                del row[direction]["pr_by_radius"]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(tmp_path).read_text()
    assert "<i>later" not in text
    dot = '<span class="key" style="background: var(--unknown-method)"></span>&lt;i&gt;later'
    assert dot in text
    svg = (tmp_path / "figures" / "map.svg").read_text()
    assert "&lt;i&gt;later" in svg
    assert "kNN" in svg
    assert css_variables()["unknown-method"][0] in svg
    assert "kNN" in (tmp_path / "figures" / "pr-rank-8.svg").read_text()
    assert "kNN" not in (tmp_path / "figures" / "pr-radius-8.svg").read_text()


def test_an_experiment_can_have_methods_without_codes(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.toml"
    file.write_text(
        'benchmark = "folder"\nmethods = ["CVH", "knn", "Ridge"]\nbits = [8]\nseeds = [0]\n'
        "tune = 2\n[settings.kNN]\nn_neighbors = 3\n"
    )
    run(file, folder, tmp_path / "run")
    results = Summary.read(tmp_path / "run")
    assert list(map(str, results.methods)) == ["kNN", "ridge", "CVH"]
    assert results.cells(MethodSpec("kNN"), 8)[0]["plan_settings"] == {"n_neighbors": 3}
    for row in results.rows:
        assert row["image_to_text_map"] > row["image_to_text_chance"]
        assert len(row["trials"]) == 2
    assert write_report(tmp_path / "run").exists()


def test_a_folder_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished cell"):
        write_report(tmp_path)


def test_without_matplotlib_tables_are_written_and_the_error_names_the_extra(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(DataError, match=r"pip install 'transhash\[plots\]'"):
        write_report(out)
    assert (out / "tables.md").exists()
