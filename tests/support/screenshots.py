"""Pictures of the published site and of a full report, after `asv publish`: `python -m tests.support.screenshots`.

Drawn from whatever lies in results/: no picture shows a machine that did not run.
"""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from tests.support.browsing import look, started, until

ROOT = Path(__file__).resolve().parents[2]
SITE, IMAGES = ROOT / ".asv" / "html", ROOT / "docs" / "images"
REPORT = "nvidia-h100-80gb-hbm3-article-article"


def main() -> None:
    with tempfile.TemporaryDirectory() as profile, started(Path(profile)) as browser:
        for theme in ("light", "dark"):
            look(browser, theme)
            visit(browser, "index.html")
            save(browser, f"site-{theme}", 1000)
            visit(browser, f"reports/{REPORT}.html")
            save(browser, f"report-{theme}", 1240)
        look(browser, "light")
        for name, page in (("history", "history-nvidia-h200"), ("slower", "history")):
            visit(browser, f"{page}.html")
            save(browser, f"site-{name}", 1000)


def visit(browser: Any, page: str) -> None:
    """Open a page with all its pictures, also those below the window."""
    browser.get((SITE / page).as_uri())
    browser.execute_script("[...document.images].forEach((each) => { each.loading = 'eager'; })")
    until(browser, "[...document.images].every((each) => each.complete)", "a picture is missing")


def save(browser: Any, name: str, height: float) -> None:
    clip = {"x": 0, "y": 0, "width": 1400, "height": height, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    print(f"docs/images/{name}.png")


if __name__ == "__main__":
    main()
