"""Finds changed spans (see `changed_spans`) that prevent prefix reuse, and the reuse that their removal would gain."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from kvproxy.analyse.changed_spans import (
    ChangedSpan,
    add_tools_edit,
    find_changed_span,
    matches_only_changes,
    move_edit,
    strip_edits,
    without_digits,
)
from kvproxy.analyse.log_formats.log_format import LoggedRequest, SummedUsage
from kvproxy.analyse.log_replay import reported_usage, response_text, to_api_request
from kvproxy.analyse.log_tokenizer import PromptEncoder
from kvproxy.analyse.prefix_estimate import TokenizedRequest, block_chains, reused_blocks, tokenize_request
from kvproxy.analyse.prompt_families import Family, group_families, prompt_regions, shingles
from kvproxy.analyse.prompt_reuse import BilledInput, PromptReuse, mean_writes, writes_of
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.codec import PromptInput
from kvproxy.apis.json import dumps
from kvproxy.demo import DEMO
from kvproxy.errors import KvproxyError
from kvproxy.flow.prepare.prompt_edits import apply_edits, matched_spans
from kvproxy.flow.prepare.rules import Rules
from kvproxy.providers.cache_rules import cache_rule
from kvproxy.providers.prices import ModelPrices, shortest_cached_prefix
from kvproxy.settings import Settings
from kvproxy.settings.journal import PriceSettings
from kvproxy.settings.rules import EditSettings
from kvproxy.units import plural
from kvproxy.upstreams.prompt_tokenizer import prompt_input

_MAX_SPANS = 3
_COMPARED_PROMPTS = 12
Matches = Sequence[Sequence[str]]
"""The texts that an edit matches in each prompt of a family."""
_MIN_SAVED_SHARE = 0.005
_PLACES = {
    "order of tools": "the order of the tools",
    "order of properties": "the order of JSON properties in the tools",
    "dropped tools": "a request without the tools (such as a compaction)",
}
_REASONS = {
    "sort-tools": "the model reads the same tools, in one order",
    "add-tools": "the request begins like the others, and tool_choice prevents calls",
}


@dataclass(frozen=True, slots=True)
class EditSaving:
    """The effect of editing one span in all prompts of a family.

    Attributes:
        span: the span in the first request that changes it.
        changed: number of requests in which the span differs from the most similar of the 12 requests before.
        before: reuse before this edit.
        stripped, moved: reuse if the span is removed, and if it is moved to the last message.
    """

    span: ChangedSpan
    edit: EditSettings
    changed: int
    before: PromptReuse
    stripped: PromptReuse
    moved: PromptReuse

    @property
    def removes_text(self) -> bool:
        """Whether the edit removes a span, which could move to the end instead; other edits change the tools."""
        return self.edit.action == "strip"

    @property
    def suggested(self) -> EditSettings:
        """The edit to install: it keeps the text at the end of the prompt, unless that loses most of the saving."""
        return move_edit(self.edit) if self.removes_text and self._kept_share >= 0.5 else self.edit

    def saved_money(self, price: PriceSettings | None) -> float | None:
        """Return the money that the edit saves after the edits before it; None without a price or the provider's count."""
        if price is None or price.cached is None:
            return None
        after = self.moved if self.suggested.action == "move" else self.stripped
        costs = self.before.cost(price), after.cost(price)
        return None if costs[0] is None or costs[1] is None else costs[0] - costs[1]

    @property
    def _kept_share(self) -> float:
        """The part of the saving that remains if the span moves instead."""
        saved, kept = (self.before.computed_tokens - reuse.computed_tokens for reuse in (self.stripped, self.moved))
        return max(0.0, kept / saved) if saved > 0 else 1.0

    @property
    def reason(self) -> str:
        """Why the edit is suggested, and how it changes the model's input."""
        action = self.suggested.action
        if action not in ("move", "strip"):
            return _REASONS[action]
        share = f"'move' keeps {100 * self._kept_share:.0f}% of the saving of 'strip'"
        if action == "move":
            return f"{share}, and the model still reads the text, at the end"
        return f"{share}, because each request has the text at its own end; with 'strip', the model no longer reads it"

    @property
    def change(self) -> str:
        """The difference, and its place."""
        span = self.span
        if span.kind in _PLACES:
            return _PLACES[span.kind]
        if span.kind == "moving text":
            return f"{_shorten(span.old)!r} moves to later messages: the {span.region}"
        return f"{span.kind} at character {span.at} of the {span.region}"

    @property
    def example(self) -> str:
        """The first change of the span, for one that changes its text; else empty."""
        has_texts = self.span.kind not in (*_PLACES, "moving text")
        return f"; first, {_shorten(self.span.old)!r} became {_shorten(self.span.new)!r}" if has_texts else ""

    def comments(self) -> list[str]:
        """Return what changes where, why this edit, and its cost, as comments of the settings."""
        moved, stripped = self.moved.computed_tokens, self.stripped.computed_tokens
        with_edit = (
            f"{moved:,} with 'move', {stripped:,} with 'strip'" if self.removes_text else f"{stripped:,} with it"
        )
        lines = [
            f"{plural(self.changed, 'request')}: {self.change}{self.example}",
            f"{self.suggested.action}: {self.reason}",
            f"tokens to compute: {self.before.computed_tokens:,} without this edit, {with_edit}",
        ]
        # A role is any text of a client.
        return [f"# {''.join(filter(str.isprintable, line))}" for line in lines]


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """The findings about one `Family` of prompts.

    Attributes:
        reuse: reuse without edits.
        shared_blocks: median number of reused blocks in a prompt; the first prompt does not count.
        savings: effects of the suggested edits. Each effect includes the edits before it.
        price: present price of the model, in the service tier of most requests; None if it is unknown.
    """

    family: Family
    reuse: PromptReuse
    shared_blocks: int
    savings: tuple[EditSaving, ...]
    price: PriceSettings | None = None

    @property
    def without_money(self) -> str | None:
        """Why the savings state no money although the model has a price; None if they state money, or without a price."""
        if self.price is None or self.price.cached is None or self.reuse.billed is not None:
            return None
        return (
            f"no money: the log states no usage, and the demonstration model's tokenizer counts other tokens than"
            f" {self.family.model}; give --tokenizer, or a log with usage"
        )


