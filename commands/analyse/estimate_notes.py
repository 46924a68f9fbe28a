"""Sentences on the hits of an estimate, and on what its numbers assume."""

from typing import TYPE_CHECKING

from kvproxy.apis.service_tiers import BATCH
from kvproxy.commands.formatting import percent
from kvproxy.commands.journal.spending import SET_TIERS
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.analyse.estimate import Estimate


def hit_sentences(estimated: "Estimate") -> list[str]:
    fewest, most = (count / estimated.requests for count in estimated.semantic_range)
    varying = f"semantic hits: {percent(fewest)} to {percent(most)}, depending on exploration"
    return [*([varying] if fewest < most else []), _wrong_hits_sentence(estimated)]


def assumptions(estimated: "Estimate", prefill_and_decode_rate: tuple[float, float]) -> list[str]:
    prefill, decode = prefill_and_decode_rate
    lines = [
        f"seconds: {prefill:,g} prompt tokens per second and {decode:,g} response tokens per second"
        " (--prefill-rate, --decode-rate)"
    ]
    savings = (estimated.exact_savings, estimated.semantic_savings)
    if any(hits.cached_tokens for hits in savings):
        lines.append(
            "cached anyway: prompt tokens of hits that a prefix cache would have reused without kvproxy, as the log reports or an"
            " unlimited pool simulates; saved seconds exclude them, and saved money has their price as cached tokens"
        )
    reported, counted = estimated.reported_tokens, estimated.prefix.prompt_tokens
    if estimated.token_scale != 1:
        sums = "" if reported is None else f", which counts {counted:,} where the responses report {reported:,}"
        lines.append(
            f"two counts of tokens: saved tokens of hits are those that the logged responses report, and tokens of pools are"
            f" those of the tokenizer{sums} (--tokenizer); seconds and money of pools are for reported tokens"
        )
    if without := sum(hits.without_response for hits in savings):
        lines.append(
            f"{plural(without, 'hit')} without a logged response: its response tokens are not in tokens, seconds, and money"
        )
    if estimated.exact_savings.money is None:
        lines.append("no price is known: give --price INPUT,OUTPUT,CACHED for a million tokens")
    elif unpriced := sum(hits.unpriced for hits in savings):
        lines.append(f"not in the saved money: {plural(unpriced, 'hit')} of models without a price")
    if estimated.exact_savings.money is not None and estimated.reuse_discount is None:
        lines.append("no price of cached tokens is known: give --price INPUT,OUTPUT,CACHED for a million tokens")
    if estimated.reuse_discount is not None and estimated.prefix.unlimited_discounted < estimated.prefix.unlimited:
        lines.append(
            "money of pools excludes reused prefixes below the provider's minimum (least_cached_tokens, else published): it"
            " gives no discount on them"
        )
    if estimated.service_tiers:
        names = ", ".join(estimated.service_tiers)
        batch = (
            "; --format requests reads lines of a batch as live requests" if BATCH in estimated.service_tiers else ""
        )
        lines.append(f"money: {names} prices apply to requests of these service tiers{batch}")
    if estimated.tiers_without_price:
        lines.append(
            "money: requests of these service tiers have the price of the standard tier:"
            f" {', '.join(estimated.tiers_without_price)} ({SET_TIERS})"
        )
    if estimated.keys > 1:
        lines.append(
            f"{estimated.keys:,} API keys: requests of different keys share no responses and no prefixes, as with a key of"
            " kvproxy for each; with cache.shared = true in kvproxy.toml, the estimate has one response cache for all"
        )
    if estimated.untokenized:
        lines.append(f"{estimated.untokenized:,} prompts contain more than text and are not counted")
    return lines


def _wrong_hits_sentence(estimated: "Estimate") -> str:
    wrong, interval = estimated.wrong, estimated.wrong.interval
    if not estimated.semantic:
        return "no semantic hits"
    if interval is not None:
        return (
            f"{wrong.wrong:,} of {wrong.compared:,} semantic hits differ from the logged response"
            f" ({percent(wrong.wrong / wrong.compared)}, between {percent(interval[0])} and {percent(interval[1])})"
            + ("; these saved nothing" if wrong.wrong else "")
        )
    guess = "" if wrong.expected is None else f"; the verifier expects {percent(wrong.expected)} wrong hits"
    return f"the log has no responses to compare with semantic hits{guess}"
