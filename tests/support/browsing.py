"""A real browser without a network, for the tests of the site and for its screenshots."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

# A browser of root needs --no-sandbox; it opens only pages that were written here. No name resolves: no network.
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--window-size=1400,1000",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


# Contrast of every element that has text of its own, with the ground that is really behind it.
CONTRAST = """
const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
const light = (color) => numbers(color).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
const ground = (element) => {
    for (; element; element = element.parentElement) {
        const color = getComputedStyle(element).backgroundColor;
        if (numbers(color)[3] !== 0) return color;
    }
    return 'rgb(255, 255, 255)';
};
return [...document.querySelectorAll('body *')]
    .filter((element) => element.checkVisibility()
        && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((element) => {
        const [a, b] = [light(getComputedStyle(element).color), light(ground(element))];
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.trim().slice(0, 40)];
    });
"""


@contextmanager
def started(profile: Path) -> Iterator[Any]:
    """A selenium driver of the browser; ``profile``: an empty folder for it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER, log_output=os.devnull))
    try:
        yield driver
    finally:
        driver.quit()


def look(browser: Any, theme: str) -> None:
    """Let pages think that the reader prefers ``theme``, light or dark."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(browser: Any, script: str, what: str) -> Any:
    """Return the script's value as soon as it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60, 0.05).until(lambda it: it.execute_script(f"return {script}"), what)


def press(browser: Any, *keys: str) -> None:
    """Press keys by selenium's names, such as TAB."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    ActionChains(browser).send_keys(*[getattr(Keys, key) for key in keys]).perform()


def rgb(color: str) -> str:
    """Return a colour as a browser tells it."""
    return f"rgb({', '.join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))})"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """A browser that has seen nothing; a message on its console fails the test."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    look(chromium, "light")
    yield chromium
    assert chromium.get_log("browser") == []
