"""Writes a data folder to an archive, and restores it."""

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter

from kvproxy import __version__
from kvproxy.errors import OTHER_FOLDER, InvalidRequest, KvproxyError, NotFound, file_error
from kvproxy.index.sqlite_files import cannot_change, file_uri
from kvproxy.index.store_location import is_url
from kvproxy.installation.data_folder import locked_folder, removed_on_failure
from kvproxy.settings import Settings
from kvproxy.units import format_bytes

_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 2**20
_RESPONSES = "responses.db"
_DATABASES = (_RESPONSES, "journal.db", "slots.db", "spending.db")
_FILES = ("clients.json", "changes.jsonl", "kvproxy.toml")
_MAX_MANIFEST_BYTES = 2**16
# Databases of texts compress to a tenth.
_MAX_RATIO, _FREE_BYTES = 100, 64 * 2**20
PG_DUMP = "pg_dump -n kvproxy -n kvproxy_journal -Fc -f kvproxy.dump URL"
"""The command that saves the store and the journal of a proxy in PostgreSQL."""
_SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """An archive: when it was created (seconds since the epoch), and the size of each file in bytes, by name."""

    version: str
    created: float
    files: dict[str, int]


def write_backup(
    settings: Settings, archive: Path, on_copied: Callable[[str], None] = lambda name: None
) -> BackupSummary:
    """Write the databases, clients, and settings of a data folder to an archive that only its owner can read.

    A running proxy can write during the backup. `on_copied` receives the name of each copied file. Responses in PostgreSQL,
    encryption keys, tiers, and search indexes are not included.
    """
    if not archive.name.endswith(_SUFFIXES):
        raise InvalidRequest(
            f"cannot write {archive}: its name must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        )
    sources = {name: path for name, path in _files_to_back_up(settings).items() if path.is_file()}
    if not sources and is_url(settings.store_location):
        raise NotFound(
            f"there is nothing to save in {settings.data}: responses, requests, and clients are in PostgreSQL: {PG_DUMP}"
        )
    if not sources:
        raise NotFound(f"there is nothing to save in {settings.data}: give --data")
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".kvproxy-backup-") as folder:
            copies = Path(folder)
            for name, path in sources.items():
                _copy(path, copies / name)
                on_copied(name)
            digests = {name: _digest(copies / name) for name in sources}
            created = time.time()
            manifest = {"version": __version__, "created": created, "sha256": digests}
            (copies / _MANIFEST).write_text(json.dumps(manifest))
            unfinished = copies / archive.name
            with tarfile.open(unfinished, "w:gz" if archive.suffix in (".gz", ".tgz") else "w") as tar:
                for name in (_MANIFEST, *sources):
                    tar.add(copies / name, name)
            unfinished.chmod(0o600)
            os.replace(unfinished, archive)
            sizes = {name: (copies / name).stat().st_size for name in sources}
    except OSError as error:
        raise file_error("write", archive, error, "name a file in a writable folder") from None
    return BackupSummary(__version__, created, sizes)


def restore_backup(settings: Settings, archive: Path, *, replace: bool = False) -> BackupSummary:
    """Restore an archive to a data folder that no proxy uses. All files are checked before the first is restored."""
    try:
        return _restore(settings, archive, replace)
    except OSError as error:
        raise file_error("write to the data folder", settings.data, error, OTHER_FOLDER) from None


def _restore(settings: Settings, archive: Path, replace: bool) -> BackupSummary:
    places = _files_to_back_up(settings)
    with _open_archive(archive):
        # A missing archive is reported before a proxy that uses the folder.
        pass
    is_new = not settings.data.exists()
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        locked_folder(settings.data, "kvproxy restore"),
        removed_on_failure(settings.data) if is_new else nullcontext(),
        _open_archive(archive) as tar,
        tempfile.TemporaryDirectory(dir=settings.data, prefix=".restore-") as scratch,
    ):
        folder = Path(scratch)
        manifest = _read_manifest(tar, folder, archive)
        digests = manifest.sha256
        _check_sizes(tar, digests, archive)
        existing = [str(places[name]) for name in digests if places[name].exists()]
        if existing and not replace:
            raise InvalidRequest(f"{', '.join(existing)} would be overwritten: give --force, or another --data")
        sizes = {}
        for name, digest in digests.items():
            path = _extract(tar, name, folder)
            if _digest(path) != digest or (name in _DATABASES and not _is_intact(path)):
                raise InvalidRequest(f"{name} in {archive} is damaged: use another backup")
            sizes[name] = path.stat().st_size
        for name in digests:
            _replace_file(folder / name, places[name])
    return BackupSummary(manifest.version, manifest.created, sizes)


