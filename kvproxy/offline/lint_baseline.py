"""What the families of a log share, kept in a file, so that a later run notices where they share less."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kvproxy.errors import InvalidRequest
from kvproxy.offline.lint import FamilyReport

_VERSION = 1
_SAME_FAMILY = 0.3
"""Least part of two signatures that is equal where a family is the same; a changed span changes a few of its shingles only."""
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Shared:
    """What one family shared.

    Attributes:
        model, head: that tell it to a person.
        signature: that tells it to a later run, see `Family.signature`.
        shared_blocks, share: as in `FamilyReport`.
    """

    model: str
    head: str
    signature: list[int]
    shared_blocks: int
    share: float


@dataclass(frozen=True, slots=True)
class Worse:
    """A family that shares less than it did; `now` is None where it is not in the log any more."""

    before: Shared
    now: Shared | None


def shared_of(report: FamilyReport) -> Shared:
    """What a family shares, as it is kept."""
    family = report.family
    return Shared(family.model, family.head[:_SHOWN], family.signature, report.shared_blocks, report.share)


def write_baseline(path: Path, reports: Sequence[FamilyReport]) -> None:
    """Keep what families share."""
    families = [asdict(shared_of(report)) for report in reports if len(report.family.members) > 1]
    path.write_text(json.dumps({"version": _VERSION, "families": families}, indent=1) + "\n")


def read_baseline(path: Path) -> list[Shared]:
    """What families shared; raises InvalidRequest where the file is no baseline."""
    try:
        document = json.loads(path.read_text())
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']}")
        return [Shared(**family) for family in document["families"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(f"{path} is no baseline ({error}): remove it, and lint writes a new one") from None


def worse(before: Sequence[Shared], reports: Sequence[FamilyReport], tolerance: float) -> list[Worse]:
    """The families that share less than before, or are gone.

    Args:
        tolerance: how much smaller a share of reused tokens may be.
    """
    now = [shared_of(report) for report in reports]
    found = []
    for family in before:
        known = max(now, key=lambda each: _alike(family, each), default=None)
        if known is None or _alike(family, known) < _SAME_FAMILY:
            found.append(Worse(family, None))
        elif known.share < family.share - tolerance:
            found.append(Worse(family, known))
    return found


def _alike(one: Shared, other: Shared) -> float:
    if one.model != other.model:
        return 0.0
    names = {*one.signature}, {*other.signature}
    return len(names[0] & names[1]) / max(1, min(len(names[0]), len(names[1])))
