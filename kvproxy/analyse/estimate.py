"""Estimates from a log what both caches would save."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from kvproxy.analyse.charts import Chart, ChartLine
from kvproxy.analyse.log_formats.log_format import LoggedRequest
from kvproxy.analyse.log_replay import ReplayedRequest, has_responses, replay, response_text
from kvproxy.analyse.log_tokenizer import PromptEncoder
from kvproxy.analyse.prefix_estimate import (
    PrefixEstimate,
    TokenizedRequest,
    block_chains,
    estimate_prefix_reuse,
    reused_blocks,
    tokenize_request,
)
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.blocks.divergence import reusable_tokens
from kvproxy.errors import KvproxyError
from kvproxy.index.evaluation.confidence_intervals import wilson_interval
from kvproxy.journal.groups import group_fields, in_order, joined_names
from kvproxy.journal.spending import PaidRequest
from kvproxy.providers.prices import ModelPrices, has_tier_price, price_at, shortest_cached_prefix
from kvproxy.settings import Settings
from kvproxy.settings.journal import MILLION, PriceSettings, hit_price
from kvproxy.upstreams.prompt_tokenizer import prompt_input


@dataclass(frozen=True, slots=True)
class WrongHits:
    """The number of semantic hits that were compared with logged responses, and of those that were wrong.

    `expected` is the share of wrong hits that the policy expects; None without an estimate.
    """

    compared: int
    wrong: int
    expected: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval of the share of wrong hits; None without a comparison."""
        return wilson_interval(self.wrong, self.compared) if self.compared else None


