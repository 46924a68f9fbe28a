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
from kvproxy.commands.watch.rows import ORDERS, Row, arranged, cells, shown_fields
from kvproxy.commands.watch.sample import LAYERS, Sample, between, restarted, take
from kvproxy.commands.watch.story import StoryScreen, Told, teller

_TABS = ("now", "requests", "history", "upstreams", "savings")
_PADDING = 2
"""Cells beside a column's text."""


def watch(url: str, token: str | None, interval: float) -> None:
    """Show the screen until the user leaves it.

    Raises:
        KvproxyError: no proxy answers, or it does not let us look.
    """
    take(ProxyClient(url, token))
    TopScreen(url, token, interval).run()


class Looked(Message):
    """A look is there."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look


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
        Binding("escape", "unfilter", "all", show=False),
        *(Binding(str(place), f"tab('{name}')", show=False) for place, name in enumerate(_TABS, 1)),
    ]
    CSS = """
    Screen, #head, TabPane, Static, DataTable, Input { background: ansi_default; color: ansi_default; }
    Screen { overflow: hidden; }
    #head { height: auto; text-style: bold; }
    TabbedContent { height: 1fr; }
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
        self._looker = Looker(url, token, interval, self._looked)
        self._tell: Told = teller(url, token)
        self._history = History()
        self._last: Look | None = None
        self._before: Sample | None = None
        self._figures: dict[str, Any] | None = None
        self._away: float | None = None
        self._notice = ""
        self._paused = False
        self._order, self._ascending = "time", False
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        with TabbedContent(initial=_TABS[0]):
            for place, name in enumerate(_TABS, 1):
                with TabPane(f"{place} {name}", id=name):
                    if name == "requests":
                        yield Input(placeholder="words that a request must hold; enter keeps them", id="filter")
                        yield Static(id="order", markup=False)
                        yield DataTable[Text](id="rows", cursor_type="row", zebra_stripes=False)
                    else:
                        with VerticalScroll():
                            yield Static("looking ...", id=f"text-{name}", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._show_head()
        self._looker.start()

    def on_unmount(self) -> None:
        self._looker.stop()

    def on_resize(self) -> None:
        self._show()

    def _looked(self, look: Look) -> None:
        self.post_message(Looked(look))

    def on_looked(self, message: Looked) -> None:
        look, problem = message.look, message.look.problem
        if look.sample is None:
            self._away = self._away or look.time
        else:
            self._came(look, look.sample)
            if not self._paused:
                self._last = look
        self._show_head(problem)
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
        blocks = figures["blocks"] or {}
        self._history.add(
            {f"{layer} a second": figures["per_second"][layer] for layer in LAYERS}
            | {"from cache share": figures["from_cache"] or 0.0}
            | {f"{layer} first byte ms": figures["first_byte_ms"][layer] or 0.0 for layer in ("exact", "forward")}
            | {"stored": float(figures["entries"])}
            | ({"pool share": blocks["usage"]} if blocks.get("usage") is not None else {})
            | ({"evictions": float(blocks["evictions"])} if blocks.get("evictions") is not None else {})
        )

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
        look = self._last
        if look is None or look.sample is None:
            return
        tab = self.query_one(TabbedContent).active
        width = self.size.width - 2
        if tab == "requests":
            self._show_rows(look)
        elif tab == "upstreams":
            self.query_one("#text-upstreams", Static).update(panels.upstreams(look.upstreams))
        elif tab == "savings":
            self.query_one("#text-savings", Static).update(panels.savings(look.sample.saved))
        elif self._figures is not None:
            drawn = {layer: self._history.series(f"{layer} a second", max(8, width - 60)) for layer in LAYERS}
            if tab == "now":
                self.query_one("#text-now", Static).update(page(self._figures, drawn))
            else:
                self.query_one("#text-history", Static).update(panels.history(self._history, self._interval, width))

    def _show_rows(self, look: Look) -> None:
        table = self.query_one("#rows", DataTable)
        sought = self.query_one("#filter", Input).value
        came = look.rows or ()
        chosen = self._rows[table.cursor_row].record.number if table.cursor_row < len(self._rows) else None
        at_top = table.cursor_row == 0
        self._rows = arranged(came, sought, self._order, ascending=self._ascending)
        fields = shown_fields(self.size.width)
        room = self.size.width - sum(field.width for field in fields) - _PADDING * len(fields)
        table.clear(columns=True)
        for field in fields:
            table.add_column(field.name, width=field.width or max(10, room - 1))
        for row in self._rows:
            texts = zip(fields, cells(row, fields), strict=True)
            table.add_row(
                *(
                    Text(text, justify="right" if field.right else "left", no_wrap=True, overflow="ellipsis")
                    for field, text in texts
                )
            )
        if chosen is not None and not at_top:
            place = next((at for at, row in enumerate(self._rows) if row.record.number == chosen), 0)
            table.move_cursor(row=place, animate=False)
        way = "rising" if self._ascending else "falling"
        told = (
            "reading the journal ..."
            if look.rows is None
            else f"{len(self._rows):,} of the last {len(came):,} requests, by {self._order}, {way}"
        )
        told += f", with {sought!r} (esc: all)" if sought else ""
        self.query_one("#order", Static).update(Text(shown(look.no_journal or told)))

    def on_tabbed_content_tab_activated(self) -> None:
        if self.query_one(TabbedContent).active == "requests":
            self.query_one("#rows").focus()
        self._show()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.cursor_row < len(self._rows):
            self.push_screen(StoryScreen(self._rows[event.cursor_row], self._tell))

    def on_input_changed(self) -> None:
        self._show()

    def on_input_submitted(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#rows").focus()

    def action_pause(self) -> None:
        """Hold the screen still, or go on. Looks are taken all the same, so that the history has no gap."""
        self._paused = not self._paused
        self._show_head()
        if not self._paused:
            self._show()

    def action_tab(self, name: str) -> None:
        """Show a tab."""
        self.query_one(TabbedContent).active = name

    def action_sort(self, step: int) -> None:
        """Sort the requests by the next column, or by the one before."""
        self.action_tab("requests")
        self._order = ORDERS[(ORDERS.index(self._order) + step) % len(ORDERS)]
        self._show()

    def action_reverse(self) -> None:
        """Turn the order of the requests round."""
        self.action_tab("requests")
        self._ascending = not self._ascending
        self._show()

    def action_filter(self) -> None:
        """Ask for words that requests must hold."""
        self.action_tab("requests")
        found = self.query_one("#filter", Input)
        found.display = True
        found.focus()

    def action_unfilter(self) -> None:
        """Show all requests."""
        found = self.query_one("#filter", Input)
        found.value = ""
        found.display = False
        self.query_one("#rows").focus()
        self._show()
