"""The files for several proxies are valid for docker-compose, kubectl, and the API of Kubernetes.

`tests/fleet/test_shared_quotas.py` runs the site of nginx. Images cannot be pulled everywhere.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvproxy.settings import load_settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def output(*command: object) -> str:
    """Run a program, which must be installed and succeed."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_compose_starts_three_proxies_behind_nginx(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    file = tmp_path / "fleet.yaml"
    # Debian's version does not know the name of a project.
    file.write_text((DEPLOY / "compose/fleet.yaml").read_text().replace("name: kvproxy-fleet\n", 'version: "3.8"\n'))
    folder = DEPLOY / "compose"
    command = ("docker-compose", "--env-file", folder / "example.env", "--file", file, "--project-directory", folder)
    services: dict[str, Any] = yaml.safe_load(output(*command, "config"))["services"]
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
