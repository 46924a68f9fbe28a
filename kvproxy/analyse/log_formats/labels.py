"""Reads the names by which a logged request is billed: its team, its client, and its project."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kvproxy.analyse.log_formats.json_texts import decoded
from kvproxy.apis.json import Json, JsonMap
from kvproxy.apis.request_directives import project_of

_TEAMS = "user_api_key_team_alias team_alias team_name team user_api_key_team_id team_id teamId".split()
_CLIENTS = (
    "user_api_key_alias key_alias api_key_alias virtual_key_name api_key_name client user_email user_name user_id userId"
    " request_user_id user.id enduser.id _user user user_api_key_user_id end_user virtual_key_id api_key_id"
).split()
_PROJECTS = "project project_name service.name workspace_slug project_id projectId app_name".split()
_TAGS = "request_tags tags tag.tags langfuse.trace.tags traceTags".split()
_NESTED = "metadata request_properties properties requester_metadata spend_logs_metadata".split()
LABEL_FIELDS = frozenset((*_TEAMS, *_CLIENTS, *_PROJECTS, *_TAGS, *_NESTED))
"""Names of fields of a row that `labels_of` reads."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Names by which a request is billed; empty if unknown.

    Attributes:
        client: name of its API key, or else of its user.
        key: digest or name of its API key, which has a cache of its own.
    """

    project: str = ""
    client: str = ""
    team: str = ""
    key: str = ""


def labels_of(*sources: JsonMap, tags: Sequence[str] = ()) -> Labels:
    """Return the labels in the fields of sources and their metadata; a tag `project:NAME` precedes other projects."""
    every = [each for source in sources for each in _with_nested(source)]
    given = [
        *(tag.strip() for tag in tags),
        *(tag for each in every for name in _TAGS for tag in _texts(each.get(name))),
    ]
    project = project_of(given) or _first_text(every, _PROJECTS)
    return Labels(project, _first_text(every, _CLIENTS), _first_text(every, _TEAMS))


def _with_nested(source: JsonMap) -> Iterator[JsonMap]:
    for name in _NESTED:
        nested = decoded(source.get(name))
        if isinstance(nested, dict):
            yield from _with_nested(MappingProxyType(nested))
    yield source


def _first_text(sources: Sequence[JsonMap], names: Sequence[str]) -> str:
    """Return the value of the first name that a source has: a better name in any source precedes another."""
    values = (source.get(name) for name in names for source in sources)
    return next((str(value) for value in values if value and isinstance(value, str | int)), "")


def _texts(value: Json) -> list[str]:
    """Return tags: of a list, also as JSON, or of a text with commas."""
    value = decoded(value)
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",")]
    return [tag for tag in value if isinstance(tag, str)] if isinstance(value, list) else []
