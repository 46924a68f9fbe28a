"""The dashboard's files: public, without private data, and with a strict content security policy."""

from pathlib import Path

import httpx
import pytest

from kvproxy.http import ui
from tests.servers import run_front

STATIC = Path(ui.__file__).parent / "static"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    client = {"name": "alice", "key_sha256": "0" * 64}
    data = tmp_path_factory.mktemp("ui")
    with run_front(data, "http://127.0.0.1:9", admin_token="secret", clients=[client]) as (found, _):
        yield found


def test_the_page_is_found_by_either_name(url: str) -> None:
    page = httpx.get(f"{url}/ui", follow_redirects=True)
    assert (page.status_code, str(page.url)) == (200, f"{url}/ui/")
    assert page.text == (STATIC / "index.html").read_text()


def test_browsers_are_redirected_from_the_root(url: str) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    assert str(httpx.get(url, headers=browser, follow_redirects=True).url) == f"{url}/ui/"
    # A browser would remember a permanent redirect of the root.
    assert httpx.get(url, headers=browser).status_code == 307
    assert httpx.get(url).status_code == 401


@pytest.mark.parametrize("name", sorted(path.name for path in STATIC.iterdir()))
def test_every_file_is_served_with_strict_headers(url: str, name: str) -> None:
    answer = httpx.get(f"{url}/ui/{name}")
    assert answer.status_code == 200
    assert answer.content == (STATIC / name).read_bytes()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in answer.text.replace("https://github.com/leeoniya/uPlot", "")
    assert "innerHTML" not in answer.text


@pytest.mark.parametrize("path", ["/ui/nothing.js", "/ui/../services.py", "/ui/%2e%2e/__init__.py"])
def test_nothing_else_is_served(url: str, path: str) -> None:
    assert httpx.get(url + path).status_code in (400, 401, 404)


def test_other_pages_may_not_load_it(url: str) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert httpx.get(f"{url}/ui/app.js", headers=foreign).status_code == 403
