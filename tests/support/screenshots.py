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

from ladder.publish.history.series import STEP
from tests.support.browsing import look, served, started, until

ROOT = Path(__file__).resolve().parents[2]
SITE, IMAGES = ROOT / ".asv" / "html", ROOT / "docs" / "images"
MACHINE, WORKLOAD = "nvidia-h200", "article"
REPORT = "nvidia-h100-80gb-hbm3-article-article"


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as profile,
        started(Path(profile)) as browser,
        served(SITE) as address,
    ):
        for theme in ("light", "dark"):
            look(browser, theme)
            browser.get((SITE / "index.html").as_uri())
            save(browser, f"site-{theme}", 1000)
            browser.get((SITE / "reports" / f"{REPORT}.html").as_uri())
            save(browser, f"report-{theme}", 1240)
        look(browser, "light")  # before the page is loaded: its pictures change a moment later
        browser.get((SITE / "index.html").as_uri())
        history = browser.execute_script(
            "const box = document.querySelector('#history').getBoundingClientRect(); return [box.top, box.height]"
        )
        save(browser, "site-history", history[1] + 40, history[0] - 20)
        asked = f"x-axis=rung&machine={MACHINE}&p-workload='{WORKLOAD}'"
        browser.get(f"{address}/asv/index.html#{STEP}?{asked}")
        until(browser, "window.$ && $('#main-graph').data('plot')", "no graph")
        save(browser, "site-asv-ladder", 860)


def save(browser: Any, name: str, height: float, top: float = 0) -> None:
    clip = {"x": 0, "y": top, "width": 1400, "height": height, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    print(f"docs/images/{name}.png")


if __name__ == "__main__":
    main()
