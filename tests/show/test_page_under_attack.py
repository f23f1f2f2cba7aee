"""The report's page in a real browser, of a run whose every text is a script: none of it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.browser import requests, screen
from support.opened import open_page
from support.rewritten import rewritten
from support.samples import BINS, CHANNEL_BINS, record_of

from hookstats.records.alerts import SCALAR, SEVERITIES, Alert
from hookstats.runs.alerts import AlertEntry
from hookstats.runs.format import PART_KEY, PartName
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter
from hookstats.show import page

pytestmark = pytest.mark.check

EVIL = (
    "<script>window.owned = 1</script>",
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 1'>",
    "\"><svg onload='window.owned = 1'>",
    "' autofocus onfocus='window.owned = 1' x='",
    "javascript:window.owned=1",
    "${window.owned = 1}`; window.owned = 1; //",
    "$script $payload ${title}",
    "<!--<script>",
    "]]>--></style></title></textarea><script>window.owned = 1</script>",
    "\u2028window.owned = 1\u2029",
    "__proto__",
    "<iframe srcdoc='<script>parent.owned = 1</script>'>",
    "<meta http-equiv=refresh content='0;url=https://example.com/'>",
    "<link rel=stylesheet href=https://example.com/x.css>",
    "&lt;img src=x onerror=window.owned=1&gt;",
)


def _alert(step: int, i: int) -> Alert:
    text, other = EVIL[i], EVIL[-1 - i]
    kind = ("output", "fake:output", SCALAR, other)[i % 4]
    severity = SEVERITIES[i % 3]
    return Alert(step, 0, text, kind, 1, other, 1.0, f"{other}: step {step}: {text}", severity)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with these texts as names, kinds, dtypes, classes, versions, errors, in
    phases, of scalars, and in all that alerts say."""
    scratch = tmp_path_factory.mktemp("attack")
    out = scratch / "<img src=x onerror='window.owned = 1'>"
    texts = list(EVIL)
    header = {
        "bins": BINS,
        "channel_bins": CHANNEL_BINS,
        "model": texts[1],
        "modules": dict(zip(texts, reversed(texts), strict=True)),
        "parameters": {text: [3] for text in texts},
        "kinds": texts,
        "channel_dim": {text: text for text in texts},
        "torch": texts[2],
        texts[0]: texts[1],
    }
    writer = RunWriter(out, header, seconds_per_part=3600)
    kinds = ("output", "grad_output", *(f"output.{text}" for text in EVIL[:4]), EVIL[1])
    kinds += ("fake:output", *(f"fake:output.{text}" for text in EVIL[:2]), f"{EVIL[0]}:output")
    for step in range(6):
        scale = 1e6 if step > 3 else 1.0  # rules have something to say
        x = scale * torch.randn(4, 3)
        x[0, 0] = torch.nan if step > 4 else 0.0
        sites = {(text, kinds[i % len(kinds)]): (x, 1) for i, text in enumerate(texts)}
        sites |= {(text, "output"): (x, 1) for text in texts}
        writer.write(record_of(sites, step))
        writer.write_scalars(step, 1e9 + step, {text: float(step) for text in texts})
        told = [
            AlertEntry(_alert(step, i), i, step == 0, {text: text}) for i, text in enumerate(texts)
        ]
        writer.write_alerts(told)
    row = {"forwards": 2, "observed": 1, "backwards": 0, "missing": 0}
    rows = [
        {"name": text, "kind": text, "error": text, "skipped": {text: 1}, **row} for text in texts
    ]
    failures = {text: text for text in texts}
    writer.close({"rows": rows, "steps": 6, "discarded": 0, "stalls": 0, "failures": failures})
    path = out / "run-00000.json"
    content = json.loads(path.read_text())
    content |= {"created": texts[1], "closed": texts[3], "hookstats": texts[4]}
    path.write_text(json.dumps(content))
    (part,) = (out / "tensors").iterdir()
    table = pq.read_table(part)
    at = table.schema.get_field_index("dtype")
    field = table.schema.field(at)
    types = pa.array([texts[i % len(texts)] for i in range(table.num_rows)]).dictionary_encode()
    about = pq.read_metadata(part).metadata[PART_KEY].decode()
    part.write_bytes(rewritten(table.set_column(at, field, types.cast(field.type)), about))
    damaged = PartName(rank=0, number=1, session=0, step=9)
    (part.parent / str(damaged)).write_text(EVIL[1])
    with pytest.warns(RuntimeWarning, match="left out"):
        return page.write(open_run(out, skip_damaged=True), scratch / "report.html")


USE = """
    const done = arguments[0];
    const wait = () => new Promise((resolve) => setTimeout(resolve, 5));
    (async () => {
      for (let node of document.querySelectorAll("select")) {
        for (const option of [...node.options]) {
          node.value = option.value;
          node.dispatchEvent(new Event("input", {bubbles: true}));
          node.dispatchEvent(new Event("change", {bubbles: true}));
          await wait();
        }
      }
      const used = "input, button, summary, [tabindex], li, td";
      for (const node of [...document.querySelectorAll(used)]) {
        node.focus?.();
        node.click?.();
        for (const kind of ["pointermove", "mousemove", "pointerdown"]) {
          node.dispatchEvent(new PointerEvent(kind, {bubbles: true, clientX: 300, clientY: 300}));
        }
        await wait();
      }
      const heatmap = document.getElementById("heatmap");
      for (const key of ["Home", ...Array(40).fill("ArrowDown"), "ArrowRight", "End", "Enter"]) {
        heatmap.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
        await wait();
      }
    })().then(() => done("used"), (error) => done(String(error)));
"""


def test_no_text_of_a_run_becomes_a_script(browser: Any, report: Path) -> None:
    screen(browser, 1280, 800)
    requests(browser), browser.get_log("browser")
    open_page(browser, report.as_uri())
    browser.set_script_timeout(60)
    assert browser.execute_async_script(USE) == "used"
    assert browser.execute_script("return window.owned") is None
    assert browser.execute_script("return ({}).owned") is None
    # The only scripts are the page's own, and no text became an element.
    inside = "return document.querySelectorAll(arguments[0]).length"
    template = (Path(page.__file__).parent / "assets" / "page.html").read_text()
    assert browser.execute_script(inside, "script") == template.count("<script")
    assert browser.execute_script(inside, "iframe, img, object, embed, base, form") == 0
    handlers = """
        return [...document.querySelectorAll("*")].flatMap(
            (node) => node.getAttributeNames().filter((name) => name.startsWith("on")))
    """
    assert browser.execute_script(handlers) == []
    shown = browser.execute_script("return document.body.innerText")
    assert EVIL[1] in shown  # as the text that it is
    assert requests(browser) == [report.as_uri()]
    assert browser.get_log("browser") == []


def test_without_scripts_the_page_is_as_harmless(browser: Any, report: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(report.as_uri())
        fallback = browser.find_element("css selector", "noscript")
        assert EVIL[1] in fallback.text
        assert fallback.find_elements("css selector", "img, iframe, script, svg, link") == []
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert requests(browser) == [report.as_uri()]
