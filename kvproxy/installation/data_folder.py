"""Locks a data folder for one proxy."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvproxy.demo import DEMO
from kvproxy.errors import OTHER_FOLDER, SettingsError, file_error
from kvproxy.index.private_files import make_private_file

_FILE = "serve.lock"


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A proxy of this machine that uses a data folder. `journal` is the file of its journal; None for a database or without."""

    url: str
    journal: str | None = None


@contextmanager
def locked_folder(folder: Path, url: str, journal: str | None = None) -> Iterator[None]:
    """Lock a data folder for the proxy at `url`, or for the command of this name.

    Raises SettingsError, which names the process that has locked it. `journal`: see `RunningProxy`.
    """
    path = folder / _FILE
    try:
        make_private_file(path)
        opened = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise _not_writable(folder, error) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise SettingsError(
                f"{_describe_owner(file.read())} uses the data folder {folder}: stop it, or choose another folder with --data",
                param="data",
            ) from None
        owner = json.dumps({"pid": os.getpid(), "url": url, "journal": journal})
        try:
            os.ftruncate(file.fileno(), 0)
            # Without a buffer, whose write fails again when the file is closed.
            os.write(file.fileno(), owner.encode())
        except OSError as error:
            raise _not_writable(folder, error) from None
        yield


def _not_writable(folder: Path, error: OSError) -> SettingsError:
    return file_error("write to the data folder", folder, error, OTHER_FOLDER)


@contextmanager
def removed_on_failure(folder: Path) -> Iterator[None]:
    """Remove a locked folder that is otherwise empty, if the `with` block fails."""
    try:
        yield
    except BaseException:
        if [*folder.iterdir()] == [folder / _FILE]:
            (folder / _FILE).unlink()
            folder.rmdir()
        raise


def demo_folder(folder: Path) -> Path:
    """Return the data folder of `kvproxy serve --demo`, given the default folder."""
    return folder.with_name(f"{folder.name}-{DEMO}")


def running_proxy_url(folder: Path) -> str | None:
    """Return the URL of the proxy that uses a data folder now; None if no proxy on this machine uses it."""
    proxy = running_proxy(folder)
    return None if proxy is None else proxy.url


def running_proxy(folder: Path) -> RunningProxy | None:
    """Return the proxy that uses a data folder now; None if no proxy on this machine uses it."""
    try:
        with (folder / _FILE).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = json.load(file)
                url = str(owner["url"])
                return RunningProxy(url, owner.get("journal")) if _is_url(url) else None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def last_proxy_url(folder: Path) -> str | None:
    """Return the URL of the last proxy that used a data folder; None if no proxy did, or if the folder cannot be read."""
    try:
        url = str(json.loads((folder / _FILE).read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if _is_url(url) else None


def _is_url(owner: str) -> bool:
    """Return False for a command that locked the folder."""
    return owner.startswith("http")


def _describe_owner(lock_content: str) -> str:
    try:
        owner = json.loads(lock_content)
        url = str(owner["url"])
        return f"the proxy of process {owner['pid']} at {url}" if _is_url(url) else f"{url} of process {owner['pid']}"
    except (ValueError, KeyError, TypeError):
        return "another proxy"
