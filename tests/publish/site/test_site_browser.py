"""The site in a real browser with the network off: it loads, it works, and a hostile machine's name stays a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ladder.plan import catalog
from ladder.publish.site import building, collection
from ladder.publish.site.building import Content, render_front
from ladder.report.themes import DARK, LIGHT
from tests.support import browsing, published, two_clocks
from tests.support.browsing import BROWSER, CONTRAST, DRIVER, look, press, rgb, until
from tests.support.typed import typed

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
    for place in range(5):  # a picture is loaded when it is near: four ladders and a history
        browser.execute_script(f"document.images[{place}].scrollIntoView()")
        until(browser, f"document.images[{place}].naturalWidth > 100", f"picture {place}")
    shown = browser.execute_script("return [...document.images].map((i) => [i.alt, i.currentSrc])")
    assert len(shown) == 5
    assert all(len(alt) > 60 and "ms" in alt for alt, _ in shown)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == rgb((LIGHT if theme == "light" else DARK).ground)
    sources = browser.execute_script(
        "return [...document.querySelectorAll('source')].map((each) => new URL(each.srcset, document.baseURI).href)"
    )
    assert (
        [source for _, source in shown] == sources
        if theme == "dark"
        else not {source for _, source in shown} & set(sources)
    )
    poor = [(ratio, text) for ratio, text in browser.execute_script(CONTRAST) if ratio < 4.5]
    assert not poor


def test_ladders_stand_beside_each_other_on_one_scale(browser, site):
    browser.get((site / "index.html").as_uri())
    assert not browser.execute_script("return document.querySelector('#ladders article').checkVisibility()")
    browser.execute_script(UNFOLD)
    panels = browser.execute_script(
        "return [...document.querySelectorAll('#ladders article')].map((each) => "
        "[each.querySelector('h4').textContent, each.getBoundingClientRect().top])"
    )
    names = [name for name, _ in panels]
    assert names[:2] == ["NVIDIA A100", "NVIDIA H200"] and names[3] == "NVIDIA L40S single run"
    assert panels[0][1] == panels[1][1], "the second is below the first"
    alts = browser.execute_script("return [...document.images].map((each) => each.alt)")
    assert "FP32 baseline 96.1 ms" in alts[1] and "FP32 baseline 160 ms" in alts[0]


def test_the_first_screen_has_the_gpus_of_each_workload_side_by_side(browser, site):
    browser.get((site / "index.html").as_uri())
    cells = browser.execute_script(
        "return [...document.querySelectorAll('.card tr')].map((row) => "
        "[...row.cells].map((cell) => [cell.innerText, cell.getBoundingClientRect().bottom]))"
    )
    heads, baseline, top = ([text for text, _ in row] for row in cells)
    assert [head.splitlines()[0] for head in heads[1:]] == ["NVIDIA A100", "NVIDIA H200", "the article"]
    assert [each.split()[0] for each in baseline[1:]] == ["160", "96.1", "312"]
    assert "3.80x" in top[2] and "fused activation" in top[2] and "3.00x" in top[3]
    assert all(bottom < 1000 for row in cells for _, bottom in row), "below the first screen"


def test_a_narrow_window_scrolls_nothing_but_tables(browser, site):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        browser.get((site / "index.html").as_uri())
        wider = browser.execute_script(
            "return [...document.querySelectorAll('.card .scroll')].map((each) => each.scrollWidth - each.clientWidth)"
        )
        assert wider and max(wider) <= 0  # the answers need no scrolling
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_paper_is_light_and_no_card_or_chart_is_cut_at_the_end_of_a_page(browser, site):
    browser.get((site / "index.html").as_uri())
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    try:
        ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        whole = browser.execute_script(
            "return [...document.querySelectorAll('.card, .machine, img')].map((e) => getComputedStyle(e).breakInside)"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert ground == rgb(LIGHT.ground)
    assert len(whole) > 5 and set(whole) == {"avoid"}


def test_the_verdicts_of_both_clocks_fit_a_narrow_window(browser, tmp_path):
    names = [step.name for step in catalog.load_ladder("full").rungs]
    groups = collection.collect_groups(
        [(tmp_path / "a.json", typed(two_clocks.selected(*names)))], [], tmp_path
    )
    building.write_pictures(Content(groups), [], tmp_path)
    (tmp_path / "index.html").write_text(render_front(Content(groups)))
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get((tmp_path / "index.html").as_uri())
        browser.execute_script(UNFOLD)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        tables = browser.execute_script(
            "return [...document.querySelectorAll('.machine .scroll')].map((each) => "
            "[each.innerText, each.scrollWidth - each.clientWidth])"
        )
        assert len(tables) == len(groups) and all(more <= 0 for _, more in tables)
        assert all("GPU work" in text and "faster" in text for text, _ in tables)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_card_of_twelve_gpus_scrolls_and_can_be_read_on_a_phone(browser, tmp_path):
    found = []
    for number in range(12):
        data = two_clocks.run()
        data["machine"] |= {"gpu": f"NVIDIA H200 {number}", "name": f"nvidia-h200-{number}"}
        found.append((tmp_path / f"{number}.json", typed(data)))
    groups = collection.collect_groups(found, [], tmp_path)
    (tmp_path / "index.html").write_text(render_front(Content(groups)))
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get((tmp_path / "index.html").as_uri())
        widths = browser.execute_script(
            "return [...document.querySelectorAll('.card .gpu')].map((e) => e.offsetWidth)"
        )
        assert len(widths) >= 12 and min(widths) >= 60
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
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
    assert browser.current_url.endswith("#ladders")


def test_a_hostile_machine_does_not_execute(browser, site):
    browser.get((site / "index.html").as_uri())
    text = browser.execute_script("return document.body.innerText")
    assert published.HOSTILE.format("gpu") in text and not browser.execute_script("return window.hacked")
