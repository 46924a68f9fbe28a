"""Makes the pictures of docs/dashboard.md: a proxy with the demonstration model, some traffic, and a real browser.

python -m tests.ui.screenshots [FOLDER]    # docs by default
"""

import os
import random
import sys
import tempfile
from pathlib import Path

import httpx

from kvproxy.settings import load_settings
from tests.servers import run_proxy
from tests.ui.page import browse

QUESTIONS = (
    "What is a block?",
    "Why is a block evicted?",
    "How do I reset my password?",
    "How can I reset my password?",
    "Is the pool full at 100 blocks?",
    "Is the pool full at 200 blocks?",
    "What does a prefix hit save?",
    "How many tokens does a block hold?",
)
SYSTEMS = (
    "You answer questions about the cache of blocks, in short sentences and in plain English, and name the page to read.",
    "You are the support of a shop. Be polite and short, and promise no refund before the number of the order is known.",
)
RIGHT, ENTER = "\ue014", "\ue007"
# Name, scheme, view, what is waited for, and what is clicked.
PICTURES: tuple[tuple[str, str, str, str, str], ...] = (
    ("overview", "light", "overview", ".bars li", ""),
    ("journal", "dark", "journal?layer=semantic", ".row[id]", ".row[id]"),
    ("pool", "light", "pool", ".legend li", ""),
    ("matches", "dark", "matches", ".match", ""),
)


def traffic(url: str, requests: int) -> None:
    """The same requests each time, of three clients."""
    choose = random.Random(4)
    with httpx.Client(base_url=url, timeout=60) as client:
        for number in range(requests):
            question = choose.choice(QUESTIONS) + (f" Case {number}." if choose.random() < 0.3 else "")
            messages = [{"role": "system", "content": choose.choice(SYSTEMS)}, {"role": "user", "content": question}]
            body = {"model": "demo", "temperature": 0, "max_tokens": 16, "messages": messages}
            who = choose.choice(("alice", "bob", "carol"))
            client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {who}"})
        client.post("/v1/chat/completions", json={"model": "demo", "messages": "none"})


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    os.environ["KVPROXY_CACHE__LOOKUP_TIMEOUT"] = "30"
    with tempfile.TemporaryDirectory() as data, browse(1280, 860) as page:
        settings = load_settings(
            data=Path(data),
            engine={"num_blocks": 300},
            cache={"policy": "threshold", "min_similarity": 0.85},
            journal={"prices": {"demo": {"input": 2.5, "output": 10.0}}},
        )
        with run_proxy(settings) as (url, _):
            traffic(url, 160)
            for name, scheme, view, ready, click in PICTURES:
                page.scheme(scheme)
                page.open(url, view)
                page.until(lambda ready=ready: page.all(ready))  # type: ignore[misc]
                if name == "overview":
                    page.click("button", "5 min")
                    page.until(lambda: "last 5 min" in page.text(".tiles") and page.text("[data-figure=money]") != "–")
                if name == "pool":
                    page.click("button", "tenant")
                    page.find(".mapbox").send_keys(RIGHT * 70, ENTER)
                    page.until(lambda: page.all(".beside dl.facts"))
                elif click:
                    page.click(click)
                    page.until(lambda: page.all(".beside dl.facts"))
                path = folder / f"dashboard-{name}.png"
                page.shot(path)
                print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
