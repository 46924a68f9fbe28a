"""The list of requests: sorted, filtered, and opened from."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from kvproxy.commands.safe import shown
from kvproxy.commands.watch.look import Look
from kvproxy.commands.watch.rows import Row, arranged, cells, shown_fields

_PADDING = 2
"""Cells beside a column's text."""


class Requests(Vertical):
    """The last requests.

    Attributes:
        order, ascending: what they are sorted by; see `rows.arranged`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order, self.ascending = "time", False
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        yield Static(id="order", markup=False)
        yield DataTable[Text](id="rows", cursor_type="row", zebra_stripes=False)

    def row(self, place: int) -> Row | None:
        """The request at a place of the list."""
        return self._rows[place] if place < len(self._rows) else None

    def show(self, look: Look, words: str, width: int) -> None:
        """Draw the requests of a look that hold some words, for a screen of so many cells."""
        table = self.query_one("#rows", DataTable)
        came = look.rows or ()
        chosen = self._rows[table.cursor_row].record.number if table.cursor_row < len(self._rows) else None
        at_top = table.cursor_row == 0
        self._rows = arranged(came, words, self.order, ascending=self.ascending)
        fields = shown_fields(width)
        room = width - sum(field.width for field in fields) - _PADDING * len(fields)
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
        way = "rising" if self.ascending else "falling"
        told = (
            "reading the journal ..."
            if look.rows is None
            else f"{len(self._rows):,} of the last {len(came):,} requests, by {self.order}, {way}"
        )
        told += f", with {words!r} (esc: all)" if words else ""
        self.query_one("#order", Static).update(Text(shown(look.no_journal or told)))