@dataclass(frozen=True, slots=True)
class HitSavings:
    """The hits of a layer, and the tokens and the money that they saved.

    Attributes:
        prompt_tokens, response_tokens: as the logged responses report them; otherwise as the tokenizer counts them.
        without_response: number of hits without response tokens in the log.
        cached_tokens: prompt tokens that the backend would have reused, as the logged responses report them; otherwise as an
            unlimited pool would have reused them, without prefixes below the provider's minimum.
        money: price of prompts and responses, with `cached_tokens` at the price of reuse; None if no model has a price.
        unpriced: number of hits on models without a price; `money` excludes them.
        wrong: number of hits that differ from the logged response. They saved nothing: tokens, money, and the other counts
            exclude them.
    """

    requests: int
    prompt_tokens: int
    response_tokens: int
    without_response: int
    cached_tokens: int
    money: float | None
    unpriced: int
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class GroupSavings:
    """Hits of a group of requests, and their savings (see `HitSavings`).

    Attributes:
        name: empty for requests without one, such as those of no team.
        saved_tokens: tokens of prompts and responses, of which a prefix cache would have reused `cached_tokens`.
        wrong: number of semantic hits that differ from the logged response, and saved nothing.
        groups: the fields of the group with their values, such as a day and a model.
    """

    name: str
    requests: int
    exact: int
    semantic: int
    saved_tokens: int
    cached_tokens: int
    money: float | None
    unpriced: int
    wrong: int = 0
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The effect of both caches on a log, in the replay with the median number of semantic hits.

    Attributes:
        exact, semantic, forwarded: number of exact hits, of semantic hits, and of requests to the engine.
        semantic_range: the smallest and the largest number of semantic hits of a replay.
        uncacheable: number of forwarded requests whose responses are never cached.
        learned: whether the log has responses, from which the policy `learned` learns.
        prefix: the engine's prefix reuse for the forwarded requests.
        prefix_alone: the engine's prefix reuse for all requests, without a response cache.
        untokenized: number of forwarded requests whose prompt cannot be tokenized.
        reported_tokens: prompt tokens of the other forwarded requests, as the logged responses report them; None if one reports
            none. `prefix` counts tokens of the tokenizer.
        token_scale: reported prompt tokens per token of the tokenizer, over the forwarded requests that report tokens; 1 if
            none does.
        reuse_discount: mean difference between the prices of an uncached and a cached input token; None without a price of
            cached tokens.
        service_tiers: tiers besides the standard tier whose prices the money has.
        tiers_without_price: tiers whose requests have the price of the standard tier, because theirs is unknown.
        groups: savings by the requested field; empty if none was requested.
        keys: number of API keys in the log, whose requests share no cache, unless `cache.shared` is set.
    """

    requests: int
    exact: int
    semantic: int
    semantic_range: tuple[int, int]
    forwarded: int
    uncacheable: int
    learned: bool
    wrong: WrongHits
    prefix: PrefixEstimate
    prefix_alone: PrefixEstimate
    untokenized: int
    reported_tokens: int | None
    token_scale: float
    exact_savings: HitSavings
    semantic_savings: HitSavings
    reuse_discount: float | None
    service_tiers: list[str]
    tiers_without_price: list[str]
    keys: int = 0
    groups: list[GroupSavings] = field(default_factory=list)


async def estimate(
    requests: Sequence[LoggedRequest],
    settings: Settings,
    tokenizer: PromptEncoder,
    block_size: int,
    sizes: Sequence[int] | None,
    progress: Callable[[float], None] = lambda share: None,
    draws: int = 1,
    by: str | None = None,
) -> Estimate:
    """Replay a log, and count the hits of both caches. Raises SettingsError.

    Args:
        sizes: pool sizes in blocks; None for eight sizes up to the number of distinct blocks.
        draws: number of replays with different random numbers. A log without responses is replayed once.
        by: field of the groups in the result, or several, separated by commas.
    """
    count = draws if has_responses(requests) else 1

    def advance(step: int, share: float) -> None:
        progress((step + share) / (count + 1))

    replays = [await replay(requests, settings, partial(advance, draw), Random(draw).random) for draw in range(count)]
    replays.sort(key=_semantic_hits)
    replayed = replays[count // 2]
    tokenized: list[TokenizedRequest | None] = []
    for number, replayed_request in enumerate(replayed, 1):
        try:
            form, response = prompt_input(replayed_request.request), response_text(replayed_request.logged)
            encoded = await tokenize_request(tokenizer, replayed_request.request, form, response)
            tokenized.append(replace(encoded, minimum=_minimum_tokens(replayed_request, encoded, settings)))
        except KvproxyError:
            tokenized.append(None)
        advance(count, number / len(replayed))
    pairs = list(zip(replayed, tokenized, strict=True))
    forwarded = [tokens for request, tokens in pairs if request.layer not in ("exact", "semantic")]
    readable = [tokens for tokens in forwarded if tokens is not None]
    prefix = estimate_prefix_reuse(readable, block_size, sizes)
    every = [tokens for tokens in tokenized if tokens is not None]
    alone = estimate_prefix_reuse(every, block_size, [point.blocks for point in prefix.points])
    reused = iter(reused_blocks(block_chains(every, block_size)))
    shares = [0.0 if tokens is None else next(reused) * block_size / max(1, len(tokens.prompt)) for tokens in tokenized]
    known_prices = ModelPrices(settings.journal)
    prices = [_price(each, tokens, known_prices) for each, tokens in pairs]
    savings: dict[str, list[HitSavings]] = {"exact": [], "semantic": []}
    fields = () if by is None else group_fields(by)
    grouped: defaultdict[tuple[str, ...], list[tuple[str, HitSavings | None, bool]]] = defaultdict(list)
    known_ids: set[object] = set()
    for (replayed_request, tokens), share, price in zip(pairs, shares, prices, strict=True):
        logged = replayed_request.logged.response
        id = logged.get("id") if isinstance(logged, dict) else None
        if replayed_request.layer in savings:
            is_replay = id is not None and id in known_ids
            # The whole prompt of an exact hit was sent before.
            common = 1.0 if replayed_request.layer == "exact" else share
            minimum = shortest_cached_prefix(replayed_request.request.model, settings.journal.prices)
            savings[replayed_request.layer].append(
                _savings_of_hit(replayed_request, tokens, common, block_size, price, minimum, is_replay=is_replay)
            )
        known_ids.add(id)
        if fields:
            hit = savings[replayed_request.layer][-1] if replayed_request.layer in savings else None
            grouped[_group_names(replayed_request, fields)].append((replayed_request.layer, hit, price is not None))
    exact, semantic = (_sum_savings(hits, has_price=any(prices)) for hits in savings.values())
    return Estimate(
        requests=len(replayed),
        exact=exact.requests,
        semantic=semantic.requests,
        semantic_range=(_semantic_hits(replays[0]), _semantic_hits(replays[-1])),
        forwarded=len(forwarded),
        uncacheable=sum(
            request.exchange is None or request.exchange.forward_reason == "bypass" for request in replayed
        ),
        learned=has_responses(requests),
        wrong=_wrong_hits(replayed),
        prefix=prefix,
        prefix_alone=alone,
        untokenized=len(forwarded) - len(readable),
        reported_tokens=_reported_tokens(
            [request for request, tokens in pairs if request.layer not in savings and tokens is not None]
        ),
        token_scale=_token_scale([pair for pair in pairs if pair[0].layer not in savings]),
        exact_savings=exact,
        semantic_savings=semantic,
        reuse_discount=_mean_reuse_discount(prices, tokenized),
        service_tiers=_service_tiers(requests, known_prices, has_price=True),
        tiers_without_price=_service_tiers(requests, known_prices, has_price=False),
        groups=_group_savings(grouped, fields),
        keys=len({logged.key for logged in requests} - {""}),
    )


def _group_names(replayed: ReplayedRequest, fields: Sequence[str]) -> tuple[str, ...]:
    logged, model = replayed.logged, replayed.request.model
    tier, team = logged.service_tier, logged.team
    paid = PaidRequest(
        logged.time or 0.0, model, logged.project, logged.client, None, None, service_tier=tier, team=team
    )
    paid = replace(paid, columns=logged.columns)
    return tuple(map(paid.group_name, fields))


def _group_savings(
    grouped: Mapping[tuple[str, ...], Sequence[tuple[str, HitSavings | None, bool]]], fields: Sequence[str]
) -> list[GroupSavings]:
    """Return the savings by group, given layer, savings, and whether a price is known, of each request."""
    groups = []
    for names, requests in grouped.items():
        layers = [layer for layer, _, _ in requests]
        total = _sum_savings(
            [hit for _, hit, _ in requests if hit is not None], has_price=any(each[2] for each in requests)
        )
        tokens = total.prompt_tokens + total.response_tokens
        counts = len(requests), layers.count("exact"), layers.count("semantic")
        groups.append(
            GroupSavings(
                joined_names(names),
                *counts,
                tokens,
                total.cached_tokens,
                total.money,
                total.unpriced,
                total.wrong,
                dict(zip(fields, names, strict=True)),
            )
        )
    return in_order(groups, fields, lambda group: (group.money or 0.0, group.saved_tokens))


def _service_tiers(requests: Sequence[LoggedRequest], prices: ModelPrices, *, has_price: bool) -> list[str]:
    """Return the tiers of requests to models with a price, with or without a price of their own."""
    tiers = {(str(each.body["model"]), each.time or 0.0, each.service_tier) for each in requests}
    return sorted(
        {
            tier
            for model, time, tier in tiers
            if tier is not None
            and price_at(model, prices, time, 0) is not None
            and has_tier_price(model, prices, time, tier) == has_price
        }
    )


def _minimum_tokens(request: ReplayedRequest, tokens: TokenizedRequest, settings: Settings) -> int:
    """Return the shortest prefix that the provider caches, in tokens of the tokenizer."""
    reported, counted = _reported_counts(request)[0], len(tokens.prompt)
    minimum = shortest_cached_prefix(request.request.model, settings.journal.prices)
    return round(minimum * counted / reported) if reported and counted else minimum


def _reported_tokens(requests: Sequence[ReplayedRequest]) -> int | None:
    counts = [_reported_counts(request)[0] for request in requests]
    return sum(count or 0 for count in counts) if counts and all(counts) else None


def _token_scale(pairs: Sequence[tuple[ReplayedRequest, TokenizedRequest | None]]) -> float:
    counts = [(_reported_counts(request)[0], tokens) for request, tokens in pairs]
    known = [(reported, len(tokens.prompt)) for reported, tokens in counts if reported and tokens is not None]
    counted = sum(count for _, count in known)
    return sum(reported for reported, _ in known) / counted if counted else 1.0


def _reported_counts(request: ReplayedRequest) -> tuple[int | None, int | None]:
    """Return the tokens of prompt and response that a logged response reports."""
    logged = request.logged.response
    return request.request.api.prompt_and_completion_tokens(logged) if isinstance(logged, dict) else (None, None)


def _price(request: ReplayedRequest, tokens: TokenizedRequest | None, prices: ModelPrices) -> PriceSettings | None:
    logged, length = request.logged, _prompt_length(request, tokens)
    tier, modalities = logged.service_tier, logged.modalities
    return price_at(request.request.model, prices, logged.time or 0.0, length, tier, modalities)


def _prompt_length(request: ReplayedRequest, tokens: TokenizedRequest | None) -> int:
    """Return the prompt tokens that the provider bills, else those of the tokenizer."""
    return _reported_counts(request)[0] or (0 if tokens is None else len(tokens.prompt))


def pool_money(estimated: Estimate, discounted: int) -> float | None:
    """Return the discount of tokens of the tokenizer, in reported tokens; None without a price of cached tokens."""
    discount = estimated.reuse_discount
    return None if discount is None else discounted * estimated.token_scale * discount


def estimate_charts(estimated: Estimate) -> list[Chart]:
    bars = [("exact hits", estimated.exact), ("semantic hits", estimated.semantic), ("engine", estimated.forwarded)]
    sizes = [point.blocks * estimated.prefix.block_size for point in estimated.prefix.points]
    lines = [
        ChartLine(name, sizes, [prefix.share(point.reused) for point in prefix.points])
        for name, prefix in (("with cached responses", estimated.prefix), ("without", estimated.prefix_alone))
    ]
    levels = [("unlimited pool", estimated.prefix.share(estimated.prefix.unlimited))]
    return [
        Chart("requests by layer", "", bars=[(name, float(count)) for name, count in bars]),
        Chart("tokens in the pool", "reused prompt tokens", lines, levels=levels, log_x=True, is_share=True),
    ]


def _semantic_hits(replayed: Sequence[ReplayedRequest]) -> int:
    return sum(request.layer == "semantic" for request in replayed)


def _savings_of_hit(
    hit: ReplayedRequest,
    tokens: TokenizedRequest | None,
    common_share: float,
    block_size: int,
    price: PriceSettings | None,
    minimum: int,
    *,
    is_replay: bool,
) -> HitSavings:
    """Return the tokens and the money that a hit saved; `common_share` is the share of its prompt that was sent before.

    A hit that differs from the logged response saved nothing. The whole blocks of this share replace the reuse that the logged
    response reports if a cache replayed it (`is_replay`). The provider caches no prefix below `minimum` tokens.
    """
    if hit.is_right is False:
        return HitSavings(1, 0, 0, 0, 0, 0.0, 0, wrong=1)
    logged = hit.logged.response
    counts = _reported_counts(hit)
    prompt, response = counts[0] or 0, counts[1] or 0
    if not prompt and tokens is not None:
        prompt, response = len(tokens.prompt), len(tokens.response)
    reuse = reported_reuse(logged) if isinstance(logged, dict) and not is_replay else None
    common = round(common_share * prompt)
    reusable = 0 if common < minimum else reusable_tokens(common, prompt, block_size)
    cached = reusable if reuse is None else reuse.cached_tokens
    money = None if price is None else hit_price(price, prompt, cached, response)
    return HitSavings(1, prompt, response, int(response == 0), cached, money, int(price is None))


def _sum_savings(hits: Sequence[HitSavings], *, has_price: bool) -> HitSavings:
    return HitSavings(
        len(hits),
        sum(hit.prompt_tokens for hit in hits),
        sum(hit.response_tokens for hit in hits),
        sum(hit.without_response for hit in hits),
        sum(hit.cached_tokens for hit in hits),
        sum(hit.money or 0.0 for hit in hits) if has_price else None,
        sum(hit.unpriced for hit in hits),
        sum(hit.wrong for hit in hits),
    )


def _mean_reuse_discount(
    prices: Sequence[PriceSettings | None], tokenized: Sequence[TokenizedRequest | None]
) -> float | None:
    known = [
        (price.input - price.price_of_reuse, len(tokens.prompt))
        for price, tokens in zip(prices, tokenized, strict=True)
        if price is not None and price.cached is not None and tokens is not None
    ]
    total = sum(count for _, count in known)
    return sum(discount * count for discount, count in known) / total / MILLION if total else None


def _wrong_hits(replayed: Sequence[ReplayedRequest]) -> WrongHits:
    hits = [
        request.exchange.hit
        for request in replayed
        if request.exchange is not None and request.exchange.hit is not None
    ]
    matches = [hit.match for hit in hits if hit.match is not None]
    risks = [match.error for match in matches if match.error is not None]
    # The policy `threshold` has no score but the similarity.
    scores = [match.score for match in matches if match.error is None and match.score != match.similarity]
    risks += [1.0 - score for score in scores if score is not None]
    compared = [request.is_right for request in replayed if request.is_right is not None]
    return WrongHits(len(compared), compared.count(False), sum(risks) / len(risks) if risks else None)
