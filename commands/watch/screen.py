"""The screen of `kvproxy top`."""

import time
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.safe import shown
from kvproxy.commands.units import duration
from kvproxy.commands.watch import panels
from kvproxy.commands.watch.history import History
from kvproxy.commands.watch.look import Look, Looker
from kvproxy.commands.watch.page import page
from kvproxy.commands.watch.parts import SHOWN, VARIANTS, Part, Wanted
from kvproxy.commands.watch.rows import ORDERS
from kvproxy.commands.watch.sample import LAYERS, Sample, between, over_time, restarted, take
from kvproxy.commands.watch.seen import drawn_part
from kvproxy.commands.watch.story import StoryScreen, Told, teller
from kvproxy.commands.watch.table import Requests

TABS = ("now", "requests", "history", "upstreams", "saved", "matches", "stored", "pool", "why")
_FILTERED = ("requests", "matches", "stored")
"""Tabs whose rows are filtered by words."""


def watch(url: str, token: str | None, interval: float) -> None:
    """Show the screen until the user leaves it.

    Raises:
        KvproxyError: no proxy answers, or it does not let us look.
    """
    take(ProxyClient(url, token))
    TopScreen(url, token, interval).run()


class Looked(Message):
    """A look is there, or a part that was wanted."""

    def __init__(self, found: Look | Part) -> None:
        super().__init__()
        self.found = found


