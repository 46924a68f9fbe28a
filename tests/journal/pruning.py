"""Prunes a journal in the thread of a test."""

from kvproxy.journal.journal import StoredJournal


def prune(journal: StoredJournal) -> None:
    """Prune beside the journal's own thread, which prunes every few seconds over the same connection."""
    with journal._writing:
        while journal._writer.prune():
            pass
