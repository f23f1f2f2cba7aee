"""Takes the pictures of the page that the documentation shows: of a run of the corpus, and of the
tutorial's.

python -m bench.faults.screens docs/figures    writes page-*.png and tutorial-*.png; needs Chromium
                                               and its driver
"""

from __future__ import annotations

import base64
import io
import os
import re
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
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
WIDTH = 1240
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as out:
        (fault,) = (one for one in FAULTS if one.name == FAULT)
        run_case(fault.base, fault, 0, out=Path(out, "large-attention"))
        pages = {
            "page": open_run(Path(out, "large-attention")).report(),
            "tutorial": open_run(_tutorial(Path(out))).report(),
        }
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS, f"--user-data-dir={out}/profile"):
            options.add_argument(flag)
        # Named, so that selenium asks no network for a driver.
        driver = webdriver.ChromeService(shutil.which("chromedriver"))
        browser = webdriver.Chrome(options, driver)
        try:
            for theme in ("light", "dark"):
                for name, page in pages.items():
                    _open(browser, page, theme)
                    _save(browser, directory / f"{name}-{theme}.png", "#overview")
                    _save(browser, directory / f"{name}-details-{theme}.png", "#detail")
        finally:
            browser.quit()


def _tutorial(out: Path) -> Path:
    """The run of the tutorial's program, which trains with the bug."""
    program = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text("utf-8"), re.DOTALL)[0]
    before = Path.cwd()
    os.chdir(out)
    try:
        exec(compile(program, str(TUTORIAL), "exec"), {"__name__": "__main__"})
    finally:
        os.chdir(before)
    return out / "runs" / "digits"


def _open(browser: Any, page: Path, theme: str) -> None:
    """Show the page on a screen of `WIDTH`, in a theme."""
    size = {"width": WIDTH, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get("about:blank")
    browser.get(page.as_uri())
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 500))")


def _save(browser: Any, path: Path, panel: str) -> None:
    """A picture of a panel, over the whole width of the page."""
    box = "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
    top, height = browser.execute_script(f"{box} return [b.top + scrollY, b.height]", panel)
    clip = {"x": 0, "y": max(0, top - 16), "width": WIDTH, "height": height + 32, "scale": 1}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main()
