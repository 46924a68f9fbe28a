"""Stores the sharing of prompt families, and finds families that share less in a later run."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kvproxy.errors import InvalidRequest
from kvproxy.offline.lint import FamilyReport

_VERSION = 1
_LEAST_OVERLAP = 0.3
"""Least common share of the signatures of one family in two runs; a changed span alters a few shingles."""
_HEAD_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class FamilySharing:
    """The sharing of one family; see `FamilyReport` and `Family`."""

    model: str
    head: str
    signature: list[int]
    shared_blocks: int
    share: float


@dataclass(frozen=True, slots=True)
class SharingRegression:
    """A family that shares less than before; `now` is None if the log no longer contains it."""

    before: FamilySharing
    now: FamilySharing | None


def sharing_of(report: FamilyReport) -> FamilySharing:
    """Return the sharing of a family."""
    family = report.family
    head = family.head[:_HEAD_CHARACTERS]
    return FamilySharing(family.model, head, family.signature, report.shared_blocks, report.share)


def write_baseline(path: Path, reports: Sequence[FamilyReport]) -> None:
    """Write the sharing of all families with at least two requests."""
    families = [asdict(sharing_of(report)) for report in reports if len(report.family.members) > 1]
    path.write_text(json.dumps({"version": _VERSION, "families": families}, indent=1) + "\n")


def read_baseline(path: Path) -> list[FamilySharing]:
    """Read a baseline.

    Raises:
        InvalidRequest: the file is not a baseline.
    """
    try:
        document = json.loads(path.read_text())
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']}")
        return [FamilySharing(**family) for family in document["families"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(f"{path} is not a baseline ({error}): delete it to let lint write a new one") from None


def find_regressions(
    before: Sequence[FamilySharing], reports: Sequence[FamilyReport], tolerance: float
) -> list[SharingRegression]:
    """Return the families that share less than before, or are missing.

    Args:
        tolerance: accepted decrease of the reused share.
    """
    now = [sharing_of(report) for report in reports]
    found = []
    for family in before:
        match = max(now, key=lambda each: _overlap(family, each), default=None)
        if match is None or _overlap(family, match) < _LEAST_OVERLAP:
            found.append(SharingRegression(family, None))
        elif match.share < family.share - tolerance:
            found.append(SharingRegression(family, match))
    return found


def _overlap(one: FamilySharing, other: FamilySharing) -> float:
    if one.model != other.model:
        return 0.0
    names = {*one.signature}, {*other.signature}
    return len(names[0] & names[1]) / max(1, min(len(names[0]), len(names[1])))
