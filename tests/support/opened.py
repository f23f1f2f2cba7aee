"""Page: a report in the browser, for its tests: what it shows, by mouse and by keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.browser import requests


def number(text: str) -> float:
    """The number that the page writes so."""
    return float(text.replace("\u2212", "-").replace("\u2013", "nan").replace(",", ""))


def open_page(browser: Any, url: str) -> None:
    """Open a report, and wait until it shows all that it has: the heatmap comes first."""
    browser.get(url)
    whole = "return document.getElementById('main').dataset.whole !== undefined"
    _wait(lambda: bool(browser.execute_script(whole)))


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the page did not get there"
        time.sleep(0.02)


class Page:
    """The report in the browser."""

    def __init__(self, browser: Any, path: Path) -> None:
        from selenium.webdriver.common.keys import Keys

        self.browser, self.keys = browser, Keys
        requests(browser), browser.get_log("browser")  # of the page before
        open_page(browser, path.as_uri())

    def __getitem__(self, name: str) -> Any:
        return self.browser.find_element("id", name)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.browser.find_elements("css selector", selector)
        return found

    def wait(self, condition: Callable[[], bool]) -> None:
        _wait(condition)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(code, *arguments)

    def press(self, element: Any, *keys: str) -> None:
        element.send_keys(*keys)

    def click(self, element: Any, x: float, y: float) -> None:
        """Click `element` at a share of its width and height."""
        from selenium.webdriver import ActionChains

        size = element.rect
        offset = (round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"]))
        ActionChains(self.browser).move_to_element_with_offset(element, *offset).click().perform()

    def choose(self, statistic: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self["statistic"]).select_by_value(statistic)

    def kind(self, kind: str) -> None:
        self.script("document.querySelector(`#kinds [value='${arguments[0]}']`).click()", kind)

    def pixel(self, canvas: str, x: float, y: float) -> list[int]:
        """Red, green, blue, opacity at a share of a canvas's width and height."""
        code = """
            const canvas = document.querySelector(arguments[0]);
            const [x, y] = [arguments[1] * canvas.width, arguments[2] * canvas.height];
            const pixel = new OffscreenCanvas(1, 1).getContext("2d");
            pixel.drawImage(canvas, -Math.floor(x), -Math.floor(y));
            return [...pixel.getImageData(0, 0, 1, 1).data];
        """
        found: list[int] = self.script(code, canvas, x, y)
        return found

    def contrasts(self) -> list[float]:
        """How far the colour of each row of the heatmap is from that of the page, in the chosen
        column, beside its marks: 0 to 442."""
        code = """
            const canvas = document.querySelector("#heatmap canvas");
            const [rows, columns, column, left] =
              ["rows", "columns", "column", "left"].map((name) => Number(canvas.dataset[name]));
            const style = getComputedStyle(document.getElementById("overview"));
            const page = style.backgroundColor.match(/\\d+/g).map(Number);
            const wide = (canvas.clientWidth - left) / columns;
            const x = left + (column + 0.25) * wide;
            const pixel = new OffscreenCanvas(1, 1).getContext("2d");
            return Array.from({ length: rows }, (_, r) => {
              const y = ((r + 0.3) * canvas.clientHeight) / rows;
              pixel.drawImage(canvas, -Math.floor(x), -Math.floor(y));
              const colour = pixel.getImageData(0, 0, 1, 1).data;
              return Math.hypot(...page.slice(0, 3).map((c, k) => c - colour[k]));
            });
        """
        found: list[float] = self.script(code)
        return found

    @property
    def heatmap(self) -> Any:
        return self["heatmap"]

    @property
    def chosen(self) -> tuple[str, str]:
        """The layer and the step that the details show."""
        return self["detail-title"].text, self["when"].text

    @property
    def link(self) -> str:
        """The address, which follows once nothing has been pressed for a while."""
        time.sleep(0.3)
        found: str = self.browser.current_url
        return found

    def tiles(self) -> dict[str, str]:
        return dict(
            zip(
                (tile.text for tile in self.all("#tiles dt")),
                (tile.text for tile in self.all("#tiles dd")),
                strict=True,
            )
        )
