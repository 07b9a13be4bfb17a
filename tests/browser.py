"""Fixtures for tests of pages in a real browser: one Chromium per test session, and checks for every page.

`open_page` fails a test if its page logs an unexpected error on the console. Tests of pages call `contrast`
and `reachable`; `shows` waits for an element or a text. This module does not depend on topdp.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
PAGE_TIMEOUT_MILLISECONDS = 15_000  # generous, for a busy machine

Open = Callable[..., Any]


def program() -> str | None:
    """The path of Chromium: TOPDP_CHROMIUM, or the first on the path."""
    named = os.environ.get("TOPDP_CHROMIUM")
    return named or next((found for name in CHROMIUM if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Any]:
    """Yield Playwright's browser and its event loop, shared by all tests."""
    found = program()
    playwright = pytest.importorskip("playwright.sync_api", reason="Browser tests need playwright.")
    if found is None:
        pytest.skip("Browser tests need Chromium: apt-get install chromium, or name it in TOPDP_CHROMIUM.")
    with playwright.sync_playwright() as started:
        loop = asyncio.get_running_loop()
        opened = started.chromium.launch(
            executable_path=found,
            # Containers have no namespaces to put a sandbox in, and a small /dev/shm.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        yield opened, loop
        asyncio._set_running_loop(loop)
        opened.close()


@pytest.fixture
def browser(_chromium: Any) -> Iterator[Any]:
    """Playwright's browser. Without a browser, the tests that need it are skipped with a reason.

    Its event loop counts as running in this thread as long as it exists, so it exists for one test only:
    otherwise no later test in the session could have its own event loop.
    """
    opened, loop = _chromium
    asyncio._set_running_loop(loop)
    yield opened
    asyncio._set_running_loop(None)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """`open_page(url, dark=False, phone=False, expects=())` -> a Playwright page.

    `url`: an address, or the path of a file. `expects`: parts of the console errors that this test causes,
    such as "Failed to load resource" if it stops a server; any other error makes the test fail at its end.
    """
    contexts: list[Any] = []
    errors: list[str] = []

    def open(
        url: str | Path, dark: bool = False, phone: bool = False, expects: tuple[str, ...] = (), **more: Any
    ) -> Any:
        context = browser.new_context(
            viewport=PHONE if phone else DESK, color_scheme="dark" if dark else "light", **more
        )
        contexts.append(context)
        context.set_default_timeout(PAGE_TIMEOUT_MILLISECONDS)

        def note(text: str) -> None:
            if not any(part in text for part in expects):
                errors.append(text)

        page = context.new_page()
        page.on("console", lambda said: note(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: note(str(error)))
        page.goto(url.absolute().as_uri() if isinstance(url, Path) else url)
        return page

    yield open
    for context in contexts:
        context.close()
    assert not errors, "the browser's console: " + "; ".join(errors)


def shows(page: Any, selector: str, text: str | re.Pattern[str] | None = None) -> Any:
    """Wait until an element is visible (and contains `text`), and return it."""
    found = page.locator(selector)
    if text is not None:
        found = found.filter(has_text=text)
    found.first.wait_for(state="visible")
    return found.first


def contrast(page: Any) -> None:
    """Check the contrast of every visible text with its background: 4.5 to 1, large text 3 to 1.

    WCAG 2.2, success criterion 1.4.3; text on pictures and canvases is not checked.
    """
    faint = page.evaluate(CONTRAST)
    assert not faint, "too faint: " + "; ".join(faint[:10])


def reachable(page: Any) -> None:
    """Check that Tab reaches every control and that the focus is visible.

    WCAG 2.2, success criteria 2.1.1 and 2.4.7. Tab reaches only one of several radio buttons with one name.
    """
    wanted = page.evaluate(NUMBER_CONTROLS)
    met: dict[int, bool] = {}
    page.evaluate("document.activeElement && document.activeElement.blur(); window.scrollTo(0, 0)")
    for _ in range(2 * len(wanted) + 20):
        page.keyboard.press("Tab")
        number, seen = page.evaluate(FOCUS)
        if number in met:
            break
        if number is not None:
            met[number] = seen
    missed = [words for number, words in enumerate(wanted) if number not in met]
    assert not missed, "Tab does not come to: " + "; ".join(missed[:10])
    unseen = [wanted[number] for number, seen in met.items() if not seen]
    assert not unseen, "focus cannot be seen on: " + "; ".join(unseen[:10])


CONTRAST = """() => {
  const channels = colour => {
    const canvas = channels.canvas ||= new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => {
    const a = top[3] + below[3] * (1 - top[3]);
    if (!a) return [0, 0, 0, 0];
    return [0, 1, 2].map(k => (top[k] * top[3] + below[k] * below[3] * (1 - top[3])) / a).concat(a);
  };
  const behind = element => {
    let found = [0, 0, 0, 0];
    for (let one = element; one; one = one.parentElement)
      found = over(found, channels(getComputedStyle(one).backgroundColor));
    // What nothing paints is the browser's own canvas.
    return over(found, channels("Canvas"));
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const text = node.textContent.trim(), element = node.parentElement;
    if (!text || !element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    if (["SCRIPT", "STYLE", "OPTION", "NOSCRIPT"].includes(element.tagName)) continue;
    if (element.closest("svg, [aria-hidden=true], :disabled")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const back = behind(element), front = over(channels(style.color), back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5) - 0.005)
      faint.push(`"${text.slice(0, 40)}" ${ratio.toFixed(2)} (${style.color} on ${back.map(Math.round)})`);
  }
  return faint;
}"""

NUMBER_CONTROLS = """() => {
  const usable = element => {
    if (element.disabled || element.tabIndex < 0 || element.closest("[inert]")) return false;
    if (!element.checkVisibility({checkVisibilityCSS: true})) return false;
    if (element.type !== "radio" || !element.name) return true;
    const group = [...document.querySelectorAll(`input[type=radio][name="${CSS.escape(element.name)}"]`)];
    return element === (group.find(one => one.checked) || group[0]);
  };
  const found = [...document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]")].filter(usable);
  found.forEach((element, number) => { element.topdpNumber = number; });
  return found.map(one => one.outerHTML.slice(0, 80));
}"""

# The focus may add a ring, shadow or border: the same element is measured again without it.
FOCUS = """() => {
  const element = document.activeElement;
  if (!element || element.topdpNumber === undefined) return [null, false];
  const look = () => {
    const style = getComputedStyle(element);
    const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 ? style.outline : "";
    return [ring, style.boxShadow, style.borderColor, style.backgroundColor, style.textDecoration].join("|");
  };
  const ring = getComputedStyle(element).outlineStyle !== "none";
  if (ring) return [element.topdpNumber, true];
  const focused = look();
  element.blur();
  const plain = look();
  element.focus({preventScroll: true});
  return [element.topdpNumber, focused !== plain];
}"""
