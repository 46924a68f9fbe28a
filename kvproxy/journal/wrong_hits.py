"""Wrong semantic hits: sums over those whose response a person rejected, and the estimated share of wrong ones."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kvproxy.index.policies.policy import JUDGE_BY_MODEL, MIN_INTERVAL, checked_interval
from kvproxy.journal.groups import SavingsKey
from kvproxy.journal.reader import BACKEND, JournalReader, TotalRow
from kvproxy.journal.saving_groups import groups_of, is_counted
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.units import utc_day

_BATCH = 500
_HITS = (
    "select r.time, r.layer, r.model, r.tenant, coalesce(r.tags, ''), r.team, r.prompt_tokens, r.completion_tokens, r.total_ms,"
    f" (select min(c.total_ms) from requests c where c.entry = r.entry and c.layer in {BACKEND} and c.number < r.number),"
    " r.entry"
    " from requests r where r.layer = 'semantic' and r.status = 200 and {condition} and r.entry in ({places})"
)
Place = tuple[str, str, str, str]
"""The name of a group, a model, a tenant, and a UTC day."""


@dataclass(frozen=True, slots=True)
class HitVerdicts:
    """Verdicts on the semantic hits of a store.

    Attributes:
        counts: numbers of compared semantic hits, from `Observations.summary`.
        rejected: ids of the responses that a person rejected.
    """

    counts: Mapping[str, int]
    rejected: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class _Hit:
    time: float
    layer: str
    model: str
    tenant: str
    tags: str
    team: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    total_ms: float | None
    computed_ms: float | None
    entry: str

    @property
    def day(self) -> str:
        return utc_day(self.time)


@dataclass(slots=True)
class WrongHitSums:
    """Sums over wrong hits; `seconds` is the duration of the original responses minus that of the hits.

    `entries` has the ids of their responses.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    unreported: int = 0
    entries: set[str] = field(default_factory=set)

    def add(self, hit: _Hit) -> None:
        self.requests += 1
        self.entries.add(hit.entry)
        self.prompt_tokens += hit.prompt_tokens or 0
        self.completion_tokens += hit.completion_tokens or 0
        self.seconds += 0.0 if hit.computed_ms is None else (hit.computed_ms - (hit.total_ms or 0.0)) / 1000
        self.unreported += None in (hit.prompt_tokens, hit.completion_tokens)

    def without(self, row: TotalRow) -> TotalRow:
        """Return the sums of a group without what these hits would have saved; they still count as requests."""
        return replace(
            row,
            prompt_tokens=max(0, row.prompt_tokens - self.prompt_tokens),
            completion_tokens=max(0, row.completion_tokens - self.completion_tokens),
            # The records round times, and have no time of the backend alone.
            saved_seconds=0.0 if self.requests >= row.requests else row.saved_seconds - self.seconds,
            unreported=max(0, row.unreported - self.unreported),
        )


def recorded_wrong_hits(
    reader: JournalReader, by: SavingsKey, selection: SumsFilter, rejected: Collection[str]
) -> dict[Place, WrongHitSums]:
    """Return the sums of the recorded hits on rejected responses.

    Hits whose records were deleted are unknown.
    """
    condition, values = selection.records_sql()
    sums: dict[Place, WrongHitSums] = {}
    ordered = sorted(rejected)
    for ids in (ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH)):
        sql = _HITS.format(condition=condition, places=", ".join("?" * len(ids)))
        for row in reader.rows(sql, [*values, *ids]):
            hit = _Hit(*row)
            for name in groups_of(hit, by) if is_counted(hit.tags, selection.tag) else ():
                sums.setdefault((name, hit.model, hit.tenant, hit.day), WrongHitSums()).add(hit)
    return sums


@dataclass(frozen=True, slots=True)
class WrongHitInterval:
    """The 95% interval of the share of semantic hits that are wrong.

    Attributes:
        source: the comparisons behind it, in words.
        sentence: the interval and its source; without the interval if the comparisons are too few.
    """

    least: float
    most: float
    source: str
    sentence: str


def wrong_hit_interval(counts: Mapping[str, int], *, is_of_all: bool) -> WrongHitInterval | None:
    """Return the interval of the compared hits, from `Observations.summary`; None without any.

    `is_of_all` is false in a report on selected requests: the counts are those of all requests.
    """
    wrong, decided, undecided = counts["accepted_wrong"], counts["accepted"], counts["accepted_undecided"]
    if not decided + undecided:
        return None
    source = (
        f"95% interval; {wrong:,} of {decided:,} semantic hits compared with a fresh response were wrong"
        + (f", and {undecided:,} undecided, which may be equal or wrong" if undecided else "")
        + "; without the first hits of each namespace"
        + ("" if is_of_all else "; of all requests, not only the selected ones")
        + (f"; most are undecided: {JUDGE_BY_MODEL}" if undecided > decided else "")
    )
    least, most = checked_interval(decided - wrong, wrong, undecided)
    compared = decided + undecided
    known = f"{least:.1%} to {most:.1%} ({source})"
    few = f"not known yet, because of too few comparisons ({compared:,}): {wrong:,} wrong, {undecided:,} undecided"
    return WrongHitInterval(least, most, source, f"Wrong semantic hits: {known if compared >= MIN_INTERVAL else few}.")


def count_served_rejected(reader: JournalReader, selection: SumsFilter, rejected: Collection[str]) -> int:
    """Return the number of rejected responses that recorded semantic hits of the selected requests received."""
    sums = recorded_wrong_hits(reader, "layer", selection, rejected).values()
    return len({entry for each in sums for entry in each.entries})
