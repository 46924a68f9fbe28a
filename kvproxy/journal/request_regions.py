"""Divides a request into the regions in which it can differ from another."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import zip_longest

from kvproxy.apis.api_request import BYTES_PER_TOKEN
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_list, as_object, dumps, field
from kvproxy.apis.message_parts import role_of
from kvproxy.journal.token_estimates import weighted_size

DIGEST_BYTES = 8
_LISTS = ("messages", "input")
QUESTIONS = ("messages", "input", "prompt")
HISTORY = "previous_response_id"
"""Region of a request whose earlier messages are at the provider."""
PASSAGES = "passages"
"""Name of the texts beside a question in its message, if only they differ."""
_DEFERRED = "tools (deferred)"
"""Name of the tools with `defer_loading`, by their index. No message follows them: the model reads them after a search."""
_LAST = (_DEFERRED, "tools", "system", "instructions", *QUESTIONS)
_LAST_FIELDS = frozenset(_LAST)
_WITH_FILES = ("system", *_LISTS)
_LONGEST_NAME = 80
_OUTSIDE_BODY = ("tenant", "backend", "namespace", "query", "fields", "api")


@dataclass(frozen=True, slots=True)
class Regions:
    """The parts of a request that can change its response, called regions, in the order of a chat template.

    Attributes:
        names: such as `tenant`, `model`, `temperature`, `tools`, `system` and `messages[2] user`.
        digests: digest of each region's content.
        question: index of the last message, the prompt, or the input; None for a request without them.
        sizes: size of each region in bytes, where a file counts as a text with its estimated tokens (see `weighted_size`);
            empty if unknown.
    """

    names: tuple[str, ...]
    digests: tuple[bytes, ...]
    question: int | None
    sizes: tuple[int, ...] = ()

    def differing_regions(self, other: "Regions") -> list[str]:
        """Return the names of the regions that differ or that only one of the requests has, in order."""
        return [own or before for before, own in self.changes_since(other)]

    def changes_since(self, earlier: "Regions") -> list[tuple[str, str]]:
        """Return pairs of names of differing regions, in the earlier request and in this one; "" for a missing region.

        Messages are aligned as in a diff: an inserted message changes no other message.
        """
        old, new = earlier._regions_by_field(), self._regions_by_field()
        changes: list[tuple[str, str]] = []
        for name in dict.fromkeys([*new, *old]):
            before, after = old.get(name, []), new.get(name, [])
            if before == after:
                continue
            matcher = SequenceMatcher(None, [digest for _, digest in before], [digest for _, digest in after], False)
            for tag, start, end, own_start, own_end in matcher.get_opcodes():
                if tag != "equal":
                    old_names = [name for name, _ in before[start:end]]
                    changes += zip_longest(old_names, [name for name, _ in after[own_start:own_end]], fillvalue="")
        return changes

    def setting_changes_since(self, earlier: "Regions") -> list[tuple[str, str]]:
        """Return `changes_since` without the questions."""
        return self._without_question().changes_since(earlier._without_question())

    def _without_question(self) -> "Regions":
        if self.question is None:
            return self
        names, digests = list(self.names), list(self.digests)
        del names[self.question], digests[self.question]
        return Regions(tuple(names), tuple(digests), None)

    def _regions_by_field(self) -> dict[str, list[tuple[str, bytes]]]:
        regions: dict[str, list[tuple[str, bytes]]] = {}
        for name, digest in zip(self.names, self.digests, strict=True):
            field_name = name.partition("[")[0]
            regions.setdefault(field_name if field_name in _LISTS else name, []).append((name, digest))
        return regions

    @property
    def question_digest(self) -> bytes | None:
        return None if self.question is None else self.digests[self.question]


def region_items(key_parts: JsonObject) -> list[tuple[str, Json]]:
    """Return the name and the content of each region (field, header, or message) of a request, from `CacheKey.parts`."""
    items: list[tuple[str, Json]] = []
    for name, value in key_parts.items():
        if name == "headers" and isinstance(value, dict):
            items += [(f"header {header}", text) for header, text in sorted(value.items())]
        elif name not in ("body", "endpoint"):
            items.append((name, value))
    items.append(("api", key_parts.get("endpoint")))
    body = key_parts.get("body")
    return items + _body_items(body) if isinstance(body, dict) else items


def _body_items(body: JsonObject) -> list[tuple[str, Json]]:
    items: list[tuple[str, Json]] = [(name[:_LONGEST_NAME], body[name]) for name in sorted(body.keys() - _LAST_FIELDS)]
    body = _with_deferred_tools_apart(body)
    for name in _LAST:
        value = body.get(name)
        if name in _LISTS and isinstance(value, list):
            items += [(f"{name}[{place}]{_role_suffix(item)}", item) for place, item in enumerate(value)]
        elif name in body:
            items.append((name, value))
    return items


def _with_deferred_tools_apart(body: JsonObject) -> JsonObject:
    tools = body.get("tools")
    if not isinstance(tools, list):
        return body
    deferred: JsonObject = {
        str(index): tool for index, tool in enumerate(tools) if field(tool, "defer_loading") is True
    }
    kept = [tool for index, tool in enumerate(tools) if str(index) not in deferred]
    return {**body, "tools": kept, _DEFERRED: deferred} if deferred else body


def _role_suffix(item: Json) -> str:
    role = role_of(item)
    return "" if role is None else f" {role[:16]}"


def request_body_of(parts: JsonMap) -> JsonObject:
    """Build a request body from its regions by name, without the fields that the exact key ignores."""
    body: JsonObject = {}
    lists: dict[str, list[Json]] = {}
    for name, value in parts.items():
        listed, bracket, _ = name.partition("[")
        if bracket and listed in _LISTS:
            lists.setdefault(listed, []).append(value)
        elif name not in _OUTSIDE_BODY and not name.startswith("header "):
            body[name] = value
    if deferred := as_object(body.pop(_DEFERRED, {})):
        tools = list(as_list(body["tools"]))
        for index in sorted(deferred, key=int):
            tools.insert(int(index), deferred[index])
        body["tools"] = tools
    return {**body, **lists}


def regions_of(
    key_parts: JsonObject, collect: Callable[[bytes, bytes], None] = lambda digest, content: None
) -> Regions:
    """Return the regions of a request (see `Regions`), given the parts of its cache key (`CacheKey.parts`).

    `collect` receives the digest and the JSON of each region.
    """
    items = region_items(key_parts)
    digests, contents = zip(*[_digest_and_content(value) for _, value in items], strict=True)
    for digest, content in zip(digests, contents, strict=True):
        collect(digest, content)
    names = tuple([name for name, _ in items])
    questions = (place for place in reversed(range(len(names))) if names[place].partition("[")[0] in QUESTIONS)
    sizes = tuple(
        [
            weighted_size(value, len(content)) if name.partition("[")[0] in _WITH_FILES else len(content)
            for (name, value), content in zip(items, contents, strict=True)
        ]
    )
    return Regions(names, digests, next(questions, None), sizes)


def with_history_size(regions: Regions, prompt_tokens: int | None) -> Regions:
    """Give the history at the provider the size of the prompt's tokens that the request does not contain."""
    if HISTORY not in regions.names or prompt_tokens is None:
        return regions
    place = regions.names.index(HISTORY)
    others = sum(regions.sizes) - regions.sizes[place]
    hidden = max(0, BYTES_PER_TOKEN * prompt_tokens - others)
    return replace(regions, sizes=(*regions.sizes[:place], hidden, *regions.sizes[place + 1 :]))


def digest_of_region(content: Json) -> bytes:
    return _digest_and_content(content)[0]


def _digest_and_content(value: Json) -> tuple[bytes, bytes]:
    if value is None or isinstance(value, int) or (isinstance(value, str) and len(value) <= _LONGEST_NAME):
        # Most requests have the same tenant, model, and parameters.
        return _remembered(value)
    content = dumps(value, sort_keys=True)
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest(), content


# By type, because 1 equals true.
@lru_cache(maxsize=1024, typed=True)
def _remembered(value: Json) -> tuple[bytes, bytes]:
    content = dumps(value)
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest(), content


def regions_as_json(key_parts: JsonObject) -> bytes:
    return dumps(dict(region_items(key_parts)))
