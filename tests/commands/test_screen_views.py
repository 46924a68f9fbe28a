"""`kvproxy top` has every number that the dashboard has: each tab says what the admin routes say."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvproxy.commands.watch.panels import brief
from kvproxy.commands.watch.parts import VARIANTS
from tests.backends.fleets import until
from tests.backends.mixed import Mixed, run_mixed
from tests.commands.run import ask
from tests.commands.terminal import Terminal, top
from tests.commands.test_commands import Demo

SYSTEM = "You are asked for the screen. "
# Nobody else asks this of the proxy that is shared.
ASKED, SIMILAR = "How do I reset my screen password?", "How can I reset my screen password?"


@pytest.fixture(scope="module")
def busy(demo: Demo) -> Iterator[str]:
    """A proxy with a judged match, a hit, a pinned response and cached blocks."""
    url = demo[0]
    for question in (ASKED, ASKED, "What is a block?"):
        ask(url, question, SYSTEM).raise_for_status()

    def judged() -> bool:
        ask(url, SIMILAR, SYSTEM, headers={"cache-control": "no-store"})
        demo[1].answerer.journal.latest(1)
        return bool(get(url, "/log?judged=true"))

    until(judged)
    (entry,) = get(url, f"/cache?search={ASKED}")
    httpx.post(f"{url}/admin/cache/{entry['id']}/pin").raise_for_status()
    yield url
    httpx.delete(f"{url}/admin/cache/{entry['id']}/pin").raise_for_status()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    with run_mixed(tmp_path_factory.mktemp("mixed")) as running:
        yield running


def get(url: str, path: str) -> Any:
    return httpx.get(f"{url}/admin{path}").raise_for_status().json()


def by(screen: Terminal, tab: str, name: str) -> None:
    """Press `b` until the tab that was chosen shows one of its ways."""
    ways = VARIANTS[tab]

    def line(chosen: str) -> str:
        return "  ".join(f"[{each}]" if each == chosen else each for each in ways) + "   (b: next)"

    seen = screen.until(lambda text: any(line(each) in text for each in ways))
    at = next(place for place, each in enumerate(ways) if line(each) in seen)
    while ways[at] != name:
        screen.press("b")
        at = (at + 1) % len(ways)
        screen.until(line(ways[at]))


@pytest.mark.parametrize("columns", [80, 200])
def test_each_tab_says_what_the_admin_routes_say(busy: str, columns: int) -> None:
    # Lines enough for what is pinned, which goes last: other tests' responses may be many.
    with top(busy, columns, lines=60 + get(busy, "/cache/stats")["entries"]) as screen:
        screen.press("9")
        by(screen, "why", "24 h")
        found = get(busy, "/log/series?since=86400&step=1440")["counts"]
        reasons = get(busy, "/log/series?since=86400&step=1440&by=reason")["counts"]
        for counts in (found, reasons):
            for name, values in counts.items():
                screen.until(lambda text, name=name, count=sum(values): row(text, name, f"{count:,}"))

        screen.press("5")
        for name in ("layer", "tenant", "model"):
            by(screen, "saved", name)
            for saved in get(busy, f"/savings?by={name}")["rows"]:
                screen.until(lambda text, saved=saved: row(text, saved["name"], many(saved["requests"])))

        (match,) = get(busy, "/log?judged=true&limit=1")
        screen.press("6")
        screen.shows(
            f"similarity {match['similarity']:.3f}",
            f"guard {match['guard'] or '-'}",
            f"request {match['request_id'][:8]}",
            SIMILAR,
            ASKED,
        )
        by(screen, "matches", "shadow")
        screen.until("No similar question was judged")

        stats = get(busy, "/cache/stats")
        screen.press("7")
        screen.shows(f"{stats['entries']:,} responses in {stats['namespaces']:,} namespaces", "pinned", ASKED)
        screen.press("/")
        screen.until(lambda text: "words that it must hold" in text and "p pause" not in text)
        screen.press("reset my screen passw")
        screen.shows("1 of 1 responses are shown, with 'reset my screen passw'")
        screen.press("\r")
        screen.until("p pause")
        screen.press("\x1b")
        screen.shows(f"of {stats['entries']} responses are shown")
        by(screen, "stored", "next to go")
        screen.shows("saves least", "pinned")
        by(screen, "stored", "tenant")
        for usage in get(busy, "/cache/usage?by=tenant"):
            screen.until(lambda text, usage=usage: re.search(rf"^ *{usage['entries']:,} .*{usage['name']}", text, re.M))

        pool, figures = get(busy, "/blocks/map"), get(busy, "/blocks/stats")
        screen.press("8")
        by(screen, "pool", "state")
        screen.shows(*(f"{name} {pool['states'].count(letter):,}" for letter, name in (("c", "cached"), ("f", "free"))))
        screen.shows(f"{figures['block_size']} tokens a block", f"{figures['evictions']:,} evictions")
        by(screen, "pool", "age")
        screen.shows(f"never used {pool['used'].count(0):,}")
        by(screen, "pool", "chains")
        first = get(busy, "/blocks/tree")[0]
        screen.until(lambda text: row(text, f" *{first['blocks']:,}", f"{first['below']:,}"))
        by(screen, "pool", "eviction order")
        queue = get(busy, "/blocks/queue")
        screen.until(lambda text: row(text, " *1", str(queue[0]["id"])))
        screen.press("q")
        assert screen.ended() == 0


@pytest.mark.parametrize("columns", [80, 200])
def test_upstreams_with_a_mirror_and_slots(mixed: Mixed, columns: int) -> None:
    with top(mixed.url, columns, lines=40) as screen:
        screen.press("4")
        engine = next(each for each in mixed.get("/upstreams") if each["url"] == mixed.vllm)
        (stream,) = engine["streams"]
        screen.until(lambda text: f"{engine['cached_blocks']} blocks, complete" in text)
        screen.until(lambda text: f"following {stream['endpoint']}, {stream['batches']} batches, complete" in text)
        (held,) = [block for block in mixed.get("/blocks") if block["id"] is not None and block["hash"]]
        screen.until(lambda text: re.search(rf"^slot 0 +cached +{held['num_tokens']} {held['hash'][:8]}", text, re.M))
        shown = screen.until("You are a cook")
        # Blocks of the mirror are no slots.
        assert len(re.findall(r"^slot \d", shown, re.MULTILINE)) == 2
        screen.press("8")
        # A slot that rests is saved to a file some time later, which is one prefix more: each look counts anew.
        screen.until(lambda text: f"cached {count(mixed, 'cached')} " in text)
        by(screen, "pool", "eviction order")
        screen.until("Engines do not publish their order of eviction.")
        screen.press("q")
        assert screen.ended() == 0


def count(mixed: Mixed, state: str) -> int:
    """How many blocks, slots and files are in a state now."""
    return sum(block["state"] == state for block in mixed.get("/blocks"))


def many(count: int) -> str:
    """A number, as it is written where there is room or is not."""
    return f"({re.escape(f'{count:,}')}|{re.escape(brief(count))})"


def row(text: str, *cells: str) -> bool:
    """Whether a line begins with these cells."""
    return re.search(rf"^{' +'.join(cells)}\b", text, re.MULTILINE) is not None
