"""Labels and formats the statistics of both caches."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvproxy.commands.formatting import decimal, format_duration, format_size, one_line, percent
from kvproxy.index.policies.policy import JUDGE_BY_MODEL, MIN_COMPARED, MIN_INTERVAL, NEVER_EQUAL, checked_interval
from kvproxy.units import plural

# The entry of a group names fields that are data, such as tags and outcomes.
_LABELS: dict[str, str] = {
    "cache.entries": "Stored responses",
    "cache.expired": "Expired responses",
    "cache.stale": "Expired responses that may be served",
    "cache.hits": "Hits since each response was stored",
    "cache.completion_tokens_saved": "Response tokens saved by these hits",
    "cache.prompt_tokens_saved": "Prompt tokens saved by these hits",
    "cache.entry_bytes": "Size of responses",
    "cache.max_entries": "Maximum number of responses",
    "cache.max_bytes": "Maximum size",
    "cache.bytes": "Size on disk",
    "cache.path": "Store",
    "cache.tags": "Responses with tag",
    "cache.semantic.policy": "Semantic policy",
    "cache.semantic.shadow": "Shadow mode",
    "cache.semantic.lookups": "Semantic lookups",
    "cache.semantic.compared": "Compared, not served",
    "cache.semantic.learned.observed": "Responses compared, but not served",
    "cache.semantic.learned.right": "Responses not served that were right",
    "cache.semantic.learned.accepted": "Responses accepted, but not served",
    "cache.semantic.learned.accepted_wrong": "Accepted, but not served, and wrong",
    "cache.semantic.learned.accepted_undecided": "Accepted, but not served, and undecided",
    "cache.semantic.learned.rejected": "Responses that a person marked wrong",
    "cache.semantic.learning.namespaces": "Learned policy: namespaces, any passages",
    "cache.semantic.learning.serving": "Learned policy: trusted namespaces",
    "cache.semantic.learning.observations": "Learned policy: comparisons",
    "cache.semantic.learning.served": "Learned policy: responses served",
    "cache.semantic.learning.expected_wrong": "Learned policy: wrong responses, expected",
    "cache.semantic.learning.unestimated": "Learned policy: hits without an estimate",
    "cache.semantic.learning.would_serve": "Learned policy: share it alone would serve",
    "cache.semantic.learning.most_wrong": "Learned policy: wrong responses, at most",
    "cache.semantic.learning.by_checked": "Learned policy: served, by checked alone",
    "cache.semantic.learning.others": "Learned policy: served, by the score",
    "cache.semantic.learning.checked_equal": "Comparisons for checked: equal",
    "cache.semantic.learning.checked_different": "Comparisons for checked: different",
    "cache.semantic.learning.checked_undecided": "Comparisons for checked: undecided",
    "cache.semantic.learning.max_error": "Learned policy: configured bound",
    "blocks.num_blocks": "Blocks",
    "blocks.block_size": "Tokens per block",
    "blocks.free": "Free blocks",
    "blocks.cached": "Cached blocks",
    "blocks.used": "Blocks in use",
    "blocks.usage": "Share of blocks in use or pinned",
    "blocks.queries": "Prompt tokens looked up",
    "blocks.hits": "Prompt tokens found",
    "blocks.hit_rate": "Share of prompt tokens found",
    "blocks.tier_hits": "Prompt tokens from tiers",
    "blocks.reuse_rate": "Share from the pool and tiers",
    "blocks.evictions": "Evicted blocks",
    "blocks.pinned": "Pinned blocks",
    "blocks.distinct": "Distinct cached blocks",
    "blocks.block_bytes": "Memory per block",
    "blocks.used_bytes": "Memory of blocks in use",
    "blocks.complete": "All KV events received",
    "blocks.slots": "Blocks are slots of llama.cpp",
    "blocks.residency.evicted": "Evicted cached blocks",
    "blocks.residency.lifetime": "Median time from caching to eviction",
    "blocks.residency.idle": "Median time from last use to eviction",
    "blocks.residency.never_hit": "Share evicted without a hit",
    "blocks.residency.reuse_gap": "Median time between uses",
}
# The statistics `learned` count them, too, and include earlier processes.
_DUPLICATES = ("cache.semantic.compared.right", "cache.semantic.compared.wrong")
_SHARES = ("usage", "hit_rate", "reuse_rate", "never_hit", "would_serve", "max_error")
_MOSTLY_UNDECIDED = f"most were undecided, so the bound of wrong hits is high: {JUDGE_BY_MODEL}"
_OF_NAMESPACES = "not known yet, because it adds up the bounds of namespaces with few comparisons"
_DURATIONS = ("lifetime", "idle", "reuse_gap")


def label_statistics(values: Mapping[str, Any], group: str) -> Iterator[tuple[str, object]]:
    """Yield the label and the text of each known statistic, except lists. `group` (`cache` or `blocks`) has the labels."""
    # The expected number leaves out undecided comparisons of checked, which the bound counts as wrong.
    hidden = {"expected_wrong"} if values.get("by_checked") else set[str]()
    # A share by the estimates of few comparisons is noise.
    hidden |= {"would_serve"} if values.get("observations", MIN_COMPARED) < MIN_COMPARED else set[str]()
    for name, value in _with_other_hits(values).items():
        path = f"{group}.{name}"
        if name in hidden:
            continue
        if isinstance(value, Mapping):
            yield from label_statistics(value, path)
        elif value is not None and not isinstance(value, list | tuple) and path not in _DUPLICATES:
            data = f"{_LABELS[group]}: {one_line(name)}" if group in _LABELS else None
            label = _LABELS.get(path) or data or one_line(name).replace("_", " ").capitalize()
            yield label, _learned_text(name, values) or _format_value(name, value)


def _with_other_hits(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics in which the hits that `checked` decided and all others, side by side, add up to those served."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found[name] = value
        if name == "by_checked" and "served" in values:
            found["others"] = max(0, values["served"] - value)
    return found


def _learned_text(name: str, learned: Mapping[str, Any]) -> str | None:
    """Return the text of a statistic that depends on other statistics; None for the value alone."""
    if name == "most_wrong" and learned.get("served") and _is_unestimated(learned):
        return "unknown, because no comparison estimates it"
    if name == "most_wrong" and learned.get("served") and _has_few_comparisons(learned):
        return _few_comparisons(learned)
    if name == "most_wrong" and _is_sum_of_loose_bounds(learned):
        return f"{learned[name]:,}; {_OF_NAMESPACES}"
    if name == "checked_undecided":
        equal, different, undecided = _checked_comparisons(learned)
        return f"{undecided:,}; {_MOSTLY_UNDECIDED}" if undecided > equal + different else None
    return None


def _checked_comparisons(learned: Mapping[str, Any]) -> list[int]:
    return [int(learned.get(f"checked_{name}", 0)) for name in ("equal", "different", "undecided")]


def _format_value(name: str, value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "path":
        return one_line(value).replace(f"{Path.home()}/", "~/", 1)
    if not isinstance(value, int | float):
        return one_line(value)
    if name in _SHARES:
        return percent(value)
    if name in _DURATIONS:
        return format_duration(value)
    if name.rpartition("_")[2] == "bytes":
        return format_size(value)
    return decimal(value) if isinstance(value, float) else value


def policy_sentences(learned: dict[str, Any]) -> list[str]:
    """Describe the statistics of the policy `learned`."""
    compared, served = int(learned["observations"]), int(learned["served"])
    # A person's verdict is learned if the question is known, and the response was the nearest one to it.
    verb = "was" if compared == 1 else "were"
    sentences = [f"{plural(compared, 'verdict')} on stored responses, by fresh ones or by people, {verb} learned."]
    if compared >= MIN_COMPARED:
        share = percent(learned["would_serve"])
        sentences.append(
            f"By its own estimate, without checked, learned would answer {share} of the recent similar questions."
        )
    undecided = int(learned.get("undecided", 0))
    if undecided:
        advice = f" {_MOSTLY_UNDECIDED[:1].upper()}{_MOSTLY_UNDECIDED[1:]}." if undecided > compared else ""
        sentences.append(f"Of {undecided + compared:,} comparisons, {undecided:,} were undecided.{advice}")
    if learned.get("unlearnable"):
        sentences.append(f"Warning: in {plural(int(learned['unlearnable']), 'namespace')}, {NEVER_EQUAL}.")
    if not served:
        return [*sentences, "No similar question was answered from the cache yet."]
    answered = "1 similar question was" if served == 1 else f"{served:,} similar questions were"
    return [*sentences, f"{answered} answered from the cache.", *_wrong_hits(learned)]


def _num_unestimated(learned: Mapping[str, Any]) -> int:
    return int(learned["served"] if learned.get("expected_wrong") is None else learned.get("unestimated", 0))


def _is_unestimated(learned: Mapping[str, Any]) -> bool:
    """Whether nothing is known about wrong hits."""
    served, by_checked = int(learned["served"]), int(learned.get("by_checked", 0))
    return _num_unestimated(learned) == served or (by_checked >= served and not any(_checked_comparisons(learned)))


def _has_few_comparisons(learned: Mapping[str, Any]) -> bool:
    return bool(learned.get("by_checked")) and sum(_checked_comparisons(learned)) < MIN_INTERVAL


def _few_comparisons(learned: Mapping[str, Any]) -> str:
    return f"not known yet, because of too few comparisons for checked ({sum(_checked_comparisons(learned))})"


def _is_sum_of_loose_bounds(learned: Mapping[str, Any]) -> bool:
    """Whether the bounds of wrong hits of several namespaces add up to more than the bound by all comparisons together."""
    served, by_checked = int(learned.get("served", 0)), int(learned.get("by_checked", 0))
    compared = _checked_comparisons(learned)
    if not (by_checked and any(compared)):
        return False
    of_checked = math.ceil(by_checked * checked_interval(*compared)[1])
    return int(learned["most_wrong"]) > of_checked + max(0, served - by_checked)


def _wrong_hits(learned: dict[str, Any]) -> Iterator[str]:
    expected, most, served = learned.get("expected_wrong"), learned["most_wrong"], int(learned["served"])
    unknown, by_checked = _num_unestimated(learned), min(served, int(learned.get("by_checked", 0)))
    compared = _checked_comparisons(learned)
    if _is_unestimated(learned):
        yield "Wrong: unknown, because no comparison estimates it."
    elif _has_few_comparisons(learned):
        yield f"Wrong: {_few_comparisons(learned)}."
    elif by_checked and most >= served:
        yield "Wrong: not known yet, because too few comparisons were decided: it may be all of them."
    elif by_checked:
        reason = f"; {_OF_NAMESPACES}" if _is_sum_of_loose_bounds(learned) else ""
        yield f"Wrong: at most {most:,.0f} of {served:,}{reason}."
    else:
        without = f", without {unknown:,} that no comparison estimates" if unknown else ""
        yield f"Wrong: {expected:,.2f} expected{without}, at most {most:,.0f} (about 90% confidence)."
    if by_checked and any(compared):
        least, largest = map(percent, checked_interval(*compared))
        interval = f": {least} to {largest} of these are wrong (95% interval)" if sum(compared) >= MIN_INTERVAL else ""
        equal, different, undecided = compared
        yield (
            f"checked alone accepted {by_checked:,} of them{interval}. Fresh responses to questions that it accepts, also of"
            f" requests that were not to be hits: {equal:,} equal, {different:,} different, {undecided:,} undecided."
        )
