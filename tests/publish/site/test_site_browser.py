"""The site in a real browser with the network off: it loads, it works, and a hostile machine's name stays a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ladder.show.themes import DARK, LIGHT
from tests.support import browsing, published
from tests.support.browsing import BROWSER, CONTRAST, DRIVER, look, press, rgb, until

if not (BROWSER and DRIVER):
    pytest.skip(
        "no browser here: chromium and chromedriver (Debian: chromium-driver)", allow_module_level=True
    )
pytest.importorskip("selenium.webdriver", reason="selenium is not installed: requirements.lock has it")

chromium, browser = browsing.chromium, browsing.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published.many(tmp_path_factory.mktemp("browser") / "project")


# --- the front page, opened from a folder ---------------------------------------------------------------------------

UNFOLD = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_front_page_works_by_double_click_in_light_and_dark(browser, site, theme):
    look(browser, theme)
    browser.get((site / "index.html").as_uri())
    browser.execute_script(UNFOLD)
    until(browser, "document.images[0].naturalWidth > 100", "the picture of a history")
    (picture,) = browser.execute_script(
        "return [...document.images].map((each) => [each.alt, each.currentSrc])"
    )
    dark = browser.execute_script("return document.querySelector('source').srcset")
    assert "milliseconds a step" in picture[0] and (picture[1] == dark) == (theme == "dark")
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == rgb((LIGHT if theme == "light" else DARK).ground)
    poor = [(ratio, text) for ratio, text in browser.execute_script(CONTRAST) if ratio < 4.5]
    assert not poor


def test_a_phone_scrolls_nothing_but_tables(browser, site):
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get((site / "index.html").as_uri())
        browser.execute_script(UNFOLD)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_control_of_the_front_page_is_reached_by_tab_and_shows_it(browser, site):
    browser.get((site / "index.html").as_uri())
    controls = browser.execute_script(
        "return [...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')]"
        ".filter((each) => each.checkVisibility()).length"
    )
    state = (
        "const at = document.activeElement, look = getComputedStyle(at), box = at.getBoundingClientRect();"
        "return [at.tagName, at.className, look.outlineStyle, box.left >= 0, at.textContent.slice(0, 20)]"
    )
    seen = []
    for _ in range(controls):
        press(browser, "TAB")
        seen.append(browser.execute_script(state))
    assert seen[0][1] == "skip" and all(at != "BODY" for at, *_ in seen), "fewer than there are"
    assert all(style != "none" and inside for _, _, style, inside, _ in seen), "in focus, and nobody sees it"
    browser.execute_script("document.querySelector('summary').focus()")
    press(browser, "ENTER")
    assert browser.execute_script("return document.querySelector('details').open")
    browser.execute_script("document.querySelector('.skip').focus()")
    press(browser, "ENTER")
    assert browser.current_url.endswith("#answers")


def test_a_hostile_machine_does_not_execute(browser, site):
    browser.get((site / "index.html").as_uri())
    text = browser.execute_script("return document.body.innerText")
    assert published.HOSTILE.format("gpu") in text and not browser.execute_script("return window.hacked")
