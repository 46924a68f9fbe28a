"""Does the dashboard stay quick with a large pool and a large store? A real browser scrolls, points and types in it.

python -m tests.benchmarks.dashboard [--blocks 50000] [--entries 100000] [--records 100000]

It reports the median and the longest time between two frames, the longest task of the page, and the processor time that the page
took for a frame (which says more on a busy machine), while the pool is pointed over and coloured anew, and while its order of
eviction, the stored responses and the journal are scrolled from end to end. The pool is the real manager of blocks, filled
without a model. The journal gets new records all the while. It ends with an error where a
frame took longer than the goal, 100 ms; other work on the machine makes frames longer.
"""

import argparse
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from kvproxy.http.services import Services
from kvproxy.index.store import NewEntry
from tests.index.entries import make_entry
from tests.ui.large import run_large
from tests.ui.page import Page, browse

_GOAL = 100.0
"""Milliseconds that a frame may take."""
_WATCH = """
window.frames_ = []; window.tasks_ = [];
let last = performance.now();
const frame = (now) => { window.frames_.push(now - last); last = now; window.running_ = requestAnimationFrame(frame); };
window.running_ = requestAnimationFrame((now) => { last = now; frame(now); });
window.observer_ = new PerformanceObserver((list) => list.getEntries().forEach((each) => window.tasks_.push(each.duration)));
window.observer_.observe({ entryTypes: ["longtask"] });
"""
_REPORT = """
cancelAnimationFrame(window.running_); window.observer_.disconnect();
const frames = window.frames_.sort((a, b) => a - b);
return [frames.length, frames[Math.floor(frames.length / 2)] ?? 0, frames.at(-1) ?? 0, Math.max(0, ...window.tasks_)];
"""
# Scrolls a list up and down by itself, a step a frame, as a wheel does.
_SCROLL = """
const [selector, done] = arguments, list = [...document.querySelectorAll(selector)].find((n) => n.getClientRects().length);
let step = 0;
const frame = () => {
  list.scrollTop = (list.scrollHeight - list.clientHeight) * Math.abs(Math.sin(step / 40));
  step += 1;
  if (step < 150) requestAnimationFrame(frame); else done(list.scrollHeight);
};
requestAnimationFrame(frame);
"""


@contextmanager
def _watched(page: Page, what: str, times: list[float]) -> Iterator[None]:
    page.run(_WATCH)
    before = _processor_seconds(page)
    yield
    spent = _processor_seconds(page) - before
    frames, median, longest, task = page.run(_REPORT)
    times.append(longest)
    shown = f"{task:.0f} ms" if task else "none above 50 ms"
    print(
        f"{what:<44} {frames:>5} frames, median {median:>3.0f} ms, longest {longest:>4.0f} ms; longest task: {shown};"
        f" {1000 * spent / max(1, frames):.1f} ms of the processor a frame",
        flush=True,
    )


def _processor_seconds(page: Page) -> float:
    """What the page's main thread took until now."""
    page.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def _point_over(page: Page) -> None:
    for node in page.all(".mapbox"):
        for step in range(60):
            page.hover(node, 8 + step * 17 % 900, 5 + step * 31 % 300)


def _fill_store(services: Services, entries: int) -> None:
    store, now = services.answerer.store, time.time()
    for start in range(0, entries, 5_000):
        store.put_many(
            [
                NewEntry(
                    make_entry(f"question {number}: what is a block?", created=now - number, request=b"{}" + b" " * 800)
                )
                for number in range(start, min(entries, start + 5_000))
            ]
        )


def _fill_journal(url: str, services: Services, records: int) -> None:
    """Copies of one record: what it costs to show them is what it costs to show others."""
    body = {"model": "plain", "messages": [{"role": "user", "content": "What is a block?"}]}
    httpx.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
    last = services.answerer.journal.latest(1)[0].number
    with sqlite3.connect(services.settings.data / "journal.db", timeout=30) as connection:
        names = [row[1] for row in connection.execute("pragma table_info(records)")]
        others = ", ".join(name for name in names if name not in ("number", "time"))
        connection.execute(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < ?)"
            f" insert into records (number, time, {others})"
            f" select ? + i, time - ? + i, {others} from n, records where number = ?",
            [records, last, records, last],
        )
    connection.close()


def _asking(url: str, over: threading.Event) -> None:
    with httpx.Client(base_url=url) as client:
        number = 0
        while not over.wait(0.02):
            number += 1
            body = {"model": "plain", "messages": [{"role": "user", "content": f"question {number % 50}"}]}
            client.post("/v1/chat/completions", json=body)


def _measure(page: Page, url: str) -> list[float]:
    """The longest frame of each part, in milliseconds."""
    times: list[float] = []

    def shown(selector: str) -> Callable[[], bool]:
        return lambda: bool(page.texts(selector))

    page.open(url, "pool")
    page.until(shown(".legend li"))
    with _watched(page, "pool: pointing over the map", times):
        _point_over(page)
    with _watched(page, "pool: other colours", times):
        for by in ("age", "tenant", "state"):
            page.click("button", by)
    page.click("button", "Eviction order")
    page.until(shown(".panes .row[id]"))
    with _watched(page, "pool: scrolling the order of eviction", times):
        page.driver.execute_async_script(_SCROLL, ".panes .grid")
    page.click("button", "Chains")
    page.until(shown(".branch"))
    with _watched(page, "pool: unfolding chains", times):
        for node in page.all(".branch")[:5]:
            node.click()
        time.sleep(1)
    for view, what in (("stored", "stored responses"), ("journal", "journal, with new records")):
        page.open(url, view)
        page.until(shown(".row[id]"))
        with _watched(page, f"{what}: scrolling", times):
            page.driver.execute_async_script(_SCROLL, ".grid")
    page.open(url)
    page.until(shown(".bars li"))
    with _watched(page, "overview: 5 s", times):
        time.sleep(5)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=50_000)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, run_large(Path(folder), given.blocks + 1) as (url, _, services):
        _fill_store(services, given.entries)
        _fill_journal(url, services, given.records)
        over = threading.Event()
        asking = threading.Thread(target=_asking, args=(url, over))
        asking.start()
        try:
            with browse() as page:
                longest = max(_measure(page, url))
        finally:
            over.set()
            asking.join()
    if longest > _GOAL:
        raise SystemExit(f"a frame took {longest:.0f} ms: the goal is {_GOAL:.0f}")


if __name__ == "__main__":
    main()
