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


PAGES = ["index.html", "history.html", "history-nvidia-h200.html"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_works_by_double_click_in_light_and_dark(browser, site, name, theme):
    look(browser, theme)
    browser.get((site / name).as_uri())
    browser.execute_script(UNFOLD)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == rgb((LIGHT if theme == "light" else DARK).ground)
    poor = [(ratio, text) for ratio, text in browser.execute_script(CONTRAST) if ratio < 4.5]
    assert not poor


@pytest.fixture
def phone(browser):
    size = {"width": 390, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


HINTS = """
return [...document.querySelectorAll('.scroll')].map((each) => [
    each.scrollWidth > each.clientWidth + 1, getComputedStyle(each, '::before').content.includes('scrolls'),
    each.getAttribute('aria-label')])
"""


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_nothing_but_tables_and_sees_which(phone, site, name):
    phone.get((site / name).as_uri())
    phone.execute_script(UNFOLD)
    until(phone, "[...document.querySelectorAll('details')].every((each) => each.open)", "a fold")
    assert phone.execute_script("return document.documentElement.scrollWidth") <= 390
    until(phone, "document.querySelector('.cut')", "a table that is wider than a phone")
    hints = phone.execute_script(HINTS)
    assert [label for is_wide, hint, label in hints if is_wide != hint] == []


def test_a_date_leaves_what_became_slower_since(browser, site):
    browser.get((site / "history.html").as_uri())
    days = "return [...document.querySelectorAll('#slower tbody tr')].filter((each) => !each.hidden)"
    days += ".map((each) => each.querySelector('time').textContent)"
    every = browser.execute_script(days)
    (last, *_), first = sorted({*every}, reverse=True), min(every)
    assert last > first and every == sorted(every, reverse=True)
    choose = "const at = document.querySelector('[data-since]'); at.value = arguments[0];"
    browser.execute_script(choose + "at.dispatchEvent(new Event('input'))", last)
    assert {*browser.execute_script(days)} == {last}
    count = browser.execute_script("return document.querySelector('output').textContent")
    assert count == f"{every.count(last)} of {len(every)}"


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
