"""Doors: kinds of parts that other distributions add by entry points. Built-in parts are in the same tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kvproxy.index.errors import PluginError, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
_PREFIX = "kvproxy."


@dataclass(frozen=True, slots=True)
class Door(Generic[T]):
    """A kind of part, such as an eviction policy.

    Attributes:
        group: the group of the entry points, such as `kvproxy.eviction`.
        part: name of the kind for people, such as `eviction policy`.
        built_in: our own parts by name, each as `module:attribute` like the value of an entry point.
        accepts: whether an object is such a part; by default a function or a class that creates it.
    """

    group: str
    part: str
    built_in: Mapping[str, str] = field(default_factory=dict)
    accepts: Callable[[object], bool] = callable

    def names(self) -> tuple[str, ...]:
        return (*self.built_in, *sorted({point.name for point in self.plugins()} - self.built_in.keys()))

    def plugins(self) -> "Sequence[EntryPoint]":
        """Return the entry points of installed distributions."""
        return [point for point in installed() if point.group == self.group]

    def check(self, name: str) -> str:
        """Return the name of a part. Raises PluginError if no distribution has the part, or if two have it."""
        self._find(name)
        return name

    def load(self, name: str) -> T:
        """Import a part. Raises PluginError if a distribution's part is missing or broken."""
        point = self._find(name)
        part: Any = self._call(point, point.load)
        if not self.accepts(part):
            raise PluginError(f"{part!r} of {_owner(point)} is no {self.part}: see docs/contributing.md, Plugins")
        return part  # type: ignore[no-any-return]

    def load_built_in(self, name: str) -> T:
        """Import one of our own parts, without a search for plugins."""
        module, _, attribute = self.built_in[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]

    def load_plugins(self, on_error: Callable[[PluginError], None]) -> Iterator[tuple[str, T]]:
        """Yield the name and the part of each plugin. `on_error` receives the error of a plugin that cannot be loaded."""
        for point in self.plugins():
            try:
                yield point.name, self.load(point.name)
            except PluginError as error:
                on_error(error)

    def create(self, name: str, *arguments: Any) -> Any:
        """Load a class or a function, and call it. Raises PluginError, and the errors of our own parts."""
        part: Any = self.load(name)
        return self._call(self._find(name), lambda: part(*arguments))

    def _find(self, name: str) -> "EntryPoint":
        from importlib.metadata import EntryPoint

        points = [point for point in self.plugins() if point.name == name]
        if name in self.built_in:
            points.insert(0, EntryPoint(name, self.built_in[name], self.group))
        if not points:
            use = f"use {', '.join(names)}, or " if (names := self.names()) else ""
            raise PluginError(
                f"unknown {self.part} {name[:80]!r}: {use}install a package with the entry point {self.group}"
            )
        if len(points) > 1:
            owners = " and in ".join(map(_owner, points))
            raise PluginError(f"the {self.part} {name!r} is in {owners}: pip uninstall {_distribution(points[-1])}")
        return points[0]

    def _call(self, point: "EntryPoint", work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (Exception, SystemExit) as error:
            if point.dist is None:
                raise
            name = _distribution(point)
            raise PluginError(
                f"the {self.part} {point.name!r} of {_owner(point)} failed ({type(error).__name__}: {first_line(error)}):"
                f" pip install --upgrade {name}, or pip uninstall {name}"
            ) from error


def _distribution(point: "EntryPoint") -> str:
    return "kvproxy" if point.dist is None else point.dist.name


def _owner(point: "EntryPoint") -> str:
    return "kvproxy" if point.dist is None else f"{point.dist.name} {point.dist.version}"


@cache
def installed() -> "tuple[EntryPoint, ...]":
    """Return the entry points of all doors. Of two distributions with one name, Python imports the first."""
    from importlib.metadata import distributions

    points_by_name: dict[str, tuple[EntryPoint, ...]] = {}
    for distribution in distributions():
        # Most distributions have no such text, and the name requires to parse the whole metadata.
        if _PREFIX in (distribution.read_text("entry_points.txt") or ""):
            points = tuple(point for point in distribution.entry_points if point.group.startswith(_PREFIX))
            points_by_name.setdefault(distribution.name, points)
    return tuple(point for points in points_by_name.values() for point in points)


GUARDS: Door[Any] = Door("kvproxy.guards", "guard", accepts=lambda part: hasattr(part, "vetoes"))
"""A `Guard`. The setting `cache.extra_guards` names the ones that follow our own."""
EMBEDDERS: Door[Callable[..., Any]] = Door(
    "kvproxy.embedders",
    "embedder",
    {
        "default": "kvproxy.index.models.minilm.embedder:open_embedder",
        "multilingual": "kvproxy.index.models.e5:open_embedder",
    },
)
"""Creates an `Embedder`, given a folder for its files (or None) and the number of threads (or None)."""
VERIFIERS: Door[Callable[..., Any]] = Door(
    "kvproxy.verifiers", "verifier", {"built-in": "kvproxy.index.models.verifier.open_built_in:open_built_in"}
)
"""Creates a `Verifier`, given the name of the embedder (or None) and a folder for its files (or None)."""
