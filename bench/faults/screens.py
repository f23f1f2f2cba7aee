"""Takes the pictures of the page that the documentation shows, of a run of the corpus.

python -m bench.faults.screens docs/figures    writes page-*.png; needs Chromium and its driver
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from selenium import webdriver

from bench.faults.cases import run_case
from bench.faults.faults import FAULTS
from hookstats.runs.run import open_run

FAULT = "init/large-gpt-attention"
WIDTH = 1240
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as out:
        (fault,) = (one for one in FAULTS if one.name == FAULT)
        run_case(fault.base, fault, 0, out=Path(out, "large-attention"))
        page = open_run(Path(out, "large-attention")).report()
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS, f"--user-data-dir={out}/profile"):
            options.add_argument(flag)
        # Named, so that selenium asks no network for a driver.
        driver = webdriver.ChromeService(shutil.which("chromedriver"))
        browser = webdriver.Chrome(options, driver)
        try:
            for theme in ("light", "dark"):
                _open(browser, page, theme)
                _save(browser, directory / f"page-{theme}.png", "#overview", 930)
                _save(browser, directory / f"page-details-{theme}.png", "#detail", 760)
        finally:
            browser.quit()


def _open(browser: Any, page: Path, theme: str) -> None:
    """Show the page on a screen of `WIDTH`, in a theme."""
    size = {"width": WIDTH, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get("about:blank")
    browser.get(page.as_uri())
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 500))")


def _save(browser: Any, path: Path, panel: str, height: int) -> None:
    """A picture of the page from the top of a panel on, over its whole width."""
    top = browser.execute_script(
        "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY", panel
    )
    clip = {"x": 0, "y": max(0, top - 16), "width": WIDTH, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main()
