"""The compose file: valid, complete, and with nothing open beyond loopback. Images cannot be pulled everywhere."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The services with the example's variables, as compose reads them."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed: apt-get install docker-compose")
    # Debian's version does not know the name of a project.
    file = tmp_path_factory.mktemp("compose") / "compose.yaml"
    file.write_text((FOLDER / "compose.yaml").read_text().replace("name: kvproxy\n", 'version: "3.8"\n'))
    command = ["docker-compose", "--env-file", FOLDER / "example.env", "--file", file, "--project-directory", FOLDER]
    done = subprocess.run([*command, "config"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return found


def test_only_loopback_ports_are_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:3000:3000/tcp", "127.0.0.1:8484:8484/tcp"]


def test_mounted_files_exist(services: dict[str, Any]) -> None:
    mounts = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    files = [Path(mount) for mount in mounts if mount.startswith("/")]
    assert len(files) == 5
    assert [path for path in files if not path.exists()] == []


def test_settings_of_the_proxy_are_valid(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from kvproxy.settings import load_settings

    for name, value in services["kvproxy"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.access.open
    assert settings.log.format == "json"
    assert settings.store == "postgresql://kvproxy:change-me@postgres/kvproxy"


def test_prometheus_accepts_its_configuration(services: dict[str, Any], tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    shutil.copy(FOLDER / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "deploy" / "prometheus" / "alerts.yml", tmp_path)
    token = Path("/tmp/kvproxy-token")
    (tmp_path / "token").write_text("x")
    text = (tmp_path / "prometheus.yml").read_text().replace(str(token), str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(token) in services["prometheus"]["command"][0]


def test_every_value_of_the_example_is_used() -> None:
    names = re.findall(r"^(\w+)=", (FOLDER / "example.env").read_text(), re.MULTILINE)
    used = set(re.findall(r"\$\{(\w+):\?", (FOLDER / "compose.yaml").read_text()))
    assert used == set(names)


def test_panels_have_short_titles() -> None:
    panels = json.loads((ROOT / "deploy" / "grafana" / "kvproxy.json").read_text())["panels"]
    assert len(panels) > 20
    assert [panel["title"] for panel in panels if len(panel["title"]) > 50] == []
