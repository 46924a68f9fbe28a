"""Generated pages are current, and links in the documentation are valid."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from kvproxy.settings.limits import LimitSettings

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("name", list(generate.PAGES))
def test_generated_pages_are_fresh(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generate.PAGES[name](), "run python docs/generate.py"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def _section(page: str, heading: str) -> str:
    """Return the text below the heading with this link target, or the whole page if it is empty."""
    sections = re.split(r"^#+ (.+)$", page, flags=re.MULTILINE)
    targets = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in sections[1::2]]
    return dict(zip(targets, sections[2::2], strict=True))[heading] if heading else page


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_figures_of_links_are_in_the_sections_that_they_lead_to(page: Path) -> None:
    links = re.findall(r"\[([^\]]*\d[^\]]*)\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", page.read_text())
    for text, target, heading in links:
        section = _section((page.parent / target).read_text(), heading)
        for figure in re.findall(r"(?<![\w.])\d[\d.,]*%?", text):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d%])", section), f"{text}: {target}#{heading}"


def test_the_site_and_the_readme_name_every_page() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": ([\w./-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(pages), "mkdocs.yml: nav"
    linked = set(re.findall(r"\]\(docs/([\w./-]+\.md)", (ROOT / "README.md").read_text()))
    assert linked == pages - {"index.md"}, "README.md: Documentation"


def test_every_metric_has_a_question_and_every_question_a_metric() -> None:
    from kvproxy.http.metrics import Metrics

    described = {metric.name for metric in Metrics().descriptions}
    names = {name for metric in Metrics().descriptions for name in metric.names}
    asked = {name: generate._metric_of(name) for name in generate.queries()}
    assert set(asked.values()) == described
    for name, query in generate.queries().items():
        assert set(re.findall(r"kvproxy_\w+", query["query"])) <= {
            f"{metric}{end}" for metric in names for end in ("", "_bucket", "_sum", "_count")
        }, name


def test_metrics_that_are_marked_are_on_the_dashboard() -> None:
    """The page claimed a query for each metric, and a group of eleven had one."""
    panels = json.loads((ROOT / "deploy/grafana/kvproxy.json").read_text())["panels"]
    shown = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    lines = re.findall(r"^- `(kvproxy_\w+)`: (.*)$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    assert len(lines) > 40
    assert {name for name, text in lines if text.endswith(" (dashboard)")} == {
        name for name, _ in lines if re.search(rf"\b{name}\b", shown)
    }


def test_proxies_in_front_allow_bodies_as_large_as_the_limit() -> None:
    limit = LimitSettings().body_bytes
    sizes = {
        str(path.relative_to(ROOT)): int(size) * 2**20
        for path in (ROOT / "deploy").rglob("*")
        if path.suffix in (".conf", ".yaml")
        for size in re.findall(r"(?:client_max_body_size|proxy-body-size:) (\d+)m", path.read_text())
    }
    assert len(sizes) == 3
    assert sizes == dict.fromkeys(sizes, limit)


def test_alerts_ask_for_metrics_that_there_are() -> None:
    from kvproxy.http.metrics import Metrics

    described = {name for metric in Metrics().descriptions for name in metric.names}
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    used = set(re.findall(r"\bkvproxy_\w+", rules))
    assert len(used) > 5
    assert {name for name in used if name.removesuffix("_bucket") not in described} == set()


def test_every_test_that_the_threat_model_names_is_there() -> None:
    page = (ROOT / "docs/security.md").read_text()
    files = re.findall(r"`([a-z_/]+/test_\w+\.py)", page)
    assert len(files) > 30
    assert {name for name in files if not (ROOT / "tests" / name).is_file()} == set()
    last = ""
    for name, test in re.findall(r"`([a-z_/]+/test_\w+\.py)?(?:::(test_\w+))?`", page):
        last = name or last
        if test:
            assert f"def {test}(" in (ROOT / "tests" / last).read_text(), f"{last}::{test}"


def test_the_classes_of_the_glossary_exist() -> None:
    terms = re.findall(r"^- \*\*([^*]+)\*\*: .* `(\w+)`$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(terms) >= 60
    files = [path for folder in ("kvproxy", "index") for path in (ROOT / folder).rglob("*.py")]
    code = "\n".join(path.read_text() for path in files)
    assert [name for _, name in terms if not re.search(rf"^(class )?{name}\b( = |\(|:|\[)", code, re.MULTILINE)] == []
