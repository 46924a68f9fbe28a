"""Settings of the path of requests."""

from typing import Annotated

from pydantic import Field

from kvproxy.doors import LAYERS, PREPARE
from kvproxy.settings.section import Section, part_of


class PathSettings(Section):
    """Parts of plugins in the path of each request, see [plugins](contributing.md#plugins)."""

    prepare: tuple[Annotated[str, part_of(PREPARE)], ...] = Field(
        default=(), description="Preparation steps of plugins by name, in order, after rules and edits."
    )
    layers: tuple[Annotated[str, part_of(LAYERS)], ...] = Field(
        default=(), description="Layers of plugins by name, in order, before the layers of the cache."
    )
