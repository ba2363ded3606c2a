"""The page in headless Chromium: sort, filter, drill down, keyboard, themes, phone, and text that stays text."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from fewnlu.reporting.page import embedded, page
from fewnlu.reporting.paper import paper_tables
from fewnlu.reporting.studies import read_studies, summarise
from fewnlu.reporting.sure import sure_table
from tests.reporting.browser import Browser, available
from tests.reporting.trees import Tree

EVIL = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'> & </script><!--"
ROWS = (
    "return [...document.querySelectorAll('[data-table=%s] tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
)


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("page") / "main"
    tree = Tree(root, texts={i: f"{EVIL} number {i}" for i in range(60)})
    tree.study(hs=6)
    tree.study(method="cls", quality=-0.8)
    tree.study(split="cv", k_total=4, fail=(0, 1))
    return write(root)


def write(root: Path, *, text: bool = True, name: str = "index.html") -> Path:
    summaries = [summarise(s) for s in read_studies([root])]
    out = root.parent / name
    tables = [sure_table(summaries), *paper_tables(summaries)]
    out.write_text(
        page(summaries, tables, ["a warning about <b>versions</b>"], root.parent, text=text), encoding="utf-8"
    )
    return out


@pytest.fixture(scope="module")
def browser():
    why = available()
    if why:
        pytest.skip(why)
    with Browser() as found:
        yield found


def test_the_page_is_one_file_without_network_or_markup_from_data(html):
    text = html.read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", text) and "@import" not in text and "url(" not in text
    assert "default-src 'none'" in text
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    assert "<" not in block and ">" not in block and "&" not in block
    data = json.loads(block)
    (texts,) = data["texts"].values()
    assert all(t.startswith(EVIL) for t in texts.values())
    assert all(not s["folder"].startswith("/") for s in data["studies"])


def test_no_text_leaves_texts_out(html):
    closed = write(html.parent / "main", text=False, name="closed.html").read_text(encoding="utf-8")
    assert "pwned" not in closed and "left out" in closed and "t000" in closed


def test_other_rows_than_those_scored_are_not_shown(tmp_path):
    tree = Tree(tmp_path / "main")
    tree.study()
    with open(tree.data / "test.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "new", "text": "changed since", "label": "positive"}) + "\n")
    assert "changed since" not in write(tmp_path / "main").read_text(encoding="utf-8")


def test_embedded_json_survives_any_text():
    evil = {"a": "</script><!--\u2028\u2029&", "b": [float("nan"), 0.1234567891]}
    text = embedded(evil)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": evil["a"], "b": [None, 0.123457]}


def test_sorts_filters_and_drills_down(browser, html):
    browser.open(html)
    assert browser.js("return document.querySelector('h1').textContent") == "Studies"
    rows = browser.js(ROWS % "studies")
    assert len(rows) == 3

    def sort(table: str, column: str) -> str:
        return browser.js(
            "const b = [...document.querySelectorAll(`[data-table=${arguments[0]}] th button`)]"
            ".find(b => b.textContent === arguments[1]); b.click(); return b.parentNode.getAttribute('aria-sort')",
            table,
            column,
        )

    def column(table: str, number: int) -> list[str]:
        return [r[number] for r in browser.js(ROWS % table)]

    assert sort("studies", "test of h*") == "descending"  # scores: best first
    scores = [float(x.split(" ")[0]) for x in column("studies", 8)]
    assert scores == sorted(scores, reverse=True)
    assert sort("studies", "test of h*") == "ascending"
    assert [float(x.split(" ")[0]) for x in column("studies", 8)] == sorted(scores)
    assert "sorted by test of h*" in browser.js("return document.getElementById('live').textContent")

    pick = (
        "const s = document.querySelector('[data-pick=method]'); s.value = arguments[0]; "
        "s.dispatchEvent(new Event('change'))"
    )
    browser.js(pick, "CLS")
    assert set(column("studies", 2)) == {"CLS"}
    browser.js(pick, "")
    browser.js(
        "const f = document.querySelector('[data-filter=studies]'); f.value = 'cv'; f.dispatchEvent(new Event('input'))"
    )
    assert column("studies", 4) == ["CV (K=4)"]
    assert column("studies", 12) == ["1"]  # failed

    browser.js("document.querySelector('[data-table=studies] tbody a').click()")
    wait(browser, "CV (K=4)")
    assert "out of memory" in browser.js("return document.getElementById('main').textContent")
    browser.js("document.querySelector('[data-table=hs] tr.star a').click()")
    wait(browser, "h*: ")
    assert len(browser.js(ROWS % "runs")) == 4
    assert browser.js("return document.activeElement.tagName") == "H1"  # a screen reader hears where it is
    browser.js("document.querySelector('[data-table=runs] tbody a').click()")
    wait(browser, "Run k0-r0")
    wrong = browser.js(ROWS % "rows")
    assert wrong and all(r[1] != r[2] for r in wrong)
    assert browser.js("return document.querySelectorAll('#crumbs a').length") == 3
    assert browser.errors() == []


def test_seeds_that_differ_are_a_column_and_captions_are_text(browser, tmp_path):
    tree = Tree(tmp_path / "main")
    for train in (1, 2):
        tree.study(hs=2, seeds={"data": 42, "split": 42, "train": train}, metrics=("accuracy", "macro_f1"))
    html = write(tmp_path / "main")
    browser.open(html)
    assert [r[5] for r in browser.js(ROWS % "studies")] == ["train 1", "train 2"]
    browser.open(html, "#/s/0")
    text = browser.js("return document.getElementById('main').textContent")
    assert "test mean of accuracy and macro-F1" in text and "12 of 12 done" not in text and "8 of 8 done" in text
    assert "● k0-r0" in text and "[object" not in text
    assert "95 % interval of test mean of accuracy and macro-F1" in text and "linearised" in text
    ticks = browser.js("return [...document.querySelectorAll('figure svg text')].map(t => t.textContent)")
    numbers = [t for t in ticks if t.replace(".", "").replace("-", "").isdigit()]
    assert len(numbers) > 8 and all(len(t) <= 4 for t in numbers)  # round ones


def wait(browser: Browser, title: str) -> None:
    for _ in range(50):
        if title in browser.js("return document.querySelector('h1').textContent"):
            return
        time.sleep(0.05)
    raise AssertionError(f"no page titled {title}")


def test_links_lead_to_the_same_place_when_more_studies_are_there(browser, tmp_path):
    tree = Tree(tmp_path / "main")
    tree.study(hs=2, method="pet", seeds={"data": 42, "split": 42, "train": 2})
    html = write(tmp_path / "main")
    browser.open(html)
    browser.js("document.querySelector('[data-table=studies] tbody a').click()")
    browser.js("document.querySelectorAll('[data-table=hs] tbody a')[1].click()")
    link, title = browser.js("return [location.hash, document.querySelector('h1').textContent]")
    assert "train2" in link and "/h/" in link
    for seed in (1, 3):
        tree.study(hs=2, method="pet", seeds={"data": 42, "split": 42, "train": seed})
    html = write(tmp_path / "main")
    browser.open(html, link)
    assert browser.js("return [location.hash, document.querySelector('h1').textContent]") == [link, title]
    browser.js("document.querySelector('[data-table=runs] tbody a').click()")
    wait(browser, "Run k0-r0")
    assert "train2" in browser.js("return location.hash")
    browser.open(html, "#/s/gone%ZZ/h/1")
    assert browser.js("return document.querySelector('h1').textContent") == "Studies" and browser.errors() == []


def test_text_from_data_shows_as_text(browser, html):
    browser.open(html, "#/s/1")
    shown = [r[4] for r in browser.js(ROWS % "rows")]
    assert shown and all(t.startswith(EVIL) for t in shown)
    assert browser.js(
        "return window.pwned === undefined && document.querySelectorAll('main script, main img').length === 0"
    )
    browser.open(html)
    assert "<b>versions</b>" in browser.js("return document.querySelector('.warn').textContent")


def test_keyboard_and_table_semantics(browser, html):
    browser.open(html)
    assert browser.js(
        "return [...document.querySelectorAll('th')].every(t => t.scope === 'col' && t.hasAttribute('aria-sort'))"
    )
    assert browser.js("return [...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent)")
    assert browser.js("return [...document.querySelectorAll('input, select')].every(i => i.labels.length === 1)")
    assert browser.js("return document.documentElement.lang") == "en"
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    spoken = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert ("columnheader", "test of h*") in spoken  # without the arrow, which aria-sort says
    names = [name for role, name in spoken if role == "link"]
    assert len(names) == 3 and all("toy, " in name and "seed" not in name for name in names)
    assert ("button", "Dark theme") in spoken or ("button", "Light theme") in spoken
    assert all(name for role, name in spoken if role in ("button", "link", "table", "region", "combobox", "img"))
    seen = []
    for _ in range(12):
        browser.keys("\ue004")
        seen.append(browser.js("return document.activeElement.textContent.trim()"))
    assert "task" in seen and "method" in seen  # headers are reached by Tab
    browser.js("document.querySelector('[data-table=studies] th button').focus()")
    browser.keys("\ue007")
    assert (
        browser.js("return document.querySelector('[data-table=studies] th').getAttribute('aria-sort')") == "ascending"
    )
    assert browser.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_both_themes_are_readable_and_the_page_fits_a_phone(browser, html):
    contrast = """
      const rgb = c => c.match(/[\\d.]+/g).map(Number);
      const part = v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
      const lum = c => { const [r, g, b] = rgb(c).map(part);
        return .2126 * r + .7152 * g + .0722 * b; };
      const back = lum(getComputedStyle(document.body).backgroundColor);
      return [...document.querySelectorAll('h1, p, td, td a, th button, caption, dt, .wrong, summary')].map(e => {
        const l = lum(getComputedStyle(e).color); return (Math.max(l, back) + .05) / (Math.min(l, back) + .05); })"""
    backgrounds = []
    for scheme in ("light", "dark"):
        browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for fragment in ("", "#/s/1"):
            browser.open(html, fragment)
            assert min(browser.js(contrast)) >= 4.5
        backgrounds.append(browser.js("return getComputedStyle(document.body).backgroundColor"))
        if os.environ.get("FEWNLU_SCREENSHOTS"):
            browser.screenshot(Path(os.environ["FEWNLU_SCREENSHOTS"]) / f"page-{scheme}.png")
    assert backgrounds[0] != backgrounds[1]
    browser.js("document.getElementById('theme').click()")  # the button overrides the system's choice
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == backgrounds[0]
    browser.js("document.getElementById('theme').click()")
    browser.command("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    try:
        for fragment in ("", "#/s/1", "#/s/1/h/0"):
            browser.open(html, fragment)
            assert browser.js("return document.documentElement.scrollWidth") <= 390  # tables scroll by themselves
            if os.environ.get("FEWNLU_SCREENSHOTS"):
                name = re.sub(r"\W+", "-", fragment) or "top"
                browser.screenshot(Path(os.environ["FEWNLU_SCREENSHOTS"]) / f"page-phone{name}.png")
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
