"""`kvproxy backup` and `kvproxy restore`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from kvproxy.commands.formatting import local_time
from kvproxy.commands.options import WRITES, Data, Force, Store, load_settings
from kvproxy.commands.output import Output, print_note, text_output
from kvproxy.units import format_bytes

if TYPE_CHECKING:
    from kvproxy.installation.backup import BackupSummary

Archive = Annotated[Path, Argument(help="Archive: a .tar, .tar.gz or .tgz file.")]


def backup(
    archive: Annotated[Archive, WRITES],
    data: Data = None,
    store: Store = None,
) -> Output:
    """Save responses, journal, clients and settings to a file.

    The proxy may run: each database is copied in one transaction. The archive contains prompts, and its settings may contain
    secrets. Encryption keys, tiers, and responses in PostgreSQL are not included.
    """
    from kvproxy.index.store_location import is_url
    from kvproxy.installation.backup import PG_DUMP, write_backup

    settings = load_settings(data=data, store=store)
    summary = write_backup(settings, archive, print_note)
    if is_url(settings.store_location):
        print_note(f"what is in PostgreSQL is not included: {PG_DUMP}")
    if settings.encryption.enabled:
        print_note("the keys of encryption are not included: save them separately")
    return _archive_output(summary, archive)


def restore(
    archive: Archive,
    data: Data = None,
    store: Store = None,
    force: Force = False,
) -> Output:
    """Restore a backup to a data folder that no proxy uses.

    All files are checked before the first one is replaced. The search index is built again at the next start.

    Example: kvproxy restore kvproxy.tar.gz --data /var/lib/kvproxy
    """
    from kvproxy.installation.backup import restore_backup

    return _archive_output(restore_backup(load_settings(data=data, store=store), archive, replace=force), archive)


def _archive_output(summary: "BackupSummary", archive: Path) -> Output:
    files = ", ".join(f"{name} ({format_bytes(size)})" for name, size in summary.files.items())
    line = f"{archive}: {files}; kvproxy {summary.version}, {local_time(summary.created)}"
    return text_output({"archive": str(archive), **asdict(summary)}, line)
