"""What keeps the prompts of a log from sharing their beginnings, what it costs, and what a change would save."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.apis.codecs.codec import PromptInput
from kvproxy.apis.request import ApiRequest
from kvproxy.errors import KvproxyError
from kvproxy.flow.edits import edited
from kvproxy.offline.changed_spans import Span, changed_span
from kvproxy.offline.edits import edit_of, moving
from kvproxy.offline.log_replay import as_asked, said
from kvproxy.offline.prefix_reuse import Spelled, chains_of, reused_by_each, spell_form
from kvproxy.offline.prompt_families import Family, group, shingles
from kvproxy.offline.prompt_regions import regions_of
from kvproxy.offline.request_log import LoggedRequest
from kvproxy.settings import Settings
from kvproxy.settings.edits import EditSettings
from kvproxy.upstreams.prompt_tokenizer import LocalTokenizer, prompt_input

Progress = Callable[[float], None]
_MOST_SPANS = 3
_LATEST = 12
"""Earlier prompts of a family that a prompt is compared with."""
_WORTH = 0.005
"""Least share of a family's prompt tokens that a change must save to be told."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What a change of one span would do.

    Attributes:
        span: an example of it.
        edit: takes it out.
        changed: requests whose prompt left an earlier one with it.
        stripped, moved: prompt tokens that are reused then; the order of tools is the same either way.
    """

    span: Span
    edit: EditSettings
    changed: int
    stripped: int
    moved: int


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """One family.

    Attributes:
        prompt_tokens: of all its prompts.
        reused: of them, what an engine's prefix cache reuses as the prompts are.
        shared_blocks: full blocks at the beginning that all its prompts but the first reuse, as a median.
        savings: by span, each on top of those before it.
    """

    family: Family
    prompt_tokens: int
    reused: int
    shared_blocks: int
    savings: tuple[Saving, ...]

    @property
    def share(self) -> float:
        """Part of the prompt tokens that is reused."""
        return self.reused / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Lint:
    """A log's families, the largest first; `unread` requests have prompts that cannot be read here."""

    families: tuple[FamilyReport, ...]
    block_size: int
    unread: int


async def lint(
    requests: Sequence[LoggedRequest],
    settings: Settings,
    tokenizer: LocalTokenizer,
    block_size: int,
    pool: int | None = None,
    progress: Progress = lambda share: None,
) -> Lint:
    """Look for what spoils prefixes.

    Args:
        tokenizer: the served model's.
        block_size: tokens in a block of the engine's prefix cache.
        pool: its blocks; None for one without end.
        progress: told the share of the work that is done.
    """
    log = _Log(tokenizer, block_size, pool)
    for number, logged in enumerate(requests, 1):
        await log.add(as_asked(logged, settings), said(logged))
        progress(0.5 * number / len(requests))
    families = group(log.models, [regions_of(form) for form in log.forms])
    reports = []
    for number, family in enumerate(families, 1):
        reports.append(await log.report(family))
        progress(0.5 + 0.5 * number / len(families))
    return Lint(tuple(reports), block_size, log.unread)


class _Log:
    """The prompts of a log, as forms and in tokens."""

    def __init__(self, tokenizer: LocalTokenizer, block_size: int, pool: int | None) -> None:
        self.forms: list[PromptInput] = []
        self.models: list[str] = []
        self.unread = 0
        self._asked: list[ApiRequest] = []
        self._spelled: list[Spelled] = []
        self._tokenizer = tokenizer
        self._size = block_size
        self._pool = pool

    async def add(self, asked: ApiRequest, answer: str | None) -> None:
        """Take a request; one whose prompt cannot be read is counted."""
        try:
            form = prompt_input(asked)
            spelled = await spell_form(self._tokenizer, asked, form, answer)
        except KvproxyError:
            self.unread += 1
            return
        self.forms.append(form)
        self.models.append(asked.model)
        self._asked.append(asked)
        self._spelled.append(spelled)

    async def report(self, family: Family) -> FamilyReport:
        """What spoils one family, and what it would save to change it."""
        members = family.members
        spelled = [self._spelled[place] for place in members]
        each = self._reuse(spelled)
        tokens, reused = sum(len(text.prompt) for text in spelled), self._size * sum(each)
        savings: list[Saving] = []
        asked, best = [self._asked[place] for place in members], reused
        while len(savings) < _MOST_SPANS:
            found = _first_span([prompt_input(request) for request in asked])
            if found is None:
                break
            span, count = found
            edit = edit_of(span)
            stripped, asked_then = await self._edited(members, asked, edit)
            moved = stripped
            if edit.action == "strip":
                moved, _ = await self._edited(members, asked, moving(edit))
            if max(stripped, moved) - best < max(_WORTH * tokens, self._size):
                break
            savings.append(Saving(span, edit, count, stripped, moved))
            asked, best = asked_then, stripped
        later = sorted(each[1:])
        return FamilyReport(family, tokens, reused, later[len(later) // 2] if later else 0, tuple(savings))

    async def _edited(
        self, members: Sequence[int], asked: Sequence[ApiRequest], edit: EditSettings
    ) -> tuple[int, list[ApiRequest]]:
        """Tokens that a family reuses after an edit, and its requests then."""
        changed = [edited(request, [edit]) for request in asked]
        spelled = []
        for place, request in zip(members, changed, strict=True):
            known = self._spelled[place]
            spelled.append(
                Spelled(tuple(await self._tokenizer.encode(prompt_input(request))), known.answer, known.salt)
            )
        return self._size * sum(self._reuse(spelled)), changed

    def _reuse(self, spelled: Sequence[Spelled]) -> list[int]:
        return reused_by_each(chains_of(spelled, self._size), self._pool)


def _first_span(forms: Sequence[PromptInput]) -> tuple[Span, int] | None:
    """The span that costs a family most, of those with which its prompts leave earlier ones; with how often that happens."""
    found: defaultdict[tuple[object, ...], list[Span]] = defaultdict(list)
    latest: list[tuple[PromptInput, set[int]]] = []
    for form in forms:
        words = shingles("\n".join(region.text for region in regions_of(form)))
        alike = max(latest, key=lambda known: len(known[1] & words), default=None)
        span = changed_span(alike[0], form) if alike is not None else None
        if span is not None:
            found[span.place].append(span)
        latest = [*latest[-_LATEST + 1 :], (form, words)]
    if not found:
        return None
    cost = Counter({place: sum(span.lost for span in spans) for place, spans in found.items()})
    spans = found[cost.most_common(1)[0][0]]
    return spans[0], len(spans)
