"""The full report in a real browser without a network: light and dark, keyboard, a phone, paper, a saved file."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.publish.report import find_inputs, write_report
from ladder.show.themes import DARK, LIGHT
from tests.publish.report.test_report_page import RUN, write_studies
from tests.support import browsing, committed
from tests.support.browsing import BROWSER, CONTRAST, DRIVER, look, press, rgb

if not (BROWSER and DRIVER):
    pytest.skip(
        "no browser here: chromium and chromedriver (Debian: chromium-driver)", allow_module_level=True
    )
pytest.importorskip("selenium.webdriver", reason="selenium is not installed: requirements.lock has it")

chromium, browser = browsing.chromium, browsing.browser

FIGURES = """
    const all = [...document.querySelectorAll('.bars text.on')].filter((each) => each.checkVisibility());
    const beyond = all.filter((each) => {
      const [text, part] = [each, each.previousElementSibling].map((of) => of.getBoundingClientRect());
      return text.left < part.left - 0.5 || text.right > part.right + 0.5;
    });
    return [all.length, beyond.map((each) => each.textContent)];
"""
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with every kind of result beside it."""
    folder = write_studies(tmp_path_factory.mktemp("report"))
    write_report(find_inputs([RUN], folder), folder / "report.html")
    return folder / "report.html"


@contextlib.contextmanager
def emulate(browser: Any, media: str = "", **size: Any) -> Iterator[None]:
    """Give the window another size, or look at it as on paper."""
    if size:
        size = {"height": 800, "deviceScaleFactor": 1, "mobile": False} | size
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
    yield
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_is_readable_in_light_and_dark(browser: Any, report: Path, theme: str) -> None:
    look(browser, theme)
    browser.get(report.as_uri())
    browser.execute_script(OPEN)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == rgb((LIGHT if theme == "light" else DARK).ground)
    poor = [(ratio, text) for ratio, text in browser.execute_script(CONTRAST) if ratio < 4.5]
    assert not poor


def test_bars_of_one_chart_share_their_scale(browser: Any, report: Path) -> None:
    browser.get(report.as_uri())
    widths = browser.execute_script(
        "return [...document.querySelectorAll('#staircase .bars svg')]"
        ".map((each) => each.getBoundingClientRect().width)"
    )
    assert len(widths) == 4 and len(set(widths)) == 1 and widths[0] > 200
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('#staircase .bars svg')].map((each) => "
        "[...each.querySelectorAll('rect')].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0))"
    )
    times = [170.9, 175.1, 193.6, 208.5]
    assert [size / sizes[0] for size in sizes] == pytest.approx([ms / times[0] for ms in times], rel=0.01)


@pytest.mark.parametrize("width", [1280, 840, 390])
def test_a_figure_in_a_bar_stays_inside_its_part(browser: Any, report: Path, width: int) -> None:
    with emulate(browser, width=width):
        browser.get(report.as_uri())
        browser.execute_script(OPEN)
        shown, beyond = browser.execute_script(FIGURES)
    assert not beyond and (shown or width == 840)


def test_a_phone_scrolls_nothing_but_tables(browser: Any, report: Path) -> None:
    with emulate(browser, width=360, mobile=True):
        browser.get(report.as_uri())
        browser.execute_script(OPEN)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        wide = browser.execute_script(
            "return [...document.querySelectorAll('main *:not(.scroll *):not(svg *)')]"
            ".filter((each) => each.checkVisibility() && each.getBoundingClientRect().right > 361)"
            ".map((each) => each.outerHTML.slice(0, 80))"
        )
        assert wide == []
        cut = browser.execute_script(
            "return [...document.querySelectorAll('#environment .scroll')]"
            ".filter((each) => each.checkVisibility() && each.scrollWidth > each.clientWidth).length"
        )
    assert not cut, "a fact ends beyond its frame"


def test_the_keyboard_reaches_every_control_and_shows_it(browser: Any, report: Path) -> None:
    browser.get(report.as_uri())
    controls = browser.execute_script(
        "return [...document.querySelectorAll('a[href], summary, button, [tabindex=\"0\"]')]"
        ".filter((each) => each.checkVisibility()).length"
    )
    state = (
        "const at = document.activeElement, look = getComputedStyle(at);"
        "return [at.tagName, at.className, look.outlineStyle, at.getBoundingClientRect().left >= 0]"
    )
    seen = []
    for _ in range(controls):
        press(browser, "TAB")
        seen.append(browser.execute_script(state))
    assert seen[0][1] == "skip" and all(at != "BODY" for at, *_ in seen), "fewer than there are"
    assert all(style != "none" and inside for _, _, style, inside in seen), "in focus, and nobody sees it"
    browser.execute_script("document.querySelector('.skip').focus()")
    press(browser, "ENTER")
    assert browser.current_url.endswith("#staircase")
    browser.execute_script("document.querySelector('summary').focus()")
    press(browser, "ENTER")
    assert browser.execute_script("return document.querySelector('details').open")
    opened = "return [...document.querySelectorAll('details')].filter((each) => each.open).length"
    every = browser.execute_script("return document.querySelectorAll('details').length")
    for button, wanted in (("true", every), ("false", 0)):
        browser.execute_script(f"document.querySelector('[data-open=\"{button}\"]').focus()")
        press(browser, "SPACE")
        assert browser.execute_script(opened) == wanted


def test_a_file_is_saved_from_the_page_as_it_was(browser: Any, report: Path, tmp_path: Path) -> None:
    saving = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", saving)
    browser.get(report.as_uri())
    name = browser.execute_script(
        "const each = document.querySelector('[data-file]'); each.click(); return each.dataset.file"
    )
    saved, end = tmp_path / name.rpartition("/")[2], time.monotonic() + 60
    while (found := _json(saved)) is None and time.monotonic() < end:
        time.sleep(0.05)
    assert found == json.loads(RUN.read_text())


def _json(path: Path) -> Any:
    """Return what a file holds, None until it is whole: a browser makes an empty file first."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def test_a_table_of_every_category_fits_on_paper(browser: Any, tmp_path: Path) -> None:
    """A wider one shrinks the whole page. A4 landscape has 1032 pixels between its margins."""
    runs = committed.folder("results/ladder").glob("*/article-full-2*.json")
    path = max(runs, key=lambda each: each.stat().st_size)
    write_report(find_inputs([path], tmp_path), tmp_path / "report.html")
    with emulate(browser, "print", width=1032, height=703):
        browser.get((tmp_path / "report.html").as_uri())
        heads = "return document.querySelectorAll('#categories th[scope=col]').length"
        assert browser.execute_script(heads) > 20
        assert browser.execute_script("return document.documentElement.scrollWidth") == 1032


def test_paper_shows_the_folded_explanations_and_no_controls(browser: Any, report: Path) -> None:
    browser.get(report.as_uri())
    with emulate(browser, "print"):
        browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        shown = "return [...document.querySelectorAll(arguments[0])].filter((each) => each.checkVisibility()).length"
        assert browser.execute_script(shown, "#steps details table") == 4
        assert browser.execute_script(shown, "#proofs details, nav, button") == 0
        browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
        assert not browser.execute_script("return document.querySelector('#steps details').open")
