"""Accessibility of the dashboard: axe finds no violation in light and dark, and the keyboard reaches every part."""

import contextlib
from pathlib import Path

import pytest

from tests.ui.page import Page

AXE = (Path(__file__).parent / "axe/axe.min.js").read_text()
VIEWS = [
    "overview",
    "journal",
    "pool",
    "pool?part=chains",
    "pool?part=queue",
    "matches",
    "stored",
    "upstreams",
    "sessions?turns=1",
    "keys",
]
TAB, ENTER, ESCAPE, DOWN, RIGHT = "\ue004", "\ue007", "\ue00c", "\ue015", "\ue014"
READY = {"overview": ".bars li", "journal": ".row[id]", "pool": ".legend li", "pool?part=chains": ".branch"} | {
    "pool?part=queue": ".row[id]",
    "matches": ".match",
    "stored": ".row[id]",
    "upstreams": "main p",
    "sessions?turns=1": "main tbody tr",
    "keys": "main p",
}
# Collects the elements with focus, and those that do not show it.
WATCH = """
window.reached = new Set();
window.unseen = [];
document.addEventListener("focusin", ({ target }) => {
  window.reached.add(target);
  if (getComputedStyle(target).outlineStyle === "none") window.unseen.push(target.outerHTML);
});
"""


def has_no_violation(page: Page, **options: object) -> bool:
    """Whether axe finds nothing; otherwise raise an error that lists the violations."""
    page.run(f"if (!window.axe) {{ {AXE} }}")
    found = page.driver.execute_async_script(
        "axe.run(document, arguments[0]).then(arguments[1], error => arguments[1]({error: String(error)}))",
        {"resultTypes": ["violations"], **options},
    )
    assert "error" not in found, found
    told = [f"{each['id']}: {[node['html'][:160] for node in each['nodes']][:3]}" for each in found["violations"]]
    assert not told, told
    return True


@pytest.mark.parametrize(
    ("scheme", "width", "rules"), [("light", 1440, {}), ("dark", 390, {"runOnly": ["color-contrast"]})]
)
def test_axe_finds_no_violation(page: Page, url: str, scheme: str, width: int, rules: dict[str, object]) -> None:
    page.scheme(scheme)
    with contextlib.ExitStack() as stack:
        stack.enter_context(page.wide(width))
        stack.callback(page.scheme, "light")
        for view in VIEWS:
            page.open(url, view)
            page.until(lambda view=view: page.all(READY[view]))
            if view in ("journal", "stored"):
                page.click(".row[id]")
                page.until(lambda: page.all(".beside dl.facts"))
            page.until(lambda: has_no_violation(page, **rules))
            if view == "stored":
                for order, shown in (("Next to go", ".row[id]"), ("Whose", "main tbody td")):
                    page.click("button", order)
                    page.until(lambda shown=shown: page.find(shown))
                    page.until(lambda: has_no_violation(page, **rules))
        page.press("?")
        page.find("dialog table")
        page.until(lambda: has_no_violation(page, **rules))
        page.press(ESCAPE)


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Page, url: str) -> None:
    page.open(url)
    page.run(WATCH)
    script = (
        "return [...document.querySelectorAll('a[href], button, input, select, [tabindex=\"0\"], summary')]"
        ".filter(n => n.tabIndex >= 0 && n.getClientRects().length && !n.disabled).length"
    )
    for view in VIEWS:
        page.open(url, view)
        page.until(lambda view=view: page.all(READY[view]))

        def reaches_all() -> bool:
            page.run("window.reached.clear(); window.unseen.length = 0")
            wanted = int(page.run(script))
            page.press(*[TAB] * (wanted + 3))
            # Lists grow and shrink meanwhile, and on a busy machine an element is painted after its focus.
            reached = int(page.run("return window.reached.size")) >= min(wanted, int(page.run(script)))
            return reached and not page.run("return window.unseen")

        page.until(reaches_all)


def test_keys_lead_through_the_page_and_the_map(page: Page, url: str) -> None:
    page.open(url)
    for key, view in [
        ("2", "journal"),
        ("3", "pool"),
        ("4", "matches"),
        ("5", "stored"),
        ("6", "upstreams"),
        ("7", "sessions"),
        ("8", "keys"),
    ]:
        page.press(key)
        page.until(lambda view=view: page.run("return document.querySelector('main').dataset.view") == view)
        if view == "pool":
            page.until(lambda: page.all(READY["pool"]))
            page.find(".mapbox").send_keys(RIGHT, ENTER)
            page.until(lambda: "Block 1" in page.text(".beside h2"))
    page.press("2")
    page.until(lambda: page.all(READY["journal"]))
    page.press("/")
    page.until(lambda: "first" in str(page.run("return document.activeElement.className")))
    # A letter that is typed is text, and no shortcut.
    page.press("3")
    assert page.run("return document.querySelector('main').dataset.view") == "journal"
    page.find("input.first").clear()
    page.find("input.first").send_keys("h")
    page.until(lambda: "reason=h" in page.driver.current_url)
    page.until(lambda: page.all(READY["journal"]))
    page.run("document.querySelector('.grid').focus()")
    page.press(DOWN, DOWN, ENTER)
    page.until(lambda: page.all(".beside dl.facts"))
    page.press(ESCAPE)
    page.until(lambda: not page.text(".beside"))
    page.until(lambda: page.run("return document.activeElement.getAttribute('role')") == "grid")
    page.press("?")
    page.find("dialog")
    page.press(ESCAPE)
    page.until(lambda: not page.all("dialog"))


def test_the_switch_of_the_theme_outlives_the_page(page: Page, url: str) -> None:
    page.open(url)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.press("t", "t")
    page.until(lambda: page.run(ground) != light)
    page.close()
    page.open(url)
    page.until(lambda: page.run(ground) != light)
    page.press("t")
    page.until(lambda: page.run(ground) == light)
