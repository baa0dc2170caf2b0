"""The site in a real browser with the network off: it loads, it works, and a hostile machine's name stays a name."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.plan import catalog
from ladder.publish.history.series import STEP
from ladder.publish.site import asvpages, collected, front
from ladder.report.themes import DARK, LIGHT
from tests.support import browsing, published, two_clocks
from tests.support.browsing import BROWSER, CONTRAST, DRIVER, look, press, rgb, served, until
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


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    with served(site) as address:
        yield address


# --- the front page, opened from a folder ---------------------------------------------------------------------------

UNFOLD = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_front_page_works_by_double_click_in_light_and_dark(browser, site, theme):
    look(browser, theme)
    browser.get((site / "index.html").as_uri())
    shown = browser.execute_script(
        "return [...document.images].map((i) => [i.complete && i.naturalWidth > 100, i.alt, i.currentSrc])"
    )
    assert len(shown) == 5 and all(whole for whole, _, _ in shown)  # four ladders and a history
    assert all(len(alt) > 60 and "ms" in alt for _, alt, _ in shown)
    browser.execute_script(UNFOLD)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == rgb((LIGHT if theme == "light" else DARK).ground)
    sources = browser.execute_script(
        "return [...document.querySelectorAll('source')].map((each) => each.srcset)"
    )
    assert (
        [source for _, _, source in shown] == sources
        if theme == "dark"
        else not {source for _, _, source in shown} & set(sources)
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
    heights = browser.execute_script("return [...document.images].map((each) => each.naturalHeight)")
    assert len(set(heights[:4])) == 1
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
    groups = collected.groups([(tmp_path / "a.json", typed(two_clocks.selected(*names)))], [], tmp_path)
    (tmp_path / "index.html").write_text(front.page(groups, front.Histories({}, {}), [], [], {}, {}))
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
    groups = collected.groups(found, [], tmp_path)
    (tmp_path / "index.html").write_text(front.page(groups, front.Histories({}, {}), [], [], {}, {}))
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


# --- asv's pages ----------------------------------------------------------------------------------------------------

BARS = f"#{STEP}?x-axis=rung&machine=nvidia-h200&machine=nvidia-l40s&torch=2.11.0&p-workload='article'"
PLOT = "$('#main-graph').data('plot')"


def bars(browser: Any) -> list[list[tuple[str, float, float]]]:
    """What the graph draws: label, value and place of each bar, by series."""
    until(browser, f"!!window.$ && !!{PLOT} && {PLOT}.getData().length > 0", "no graph")
    drawn = browser.execute_script(
        f"return {PLOT}.getData().map((series) => [series.bars.show, series.data.map((at, index) => "
        "[at[0], at[1], series.datapoints.points[index * series.datapoints.pointsize]])])"
    )
    assert all(shown for shown, _ in drawn), "no bars"
    return [[tuple(bar) for bar in each if bar[1] is not None] for _, each in drawn]


def button(browser: Any, text: str) -> Any:
    """asv's button of that text that is shown."""
    found = [
        each
        for each in browser.find_elements("css selector", '[role="button"]')
        if each.is_displayed() and each.text == text
    ]
    assert len(found) == 1, (text, len(found))
    return found[0]


def test_asvs_page_draws_the_ladder_of_each_gpu_as_bars_and_filters_them(browser, server):
    browser.get(f"{server}/asv/index.html{BARS}")
    until(browser, f"window.$ && {PLOT} && {PLOT}.getData().length == 2", "not both machines")
    h200, l40s = sorted(bars(browser), key=len, reverse=True)
    assert [label for label, *_ in h200][:3] == ["baseline", "channels_last", "bf16"] and len(h200) == 10
    assert {label: value for label, value, _ in l40s}["baseline"] == pytest.approx(0.187) and len(l40s) == 8
    for index, (one, other) in enumerate(zip(h200, l40s, strict=False)):
        assert sorted((one[2], other[2])) == pytest.approx([index - 0.15, index + 0.15]), "not side by side"
    labels = browser.execute_script("return $('#main-graph .flot-x-axis').text()")
    assert "fused_resample" in labels
    axis = browser.execute_script(f"const a = {PLOT}.getAxes().xaxis; return [a.min, a.max, a.ticks.length]")
    assert axis == [-0.5, len(h200) - 0.5, len(h200)], "a bar is cut, or a rung has no label"
    button(browser, "nvidia-l40s").click()
    until(browser, f"{PLOT}.getData().length == 1", "the machine is still drawn")
    assert {label: place for label, _, place in bars(browser)[0]}["bf16"] == 2
    browser.execute_script("arguments[0].focus()", button(browser, "nvidia-l40s"))
    press(browser, "ENTER")
    until(browser, f"{PLOT}.getData().length == 2", "the keyboard does not press the button")