def _files_to_back_up(settings: Settings) -> dict[str, Path]:
    files = {name: settings.data / name for name in (*_DATABASES, *_FILES)}
    if is_url(settings.store_location):
        del files[_RESPONSES]
    else:
        files[_RESPONSES] = settings.store_path
    return files


def _copy(source: Path, target: Path) -> None:
    if source.name in _FILES:
        shutil.copyfile(source, target)
        return
    try:
        with closing(_open(source)) as database, closing(sqlite3.connect(target)) as copy:
            database.backup(copy)
    except sqlite3.Error as error:
        raise KvproxyError(f"cannot copy {source}: {error}") from None


def _open(source: Path) -> sqlite3.Connection:
    return sqlite3.connect(file_uri(source), uri=True) if cannot_change(source) else sqlite3.connect(source)


def _is_intact(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path)) as database:
            return bool(database.execute("pragma quick_check").fetchone()[0] == "ok")
    except sqlite3.Error:
        return False


def _replace_file(source: Path, target: Path) -> None:
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    source.chmod(0o600)
    shutil.move(source, target)


class _Manifest(BaseModel):
    """The manifest of an archive; `sha256` has their digests by name."""

    version: str = Field(pattern=r"^[0-9A-Za-z.+-]{1,64}$")
    created: float = Field(strict=True, ge=0, le=2**40, allow_inf_nan=False)
    sha256: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]


_MANIFEST_FORM = TypeAdapter(_Manifest)


@contextmanager
def _open_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except FileNotFoundError:
        raise NotFound(f"no file {archive}: check the path") from None
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        reason = getattr(error, "strerror", None) or "it is no archive, or is damaged"
        raise InvalidRequest(f"cannot restore {archive} ({reason}): give a file of kvproxy backup") from None


def _read_manifest(tar: tarfile.TarFile, folder: Path, archive: Path) -> _Manifest:
    try:
        if tar.getmember(_MANIFEST).size > _MAX_MANIFEST_BYTES:
            raise ValueError
        manifest = _MANIFEST_FORM.validate_json(_extract(tar, _MANIFEST, folder).read_bytes())
    except (InvalidRequest, KeyError, ValueError):
        raise InvalidRequest(f"{archive} is not a file of kvproxy backup") from None
    if unknown := manifest.sha256.keys() - {*_DATABASES, *_FILES}:
        raise InvalidRequest(f"{archive} has the unknown file {min(unknown)!r}: it is of a later version")
    return manifest


def _check_sizes(tar: tarfile.TarFile, names: Iterable[str], archive: Path) -> None:
    size, packed = sum(member.size for member in tar.getmembers() if member.name in set(names)), archive.stat().st_size
    if size > _MAX_RATIO * packed + _FREE_BYTES:
        raise InvalidRequest(
            f"{archive} unpacks to {format_bytes(size)}, over {_MAX_RATIO} times its size: this is no backup"
        )


def _extract(tar: tarfile.TarFile, name: str, folder: Path) -> Path:
    if name not in tar.getnames() or not tar.getmember(name).isreg():
        raise InvalidRequest(f"{name} is missing in the archive: use another backup")
    size, free = tar.getmember(name).size, shutil.disk_usage(folder).free
    if size > (_MAX_MANIFEST_BYTES if name == _MANIFEST else free):
        raise InvalidRequest(f"{name} in the archive has {size:,} bytes, and {free:,} are free: free space on the disk")
    # TarFile.extract has no filters before Python 3.11.4, and Debian 12 has 3.11.2.
    with tar.extractfile(name) as content, (folder / name).open("xb") as file:  # type: ignore[union-attr]
        shutil.copyfileobj(content, file)
    return folder / name


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
