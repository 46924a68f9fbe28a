"""The dashboard in a headless Chromium: Debian's browser and its driver."""

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.programs import required

_PATIENCE = 300.0
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions")
T = TypeVar("T")


class Page:
    """One tab of a browser that shows a proxy's dashboard."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self._visits = 0

    def open(self, url: str, view: str = "overview") -> None:
        """Show a view. The page is loaded only if it shows another proxy: that takes a second of CPU time."""
        if self.driver.current_url.startswith(f"{url}/ui/"):
            self._visits += 1
            address = f"#{view}{'&' if '?' in view else '?'}visit={self._visits}"
            script = (
                "const [address, done] = arguments; addEventListener('hashchange', () => done(), {once: true});"
                "location.hash = address"
            )
            self.driver.execute_async_script(script, address)
        else:
            self.driver.get(f"{url}/ui/#{view}")
        self.until(lambda: self.run("return document.querySelector('main h1') !== null"))

    def close(self) -> None:
        """Leave the dashboard, so that the next `open` loads it."""
        self.driver.get("about:blank")

    def run(self, script: str, *arguments: object) -> Any:
        """Return the result of a script."""
        return self.driver.execute_script(script, *arguments)

    def until(self, find: Callable[[], T]) -> T:
        """What `find` gives, once that is true; a node that went meanwhile is looked for again."""
        end = time.monotonic() + _PATIENCE
        while True:
            failure: Exception | None = None
            try:
                if found := find():
                    return found
            except Exception as error:
                failure = error
            if time.monotonic() > end:
                raise AssertionError(f"waited in vain; the page says: {self.text('body')[:1500]}") from failure
            time.sleep(0.1)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def find(self, selector: str) -> WebElement:
        """The first node that fits, once it is there and can be seen."""
        return self.until(lambda: next((node for node in self.all(selector) if node.is_displayed()), None))

    def text(self, selector: str) -> str:
        """Return the text of the first matching node; empty if no node matches."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].filter(n => !n.hidden).map(n => n.textContent)"
        return list(self.run(script, selector))

    def click(self, selector: str, text: str = "") -> None:
        """Click the first node that fits and holds a text."""

        def found() -> bool:
            node = next((each for each in self.all(selector) if each.is_displayed() and text in each.text), None)
            if node is not None:
                node.click()
            return node is not None

        self.until(found)

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        actions = ActionChains(self.driver, duration=0)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    def hover(self, node: WebElement, x: int, y: int) -> None:
        """Point at a place of a node, from its upper left corner."""
        size = node.size
        actions = ActionChains(self.driver, duration=0)
        actions.move_to_element_with_offset(node, x - size["width"] // 2, y - size["height"] // 2).perform()

    @contextlib.contextmanager
    def wide(self, width: int, height: int = 900) -> Iterator[None]:
        """Give the page a size in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def scheme(self, name: str) -> None:
        """Have the system prefer `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def errors(self) -> list[str]:
        """Return the errors in the browser's log, without failed requests."""
        told = [str(entry["message"]) for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in told if "Failed to load resource" not in message]

    def settle(self) -> None:
        """Wait for two frames, so that charts are drawn."""
        script = (
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 200)))"
        )
        self.driver.execute_async_script(script)

    def shot(self, path: Path) -> None:
        """Save a WebP picture of the visible part."""
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 75})
        path.write_bytes(base64.b64decode(picture["data"]))


@contextlib.contextmanager
def browse(width: int = 1360, height: int = 900) -> Iterator[Page]:
    """A browser, closed at the end."""
    options = Options()
    options.binary_location = required("chromium")
    for flag in (*_FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(required("chromedriver")))
    try:
        driver.set_script_timeout(300)
        yield Page(driver)
    finally:
        driver.quit()
