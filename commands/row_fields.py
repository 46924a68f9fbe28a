"""The names of the fields of a command's rows, for CSV without rows and for the completion of `--columns`."""

from collections.abc import Mapping
from importlib import import_module
from inspect import isfunction

from kvproxy.operations.operation import DeclaredOperation, field_names


class RowFields:
    """Declares the rows of a command, as in `layout: Annotated[ListLayout, RowFields("MODULE:NAME")]`.

    Args:
        places: `MODULE:NAME` of a dataclass, of an operation that returns a list of them, or of a function that returns the
            names for the values of options; or else a name of a field.
        by_option: places of the rows that the command lists with an option, by its name.
    """

    def __init__(self, *places: str, **by_option: tuple[str, ...]) -> None:
        self._places = places
        self._by_option = by_option

    def names(self, options: Mapping[str, object]) -> list[str]:
        """Return the names with these values of options."""
        chosen = (places for option, places in self._by_option.items() if options.get(option))
        return list(dict.fromkeys(name for place in next(chosen, self._places) for name in _names(place, options)))


def _names(place: str, options: Mapping[str, object]) -> list[str]:
    module, _, attribute = place.partition(":")
    if not attribute:
        return [place]
    row = getattr(import_module(module), attribute)
    if isfunction(row):
        names: list[str] = row(options)
        return names
    return row.row_fields if isinstance(row, DeclaredOperation) else field_names(row)
