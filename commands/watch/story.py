"""One request opened: its record, and the story of what became of it."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from kvproxy.commands.client import ProxyClient, part
from kvproxy.commands.safe import shown
from kvproxy.commands.table import one_line
from kvproxy.commands.units import moment
from kvproxy.commands.watch.look import PATIENCE
from kvproxy.errors import KvproxyError

if TYPE_CHECKING:
    from rich.console import Group

    from kvproxy.commands.watch.rows import Row

Told = Callable[["Row"], list[str]]
"""Tells the story of a request, a sentence each; may take a while."""


def teller(url: str, token: str | None) -> Told:
    """Tells stories as a proxy tells them."""
    client = ProxyClient(url, token, patience=PATIENCE)

    def tell(row: "Row") -> list[str]:
        try:
            found = client.get(f"/admin/log/{part(row.record.request_id)}")
        except KvproxyError as error:
            return [shown(error.message)]
        return [shown(sentence) for sentence in found["sentences"]]

    return tell


class StoryScreen(ModalScreen[None]):
    """A request's story and its record.

    Args:
        row: the request.
        tell: see `Told`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,backspace", "dismiss", "back")]
    CSS = "StoryScreen { background: ansi_default; } #story { padding: 0 1; }"

    def __init__(self, row: "Row", tell: Told) -> None:
        super().__init__()
        self._row = row
        self._tell = tell

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="story"):
            yield Static("reading the journal ...", markup=False, id="text")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#story").focus()
        self.run_worker(self._read, thread=True)

    def _read(self) -> None:
        drawn = _drawn(self._row, self._tell(self._row))
        self.app.call_from_thread(self.query_one("#text", Static).update, drawn)


def _drawn(row: "Row", story: list[str]) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    record = asdict(row.record) | {"time": moment(row.record.time)}
    for name, value in (("question", row.question), ("similar question", row.near_question)):
        if value:
            facts.add_row(Text(name), Text(one_line(value)))
    for name, value in record.items():
        if value not in (None, ""):
            facts.add_row(Text(name), Text(one_line(value)))
    return Group(*(Text(line) for line in story), Text(), facts)