@dataclass(frozen=True, slots=True)
class LintReport:
    families: tuple[FamilyReport, ...]
    block_size: int
    untokenized: int

    @property
    def reuse(self) -> float:
        """Share of all prompt tokens that an unlimited prefix cache reuses, without the suggested edits."""
        tokens = sum(report.reuse.prompt_tokens for report in self.families)
        computed = sum(report.reuse.computed_tokens for report in self.families)
        return 1 - computed / tokens if tokens else 0.0

    def edits_as_toml(self) -> str:
        savings = [(report.family.model, saving) for report in self.families for saving in report.savings]
        if not savings:
            return "# kvproxy lint found no edit that saves tokens.\n"
        lines = ["# Found by kvproxy lint. Check each edit: 'move' keeps the span, 'strip' removes it from the prompt."]
        for number, (model, saving) in enumerate(savings, 1):
            fields = saving.suggested.model_dump(exclude_defaults=True) | {
                "name": f"{saving.edit.name}-{number}",
                "model": model,
            }
            lines += ["", *saving.comments(), "[[edits]]"]
            lines += (f"{name} = {json.dumps(value)}" for name, value in fields.items())
        return "\n".join(lines) + "\n"


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}...{text[-12:]}"


async def lint(
    requests: Sequence[LoggedRequest],
    settings: Settings,
    tokenizer: PromptEncoder,
    block_size: int,
    progress: Callable[[float], None],
    *,
    is_models_tokenizer: bool = True,
) -> LintReport:
    """Find changed spans in the prompts of a log, after the configured edits.

    Without usage in the log, savings have money only if the tokenizer is that of the models (`is_models_tokenizer`).
    """
    rules, prices = Rules(settings), ModelPrices(settings.journal)
    prompts = _TokenizedPrompts(tokenizer, block_size, prices, is_models_tokenizer=is_models_tokenizer)
    for number, logged in enumerate(requests, 1):
        # Providers and upstreams share a prefix cache between the keys of a gateway.
        original = rules.apply(to_api_request(replace(logged, key=""), settings))
        prompts.moved_texts |= _moved_texts(original, settings.edits)
        request = rules.apply_edits(original)
        await prompts.add(request, response_text(logged), logged.service_tier, reported_usage(logged))
        progress(0.5 * number / len(requests))
    models = [request.model for request in prompts.requests]
    families = group_families(models, [prompt_regions(form) for form in prompts.forms])
    reports = []
    for number, family in enumerate(families, 1):
        report = await prompts.report(family, [other for other in families if other.model == family.model])
        price = prices.at(family.model, service_tier=prompts.main_tier(family))
        reports.append(replace(report, price=price))
        progress(0.5 + 0.5 * number / len(families))
    return LintReport(tuple(reports), block_size, prompts.untokenized)


