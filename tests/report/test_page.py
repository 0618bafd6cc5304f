"""The page: escaped, self-contained, accessible, readable in both themes."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from langevin import plots
from langevin.plots import style
from langevin.report import Finding, Picture, Report, Table
from langevin.report.page import _spans
from langevin.report.theme import DARK, LIGHT, inline_svg

EVIL = '<script>alert("x")</script>&$\\foo$'


def report(name="SGLD"):
    axes = plots.traces({0: [1.0, 2.0, 1.5]}, label=name)
    return Report(
        title=name,
        summary=name,
        verdicts=[Finding(name, level, name, name) for level in ("good", "warning", "bad", "unknown")],
        tables=[Table(name, name, ["", name], [[name, name]])],
        pictures=[Picture(name, name, name, inline_svg(axes.figure, name, "p0"))],
        configuration={name: name},
        versions={name: name},
        citations=[name],
        numbers={"nothing": float("nan"), "array": np.array([1.0, np.inf]), "flag": np.bool_(True)},
    )


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def test_text_of_the_user_is_escaped():
    page = report(EVIL).html()
    assert "<script" not in page
    assert "alert(&#34;x&#34;)" in page or "alert(&quot;x&quot;)" in page
    tags = Tags(page)
    assert not tags.all("script")
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    (svg,) = tags.all("svg")
    assert svg["aria-label"] == EVIL


def test_the_page_makes_no_requests():
    page = report().html()
    tags = Tags(page)
    for tag, attributes in tags.found:
        for name in ("src", "href", "xlink:href", "data", "action"):
            if name in attributes:
                assert attributes[name].startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)
    policy = next(m["content"] for m in tags.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_tables_have_headers_and_captions_and_figures_alternative_text():
    tags = Tags(report().html())
    assert len(tags.all("table")) == len(tags.all("caption")) == 3
    assert all(attributes.get("scope") in ("col", "row") for attributes in tags.all("th"))
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in tags.all("svg"))
    assert len(tags.all("figure")) == len(tags.all("figcaption")) == 1
    assert tags.all("html")[0]["lang"] == "en"
    assert len(tags.all("h1")) == 1
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a, b):
    """By WCAG 2.1."""
    light, dark = sorted([luminance(a), luminance(b)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_contrast_is_aa_in_both_themes(theme):
    for ground in ("paper", "card"):
        for text in ("ink", "muted", "link", "good", "warning", "bad", "unknown"):
            assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        for index in range(4):  # lines of figures
            assert contrast(theme[f"series-{index}"], theme[ground]) >= 3, (index, ground)
    for level in ("good", "warning", "bad", "unknown"):
        assert contrast(theme[level], theme[f"{level}-wash"]) >= 4.5, level
    assert theme.keys() == LIGHT.keys()


def test_figures_take_their_colours_from_the_theme():
    svg = report().pictures[0].svg
    assert "var(--series-0)" in svg
    assert "var(--sans)" in svg
    known = {*style.SERIES, style.INK, style.MUTED, style.FAINT, style.PAPER}
    left = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert not left & known
    assert left <= {"#000000"}, left  # matplotlib's default, on nothing visible


def test_saving(tmp_path):
    path = report().save(tmp_path / "deep" / "report.html")
    assert path.read_text().startswith("<!doctype html>")
    numbers = json.loads(report().save(tmp_path / "report.json").read_text())
    assert numbers["numbers"] == {"nothing": None, "array": [1.0, None], "flag": True}
    assert [verdict["level"] for verdict in numbers["verdicts"]] == ["good", "warning", "bad", "unknown"]
    with pytest.raises(ValueError, match="report.html"):
        report().save(tmp_path / "report.pdf")


def test_empty_sections_are_not_shown():
    bare = Report("t", "s", [Finding("a", "good", "b")], [], [], {"Kind": "x"}, {}, [])
    page = bare.html()
    assert 'id="pictures"' not in page
    assert 'id="tables"' not in page
    assert 'id="citations"' not in page
    assert str(bare).splitlines()[1].split() == ["good", "a", "b"]


def test_no_table_has_an_empty_slot_beside_it():
    wide, narrow = True, False
    assert _spans([narrow, wide, narrow, narrow, wide]) == [True, True, False, False, True]
    assert _spans([wide, narrow, narrow, narrow]) == [True, False, False, True]
    assert _spans([narrow]) == [True]
    assert _spans([]) == []