class TopScreen(App[None]):
    """Both caches while they work.

    Args:
        url, token: of the proxy; see `options.py`.
        interval: seconds between two looks.
    """

    # The terminal's own colours: they fit light and dark ones, and none are left where NO_COLOR is set.
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        # In a field that is typed into, too.
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
        Binding("p", "pause", "pause"),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("b", "vary(1)", "by"),
        Binding("B", "vary(-1)", show=False),
        Binding("escape", "unfilter", "all", show=False),
        *(Binding(str(place), f"tab('{name}')", show=False) for place, name in enumerate(TABS, 1)),
    ]
    CSS = """
    Screen, #head, TabPane, Static, DataTable, Input { background: ansi_default; color: ansi_default; }
    Screen { overflow: hidden; }
    #head { height: auto; text-style: bold; }
    TabbedContent { height: 1fr; }
    Tab { padding: 0 1 0 0; }
    TabPane { padding: 0; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #rows { height: 1fr; overflow-x: hidden; }
    #rows > .datatable--cursor { text-style: reverse; background: ansi_default; color: ansi_default; }
    #rows > .datatable--header { text-style: bold; background: ansi_default; color: ansi_default; }
    #order { height: 1; }
    """

    def __init__(self, url: str, token: str | None, interval: float) -> None:
        super().__init__(ansi_color=True)
        self._url, self._interval = url, interval
        self._by = {tab: names[0] for tab, names in VARIANTS.items()}
        self._words = dict.fromkeys(_FILTERED, "")
        self._typing: str | None = None
        self._looker = Looker(url, token, interval, self._looked, Wanted(TABS[0]))
        self._tell: Told = teller(url, token)
        self._history = History()
        self._last: Look | None = None
        self._parts: dict[Wanted, Part] = {}
        self._before: Sample | None = None
        self._figures: dict[str, Any] | None = None
        self._away: float | None = None
        self._notice = ""
        self._paused = False

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Input(placeholder="words that it must hold; enter keeps them", id="filter")
        with TabbedContent(initial=TABS[0]):
            for place, name in enumerate(TABS, 1):
                with TabPane(f"{place} {name}", id=name):
                    if name == "requests":
                        yield Requests()
                    else:
                        with VerticalScroll(id=f"scroll-{name}"):
                            yield Static("looking ...", id=f"text-{name}", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._show_head()
        self._looker.start()

    def on_unmount(self) -> None:
        self._looker.stop()

    def on_resize(self) -> None:
        self._show()

    @property
    def _tab(self) -> str:
        return self.query_one(TabbedContent).active

    def _wanted(self) -> Wanted:
        """What the tab that is seen shows."""
        tab = self._tab
        return Wanted(tab, self._by.get(tab, ""), self._words[tab] if tab == "stored" else "")

    def _looked(self, found: Look | Part) -> None:
        self.post_message(Looked(found))

    def on_looked(self, message: Looked) -> None:
        found = message.found
        if isinstance(found, Part):
            # While the screen is held still, what was not seen yet is shown, and stays.
            self._parts = {found.wanted: found} | (self._parts if self._paused else {})
            self._show()
            return
        if found.sample is None:
            self._away = self._away or found.time
        else:
            self._came(found, found.sample)
            if not self._paused:
                self._last = found
        self._show_head(found.problem)
        if not self._paused:
            self._show()

    def _came(self, look: Look, sample: Sample) -> None:
        before, self._before = self._before, sample
        if self._away is not None:
            self._notice = f"no proxy answered for {duration(look.time - self._away)}"
            self._away = None
        if before is None:
            return
        if restarted(before, sample):
            self._notice = (
                f"the proxy was started again, seen at {time.strftime('%H:%M:%S', time.localtime(look.time))}"
            )
        if sample.at <= before.at:
            return
        figures = between(before, sample)
        if not self._paused:
            self._figures = figures
        self._history.add(over_time(figures))

    def _show_head(self, problem: str | None = None) -> None:
        parts = [f"kvproxy top  {self._url}"]
        if self._away is not None:
            since = time.strftime("%H:%M:%S", time.localtime(self._away))
            parts.append(f"NO ANSWER since {since}, looking again: {problem}")
        elif self._notice:
            parts.append(self._notice)
        if self._paused:
            parts.append("PAUSED, p goes on")
        self.query_one("#head", Static).update(Text(shown("  ".join(parts))))

    def _show(self) -> None:
        """Draw the tab that is seen."""
        look, tab, width = self._last, self._tab, self.size.width - 2
        if look is None or look.sample is None:
            return
        if tab == "requests":
            self.query_one(Requests).show(look, self._words[tab], self.size.width)
        elif tab == "now" and self._figures is not None:
            rates = {layer: self._history.series(f"{layer} a second", max(8, width - 60)) for layer in LAYERS}
            self.query_one("#text-now", Static).update(page(self._figures, rates))
        elif tab == "history" and self._figures is not None:
            self.query_one("#text-history", Static).update(panels.history(self._history, self._interval, width))
        elif tab in SHOWN:
            part = self._parts.get(self._wanted())
            if part is not None:
                self.query_one(f"#text-{tab}", Static).update(drawn_part(part, self._words.get(tab, ""), width))

    def _look_there(self) -> None:
        """Show what is known of the tab that is seen, and have it looked at."""
        self._looker.want(self._wanted())
        self._show()

    def on_tabbed_content_tab_activated(self) -> None:
        self._give_keys()
        self._look_there()

    def _give_keys(self) -> None:
        """Give the keys to the field for words while they are typed, else to what the tab lists."""
        tab, field = self._tab, self.query_one("#filter", Input)
        if self._typing != tab:
            self._typing = None
        field.value = self._words.get(tab, "")
        field.display = self._typing is not None
        self.query_one("#filter" if field.display else "#rows" if tab == "requests" else f"#scroll-{tab}").focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        row = self.query_one(Requests).row(event.cursor_row)
        if row is not None:
            self.push_screen(StoryScreen(row, self._tell))

    def on_input_changed(self, event: Input.Changed) -> None:
        # Else it only shows the words of a tab.
        if self._typing == self._tab:
            self._words[self._tab] = event.value
            self._look_there()

    def on_input_submitted(self) -> None:
        self._typing = None
        self._give_keys()

    def action_pause(self) -> None:
        """Hold the screen still, or go on. Looks are taken all the same, so that the history has no gap."""
        self._paused = not self._paused
        # Of other tabs no old state is shown as that of now.
        self._parts = {wanted: part for wanted, part in self._parts.items() if wanted == self._wanted()}
        self._show_head()
        if not self._paused:
            self._show()

    def action_tab(self, name: str) -> None:
        """Show a tab."""
        self.query_one(TabbedContent).active = name

    def action_vary(self, step: int) -> None:
        """Show the tab in the next of its ways, or in the one before."""
        names = VARIANTS.get(self._tab)
        if names:
            self._by[self._tab] = names[(names.index(self._by[self._tab]) + step) % len(names)]
            self._look_there()

    def action_sort(self, step: int) -> None:
        """Sort the requests by the next column, or by the one before."""
        self.action_tab("requests")
        requests = self.query_one(Requests)
        requests.order = ORDERS[(ORDERS.index(requests.order) + step) % len(ORDERS)]
        self._show()

    def action_reverse(self) -> None:
        """Turn the order of the requests round."""
        self.action_tab("requests")
        requests = self.query_one(Requests)
        requests.ascending = not requests.ascending
        self._show()

    def action_filter(self) -> None:
        """Ask for words that the rows must hold."""
        self._typing = self._tab if self._tab in self._words else "requests"
        self.action_tab(self._typing)
        self._give_keys()

    def action_unfilter(self) -> None:
        """Show all rows."""
        if self._tab in self._words:
            self._words[self._tab] = ""
        self.on_input_submitted()
        self._look_there()