class _TokenizedPrompts:
    def __init__(
        self,
        tokenizer: PromptEncoder,
        block_size: int,
        prices: Mapping[str, PriceSettings],
        *,
        is_models_tokenizer: bool,
    ) -> None:
        self.forms: list[PromptInput] = []
        self.requests: list[ApiRequest] = []
        self._service_tiers: list[str | None] = []
        self.untokenized = 0
        self.moved_texts: set[str] = set()
        self._tokenized: list[TokenizedRequest] = []
        self._reported: list[SummedUsage] = []
        self._tokenizer = tokenizer
        self._block_size = block_size
        self._prices = prices
        self._is_models_tokenizer = is_models_tokenizer

    async def add(
        self, request: ApiRequest, response: str | None, service_tier: str | None, reported: SummedUsage
    ) -> None:
        try:
            form = prompt_input(request)
            tokenized = await tokenize_request(self._tokenizer, request, form, response)
        except KvproxyError:
            self.untokenized += 1
            return
        self.forms.append(form)
        self.requests.append(request)
        self._service_tiers.append(service_tier)
        self._tokenized.append(tokenized)
        self._reported.append(reported)

    def main_tier(self, family: Family) -> str | None:
        """Return the service tier of most requests; None for the standard tier."""
        return Counter(self._service_tiers[member] for member in family.members).most_common(1)[0][0]

    async def report(self, family: Family, families: Sequence[Family]) -> FamilyReport:
        members = family.members
        reuse, blocks = self._reuse(members, [self._tokenized[member] for member in members])
        savings: list[EditSaving] = []
        requests = moved_requests = [self.requests[member] for member in members]
        before = reuse
        while len(savings) < _MAX_SPANS:
            others = [[self.requests[member] for member in other.members] for other in families if other is not family]
            candidates = _spans_by_cost([prompt_input(request) for request in requests], self.moved_texts)
            chosen = next(
                ((spans, edit) for spans in candidates if (edit := _safe_edit(spans[0], requests, others))), None
            )
            if chosen is None:
                break
            spans, edit = chosen
            stripped, requests = await self._reuse_after_edit(members, requests, edit, blocks)
            moving = move_edit(edit) if edit.action == "strip" else edit
            moved, moved_requests = await self._reuse_after_edit(members, moved_requests, moving, blocks)
            saved = before.computed_tokens - min(stripped.computed_tokens, moved.computed_tokens)
            if saved < max(_MIN_SAVED_SHARE * reuse.prompt_tokens, self._block_size):
                break
            savings.append(EditSaving(spans[0], edit, len(spans), before, stripped, moved))
            before = stripped
        later = sorted(blocks[1:])
        return FamilyReport(family, reuse, later[len(later) // 2] if later else 0, tuple(savings))

    async def _reuse_after_edit(
        self, members: Sequence[int], requests: Sequence[ApiRequest], edit: EditSettings, unedited: Sequence[int]
    ) -> tuple[PromptReuse, list[ApiRequest]]:
        changed = [apply_edits(request, [edit]) for request in requests]
        tokenized = []
        for member, request in zip(members, changed, strict=True):
            prompt = tuple(await self._tokenizer.encode(prompt_input(request)))
            tokenized.append(replace(self._tokenized[member], prompt=prompt))
        return self._reuse(members, tokenized, unedited)[0], changed

    def _reuse(
        self, members: Sequence[int], tokenized: Sequence[TokenizedRequest], unedited: Sequence[int] | None = None
    ) -> tuple[PromptReuse, Sequence[int]]:
        """Return the reuse of versions of the members' prompts, and the number of reused blocks of each.

        `unedited` has these numbers without the edits.
        """
        blocks = reused_blocks(block_chains(tokenized, self._block_size))
        counts = [len(tokens.prompt) for tokens in tokenized]
        billed = self._billed(members, counts, blocks, blocks if unedited is None else unedited)
        return PromptReuse(sum(counts), self._block_size * sum(blocks), billed), blocks

    def _billed(
        self, members: Sequence[int], counts: Sequence[int], blocks: Sequence[int], unedited: Sequence[int]
    ) -> BilledInput | None:
        """Return the tokens of prompts in the provider's count, from their tokens and reused blocks. None if unknown.

        The reuse is that of the log, unless the edits give a prompt more or less of it: a pause, or a prefix without a
        breakpoint, prevents reuse with and without an edit.
        """
        scales = self._scales(members)
        if scales is None:
            return None
        billed, mean = BilledInput(), mean_writes([self._reported[member] for member in members])
        for member, scale, count, reused, before in zip(members, scales, counts, blocks, unedited, strict=True):
            usage, prefix = self._reported[member], self._cached_prefix(members[0], scale * self._block_size * reused)
            if (cached := usage.cached_tokens) is not None:
                prefix = cached if reused == before else (max if reused > before else min)(cached, prefix)
            billed = billed.plus(round(scale * count), prefix, writes_of(usage) or mean)
        return billed

    def _cached_prefix(self, member: int, tokens: float) -> int:
        """Return the tokens of a prefix that the provider of a prompt caches: whole steps, from its minimum on."""
        model = self.requests[member].model
        rule, minimum = cache_rule(model), shortest_cached_prefix(model, self._prices)
        step = 1 if rule is None else rule.step_tokens
        return round(tokens) // step * step if round(tokens) >= minimum else 0

    def _scales(self, members: Sequence[int]) -> list[float] | None:
        """Return the provider's tokens for each token of the prompts; the mean for prompts without usage. None if unknown."""
        counted = [len(self._tokenized[member].prompt) for member in members]
        reported = [self._reported[member].prompt_tokens or 0 for member in members]
        known = [(tokens, count) for tokens, count in zip(reported, counted, strict=True) if tokens and count]
        if not known:
            is_known = self._is_models_tokenizer or self.requests[members[0]].model == DEMO
            return [1.0] * len(members) if is_known else None
        mean = sum(tokens for tokens, _ in known) / sum(count for _, count in known)
        return [tokens / count if tokens and count else mean for tokens, count in zip(reported, counted, strict=True)]


def _safe_edit(
    span: ChangedSpan, requests: Sequence[ApiRequest], others: Sequence[Sequence[ApiRequest]]
) -> EditSettings | None:
    """Return the edit of a span that matches most `requests`; None if every edit matches text that a whole family shares."""
    if span.kind == "dropped tools":
        return _tools_of_family(requests)
    chosen, most = None, 0
    for edit, whole in zip(strip_edits(span), strip_edits(span, with_lead=True), strict=True):
        if edit.action == "sort-tools":
            return edit
        families = [[matched_spans(request, edit) for request in family] for family in (requests, *others)]
        count = sum(map(bool, families[0]))
        if count > most and _is_safe(edit, *families):
            chosen, most = whole, count
    return chosen


def _is_safe(edit: EditSettings, own: Matches, *others: Matches) -> bool:
    """Whether an edit of a family matches only text that changes. Texts that change in it may be equal in another family.

    Prompts of a sub-agent, or of several clients, that were sent at the same time have the same date.
    """
    changing = {text for texts in own for text in texts}
    return matches_only_changes(edit, own) and all(
        matches_only_changes(edit, matches) or changing.issuperset(text for texts in matches for text in texts)
        for matches in others
    )


def _tools_of_family(requests: Sequence[ApiRequest]) -> EditSettings | None:
    """Return the edit that adds the most frequent tools of a family; None without a system prompt."""
    tools = Counter(dumps(request.body["tools"]).decode() for request in requests if request.body.get("tools"))
    regions = prompt_regions(prompt_input(requests[0]))
    system = next((region.text for region in regions if region.name == "system prompt" and region.text), None)
    return add_tools_edit(tools.most_common(1)[0][0], system) if tools and system else None


def _moved_texts(request: ApiRequest, edits: Sequence[EditSettings]) -> set[str]:
    """Return the texts that installed edits move to the end of a prompt, and so to later messages in each turn."""
    moves = [edit for edit in edits if edit.action == "move"]
    return {f"{edit.lead}{text}" for edit in moves for text in matched_spans(request, edit)}


def _spans_by_cost(forms: Sequence[PromptInput], moved_texts: Container[str]) -> list[list[ChangedSpan]]:
    spans_by_key: defaultdict[tuple[object, ...], list[ChangedSpan]] = defaultdict(list)
    latest: list[tuple[PromptInput, set[int]]] = []
    for form in forms:
        hashes = shingles("\n".join(region.text for region in prompt_regions(form)))
        # Of equally similar prompts, the latest one is most likely the previous turn.
        closest = max(reversed(latest), key=lambda known: len(known[1] & hashes), default=None)
        span = find_changed_span(closest[0], form) if closest is not None else None
        if span is not None and not (span.kind == "moving text" and span.old.strip() in moved_texts):
            spans_by_key[span.key].append(span)
        latest = [*latest[-_COMPARED_PROMPTS + 1 :], (form, hashes)]
    _merge_changes_in_inserted_texts(spans_by_key)
    # A text without a date or number that differs once tells two agents or versions apart.
    repeated = [spans for spans in spans_by_key.values() if spans[0].kind != "text" or len(spans) > 1]
    return sorted(repeated, key=lambda spans: -sum(span.recomputed_words for span in spans))


def _merge_changes_in_inserted_texts(spans_by_key: defaultdict[tuple[object, ...], list[ChangedSpan]]) -> None:
    # A text that only some prompts have may contain a change, such as a date; that is no change of its own.
    inserted = {key: spans for key, spans in spans_by_key.items() if not (spans[0].old and spans[0].new)}
    for key in [key for key in spans_by_key if key not in inserted]:
        around = without_digits(
            "".join((spans_by_key[key][0].before, spans_by_key[key][0].new, spans_by_key[key][0].after))
        )
        for spans in inserted.values():
            text = without_digits(spans[0].old or spans[0].new)
            if text and text in around:
                spans += spans_by_key.pop(key)
                break