def test_asvs_grid_and_list_load_and_alert_nobody(browser, server):
    page = f"{server}/asv/index.html"
    browser.get(page)
    until(browser, "document.querySelectorAll('.benchmark-plot canvas').length > 0", "no graph in the grid")
    browser.get(f"{page}#/summarylist")
    until(browser, "document.querySelectorAll('#summarylist-body tr').length > 5", "no list")
    for machine, time in (("nvidia-l40s", "187.000ms"), ("nvidia-h200", "38.000ms")):
        button(browser, machine).click()
        until(browser, f"document.querySelector('#summarylist-body').innerText.includes('{time}')", machine)
    # A step of single processes is no verdict: the list has no column of changes, in red or green.
    heads = browser.execute_script("return $('#summarylist-body th:visible').get().map((e) => e.innerText)")
    assert heads == ["Benchmark", "Value"]
    assert "%" not in browser.execute_script("return document.querySelector('#summarylist-body').innerText")
    changes = "return $('.positive-change, .negative-change, .change-date').length"
    assert browser.execute_script(changes) == 0
    assert browser.execute_script("return $('#nav').text().toLowerCase().includes('regression')") is False
    browser.get("about:blank")
    browser.get(f"{page}#/regressions")  # an old address
    until(browser, "$('#summarygrid-display .benchmark-plot canvas:visible').length > 0", "not the grid")


def visit(browser: Any, page: str) -> str | None:
    """Open every page of asv, with the pointer over all that shows a tooltip. Returns who ran, if anybody."""
    for place in ("", f"#{STEP}", BARS, "#/summarylist"):
        browser.get("about:blank")
        browser.get(f"{page}{place}")
        until(browser, "window.$ && $.asv && $.asv.main_json.params && !$.active", "not loaded")
        selector = '[role="button"], .benchmark-plot, .benchmark-text, #main-graph, .nav-list li'
        for _ in range(3):  # in one script: what is drawn anew meanwhile would be gone before its turn
            point = (
                "$(arguments[0]).trigger('mouseenter').trigger('mouseover'); setTimeout(arguments[1], 120)"
            )
            browser.execute_async_script(point, selector)
        if ran := browser.execute_script("return window.hacked"):
            return ran
    return None


def test_a_hostile_machine_does_not_execute(browser, server, site):
    browser.get((site / "index.html").as_uri())
    text = browser.execute_script("return document.body.innerText")
    assert published.HOSTILE.format("gpu") in text and not browser.execute_script("return window.hacked")
    assert visit(browser, f"{server}/asv/index.html") is None
    browser.get(f"{server}/asv/index.html#{STEP}")
    name = published.EVIL["machine"]
    until(browser, f"$('[role=button]').filter((_, each) => each.innerText == {name!r}).length", "no button")
    assert browser.execute_script("return $('img[src=\"x\"]').length + $('script:not([src])').length") == 0


@pytest.mark.parametrize("wall", ["policy", "text"])
def test_each_of_two_walls_stops_it_alone_and_without_both_it_executes(chromium, site, tmp_path, wall):
    """The policy without the changes to asv's scripts, and the changes without the policy; then neither."""
    import asv

    www = Path(asv.__file__).parent / "www"
    shutil.copytree(site / "asv", tmp_path / "asv")

    def drop(which: str) -> None:
        if which == "text":
            for name in asvpages.REPLACED:
                shutil.copyfile(www / name, tmp_path / "asv" / name)
        else:
            page = tmp_path / "asv" / "index.html"
            page.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text()))

    with served(tmp_path) as server:
        drop("text" if wall == "policy" else "policy")
        assert visit(chromium, f"{server}/asv/index.html") is None
        if wall == "policy":
            drop("policy")
            assert visit(chromium, f"{server}/asv/index.html") is not None, "the attack is none"
    chromium.get_log("browser")
