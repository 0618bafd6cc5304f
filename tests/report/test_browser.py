"""The page in a browser: no errors, no requests, no horizontal scrolling, on phone and desktop, in both themes."""

import itertools
import shutil
from dataclasses import replace

import pytest

import langevin as lv
from langevin.report import Table
from tests.report.test_evaluate import full_report, image_runs, images

WHERE = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
QUIET = "disable-gpu disable-quic no-first-run disable-background-networking disable-component-update disable-sync"
FLAGS = ["--no-sandbox", *(f"--{flag}" for flag in QUIET.split(" "))]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'langevin[test]'")
    found = next(filter(None, WHERE), None)
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    return full_report().save(tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_the_page_opens_without_errors_requests_or_horizontal_scrolling(
    browser, page_file, tmp_path, theme, width, height
):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = context.new_page()
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    assert page.evaluate("document.readyState") == "complete"
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("ul.verdicts > li").count() >= 6
    assert all(box["width"] > 200 for box in (svg.bounding_box() for svg in page.locator("figure svg").all()))
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    line = page.evaluate("getComputedStyle(document.querySelector('figure text')).fill")
    assert (paper, line) == {
        "light": ("rgb(246, 247, 249)", "rgb(29, 39, 51)"),
        "dark": ("rgb(16, 20, 26)", "rgb(231, 235, 240)"),
    }[theme]
    assert len(page.screenshot(path=tmp_path / "page.png", full_page=True)) > 20_000
    context.close()


def test_the_dark_theme_prints_on_white(browser, page_file):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 39, 51)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    context.close()


def test_nothing_is_clipped_on_a_desktop_with_three_baselines_and_no_slot_is_empty(browser, tmp_path):
    run, sgd = image_runs()
    baselines = {"deep ensemble": run[::7], "one network": sgd, "temperature-scaled network": run[:3]}
    report = lv.evaluate(run, images(), baselines=baselines, probe=5, progress=False)
    why = "mean loss of the held-out part 2.35 → 0.183, AdamW, 4430 steps of 32 examples, from fresh initializations"
    metric = "metric: by the Fisher information and the prior at each optimum"
    decided = Table("Autopilot", "", ["Stage", "Step", "Decided", "Why"], [["warm start", "4,430", metric, why]])
    file = replace(report, tables=[*report.tables, decided]).save(tmp_path / "report.html")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(file.as_uri())
    widths = page.evaluate("[...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth, e.clientWidth])")
    assert len(widths) >= 4
    assert all(needed <= given for needed, given in widths), widths
    right = page.evaluate(
        "(() => { const all = [...document.querySelectorAll('.pictures .card')]; const last = all.at(-1);"
        " return [last.getBoundingClientRect().right, last.parentElement.getBoundingClientRect().right]; })()"
    )
    assert abs(right[0] - right[1]) < 2
    tables = page.evaluate(
        "[...document.querySelectorAll('#tables + .tables > .card')].map(e => { const r = e.getBoundingClientRect();"
        " return [e.classList.contains('wide'), r.left, r.top, r.bottom]; })"
    )
    narrow = [(left, top, bottom) for wide, left, top, bottom in tables if not wide]
    for left, top, bottom in narrow:  # another one is beside it
        assert any(abs(x - left) > 2 and above < bottom and top < below for x, above, below in narrow), tables
    for (_, _, _, bottom), (wide, _, top, _) in itertools.pairwise(tables):  # and a margin between cards
        assert not wide or top > bottom + 8
    context.close()
