"""Makes the pictures of docs/dashboard.md in two widths and two themes: the demonstration model, traffic, and a browser.

python -m tests.ui.screenshots [FOLDER]    # docs/images by default
"""

import contextlib
import itertools
import os
import random
import sqlite3
import sys
import tempfile
from pathlib import Path

import httpx

from kvproxy.settings import load_settings
from tests.servers import run_proxy
from tests.ui.page import Page, browse

QUESTIONS = (
    "What is a block?",
    "Why is a block evicted?",
    "How do I reset my password?",
    "How can I reset my password?",
    "Is the pool full at 100 blocks?",
    "Is the pool full at 200 blocks?",
    "What does a prefix hit save?",
    "How many tokens does a block hold?",
    "Can you tell me what a block is?",
    "What isn't a block?",
    *(
        f"What is {topic}?"
        for topic in ("a chain", "a tier", "a pin", "the pool", "the journal", "a namespace", "a veto")
    ),
)
SYSTEMS = (
    "You answer questions about the cache of blocks, in short sentences and in plain English, and name the page to read.",
    "You are the support of a shop. Be polite and short, and promise no refund before the number of the order is known.",
)
RIGHT, ENTER = "\ue014", "\ue007"
WIDTHS = {"wide": (1440, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
# Name, view, and the condition to wait for.
PICTURES = (
    ("overview", "overview", ".bars li"),
    ("journal", "journal?layer=semantic", ".row[id]"),
    ("pool", "pool", ".legend li"),
    ("matches", "matches", ".match"),
    ("stored", "stored", ".row[id]"),
)


def traffic(url: str, requests: int) -> None:
    """The same requests each time, of three clients."""
    choose = random.Random(4)
    with httpx.Client(base_url=url, timeout=300) as client:
        for _ in range(requests):
            messages = [
                {"role": "system", "content": choose.choice(SYSTEMS)},
                {"role": "user", "content": choose.choice(QUESTIONS)},
            ]
            body = {"model": "demo", "temperature": 0, "max_tokens": 60, "messages": messages}
            who = choose.choice(("alice", "bob", "carol"))
            client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {who}"})
        client.post("/v1/chat/completions", json={"model": "demo", "messages": "none"})


def spread(journal: Path, seconds: float) -> None:
    """Move the records apart, so that the charts show an hour."""
    with contextlib.closing(sqlite3.connect(journal, timeout=300)) as connection, connection:
        connection.execute(
            "update records set time = time - ? * ((select max(number) from records) - number)", [seconds]
        )


def show(page: Page, url: str, name: str, view: str, ready: str, size: str) -> None:
    """Open a view and its details."""
    page.open(url, view)
    page.until(lambda: page.all(ready))
    if name == "overview":
        page.until(lambda: page.text("[data-figure=money]") not in ("", "–"))
    if name == "pool":
        page.click("button", "tenant")
    # A phone shows details over the list.
    if size == "wide" and name == "pool":
        page.find(".mapbox").send_keys(RIGHT * 70, ENTER)
    elif size == "wide" and name in ("journal", "stored"):
        page.click(".row[id]")
    if size == "wide" and name in ("pool", "journal", "stored"):
        page.until(lambda: page.all(".beside dl.facts"))
    page.settle()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["KVPROXY_CACHE__LOOKUP_TIMEOUT"] = "30"
    with tempfile.TemporaryDirectory() as data, browse() as page:
        settings = load_settings(
            data=Path(data),
            engine={"num_blocks": 180},
            cache={"policy": "checked"},
            journal={"prices": {"demo": {"input": 2.5, "output": 10.0}}},
        )
        with run_proxy(settings) as (url, services):
            traffic(url, 160)
            services.journal.latest(1)
            spread(settings.data / "journal.db", 20.0)
            page.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            for size, (width, height) in WIDTHS.items():
                with page.wide(width, height):
                    for (name, view, ready), scheme in itertools.product(PICTURES, SCHEMES):
                        page.scheme(scheme)
                        show(page, url, name, view, ready, size)
                        path = folder / f"dashboard-{name}-{size}-{scheme}.webp"
                        page.shot(path)
                        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
