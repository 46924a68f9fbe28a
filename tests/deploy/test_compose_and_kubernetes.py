"""The files of `deploy/compose` and `deploy/kubernetes` are valid, complete, and open nothing beyond loopback.

`tests/fleet/test_shared_quotas.py` runs the site of nginx. Images cannot be pulled everywhere.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvproxy.settings import load_settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose"


def output(*command: object) -> str:
    """Run a program, which must be installed and succeed."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def services_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the services of a compose file, with the example's variables."""
    file = folder / name
    # Debian's version does not know the name of a project.
    file.write_text(re.sub("^name: .*\n", 'version: "3.8"\n', (COMPOSE / name).read_text(), flags=re.MULTILINE))
    command = ("docker-compose", "--env-file", COMPOSE / "example.env", "--file", file, "--project-directory", COMPOSE)
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(output(*command, "config"))["services"]
    return found


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return services_of("compose.yaml", tmp_path_factory.mktemp("compose"))


def test_only_loopback_ports_are_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:3000:3000/tcp", "127.0.0.1:8484:8484/tcp"]


def test_mounted_files_exist(services: dict[str, Any]) -> None:
    mounts = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    files = [Path(mount) for mount in mounts if mount.startswith("/")]
    assert len(files) == 5
    assert [path for path in files if not path.exists()] == []


def test_settings_of_the_proxy_are_valid(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in services["kvproxy"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.access.open
    assert settings.log.format == "json"
    assert settings.store == "postgresql://kvproxy:change-me@postgres/kvproxy"


def test_prometheus_accepts_its_configuration(services: dict[str, Any], tmp_path: Path) -> None:
    shutil.copy(COMPOSE / "prometheus.yml", tmp_path)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    token = Path("/tmp/kvproxy-token")
    (tmp_path / "token").write_text("x")
    text = (tmp_path / "prometheus.yml").read_text().replace(str(token), str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(text)
    output("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert str(token) in services["prometheus"]["command"][0]


def test_every_value_of_the_example_is_used() -> None:
    names = re.findall(r"^(\w+)=", (COMPOSE / "example.env").read_text(), re.MULTILINE)
    used = set(re.findall(r"\$\{(\w+):\?", (COMPOSE / "compose.yaml").read_text()))
    assert used == set(names)


def test_compose_starts_three_proxies_behind_nginx(tmp_path: Path) -> None:
    services = services_of("fleet.yaml", tmp_path)
    assert services["kvproxy"]["deploy"]["replicas"] == 3
    assert [service.get("ports") for service in services.values() if service.get("ports")] == [
        ["127.0.0.1:8484:80/tcp"]
    ]
    (mount,) = (volume.split(":")[0] for volume in services["nginx"]["volumes"])
    assert Path(mount).is_file()


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_the_files_of_kubernetes_match_its_schemas(version: str, tmp_path: Path) -> None:
    command = ("kubernetes-validate", "--strict", "--kubernetes-version", version)
    yaml = pytest.importorskip("yaml")
    folder = DEPLOY / "kubernetes"
    files = [folder / name for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]]
    output(*command, *files)
    (tmp_path / "wrong.yaml").write_text((folder / "deployment.yaml").read_text().replace("maxSurge", "maximalSurge"))
    with pytest.raises(AssertionError, match="maximalSurge"):
        output(*command, tmp_path / "wrong.yaml")
    # What `kubectl apply --kustomize` sends.
    (tmp_path / "rendered.yaml").write_text(output("kubectl", "kustomize", folder))
    output(*command, tmp_path / "rendered.yaml")


def test_kustomize_renders_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    found = {each["kind"]: each for each in yaml.safe_load_all(output("kubectl", "kustomize", DEPLOY / "kubernetes"))}
    assert set(found) == {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}
    pod = found["Deployment"]["spec"]["template"]
    assert pod["metadata"]["labels"] == found["Service"]["spec"]["selector"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == found["Deployment"]["spec"]["selector"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    config = tmp_path / "kvproxy.toml"
    config.write_text(found["ConfigMap"]["data"]["kvproxy.toml"])
    monkeypatch.setenv("KVPROXY_CONFIG", str(config))
    settings = load_settings()
    assert settings.upstream == "http://model-server:8000"
    assert pod["spec"]["terminationGracePeriodSeconds"] > settings.limits.drain_seconds + 5


def test_the_example_of_kubernetes_renders_all_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    rendered = list(yaml.safe_load_all(output("kubectl", "kustomize", DEPLOY / "kubernetes-example")))
    found = {each["kind"]: each for each in rendered}
    assert len(rendered) == len(found) == 10
    alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    assert found["PrometheusRule"]["spec"] == alerts
    components = [path.name for path in (DEPLOY / "kubernetes").iterdir() if path.is_dir()]
    named = yaml.safe_load((DEPLOY / "kubernetes-example/kustomization.yaml").read_text())["components"]
    assert sorted(named) == sorted(f"../kubernetes/{name}" for name in components)
    pod, service = found["Deployment"]["spec"]["template"], found["Service"]
    ports = {port["name"] for port in service["spec"]["ports"]}
    # The autoscaler sets the number of replicas, and needs a request of processor time.
    assert "replicas" not in found["Deployment"]["spec"]
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    (rule,) = found["Ingress"]["spec"]["rules"]
    (route,) = rule["http"]["paths"]
    assert route["path"] == "/v1"
    assert route["backend"]["service"]["name"] == service["metadata"]["name"]
    assert route["backend"]["service"]["port"]["name"] in ports
    policy, monitor = found["NetworkPolicy"]["spec"], found["ServiceMonitor"]["spec"]
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert monitor["endpoints"][0]["port"] in ports
    # The job of the first key is no proxy, and writes to the same store.
    job = found["Job"]["spec"]["template"]
    assert job["metadata"]["labels"].items().isdisjoint(service["spec"]["selector"].items())
    first, proxy = job["spec"]["containers"][0], pod["spec"]["containers"][0]
    assert (first["image"], first["envFrom"]) == (proxy["image"], proxy["envFrom"])
    config = tmp_path / "kvproxy.toml"
    config.write_text(found["ConfigMap"]["data"]["kvproxy.toml"])
    monkeypatch.setenv("KVPROXY_CONFIG", str(config))
    settings = load_settings()
    assert [rule["host"]] == found["Ingress"]["spec"]["tls"][0]["hosts"]
    # Clients of other namespaces name the service with its namespace.
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
    assert list(settings.access.hosts) == [rule["host"], name, f"{name}.svc"]
    assert policy["egress"][1]["ports"][1]["port"] == int(str(settings.upstream).rpartition(":")[2])
    assert 4318 in {port["port"] for port in policy["egress"][1]["ports"]}
    # The schemas of Prometheus Operator are not among those of Kubernetes.
    known = tmp_path / "known.yaml"
    known.write_text(
        yaml.safe_dump_all(each for each in rendered if each["kind"] not in ("ServiceMonitor", "PrometheusRule"))
    )
    output("kubernetes-validate", "--strict", "--kubernetes-version", "1.37", known)
