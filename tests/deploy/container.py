"""Builds and runs images: podman or docker, and a base image that is pulled, or made of Debian's packages."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PULLED = "docker.io/library/python:3.13-slim-bookworm"
_MADE = "localhost/python:bookworm"
_TRUSTED = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""What pip needs of a machine that reaches packages by way of a mirror of its own."""


class Containers:
    """One of the two programs, which take the same words. Images of podman lie in a folder of the test's own.

    Args:
        folder: for images and base images.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        name = next((name for name in ("podman", "docker") if shutil.which(name)), None)
        if name is None:
            pytest.skip("neither podman nor docker is installed")
        self.is_podman = name == "podman"
        self._begin = [name]
        if self.is_podman:
            own = ["--root", str(folder / "images"), "--runroot", str(folder / "run")]
            self._begin += [*own, "--cgroup-manager", "cgroupfs"]
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # A container's usual limits may be more than this machine allows.
        self._limits = ["--ulimit", f"nofile=1024:{hard}", "--ulimit", "nproc=1024:1024"]
        try:
            self.base = self._found_base()
            self._choose_runtime()
        except BaseException:
            self.close()
            raise

    def __call__(self, *arguments: str, seconds: float = 120.0, ok: bool = True) -> str:
        """Return a command's output on both streams."""
        done = subprocess.run(
            [*self._begin, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0 or not ok, done.stdout[-5000:]
        return done.stdout.strip()

    def build(self, tag: str) -> None:
        """Build our image as docs/deployment.md has it."""
        more: list[str] = []
        if self.is_podman:
            more = ["--format", "docker", "--isolation", "chroot", "--network", "host"]
            more += [word for path in _TRUSTED if Path(path).exists() for word in ("--volume", f"{path}:{path}:ro")]
        argument = f"PYTHON={self.base}"
        self("build", *more, "--build-arg", argument, "--tag", tag, "--file", "deploy/Dockerfile", ".", seconds=900)

    def run(self, tag: str, name: str, *arguments: str, volume: str) -> None:
        """Begin a container with a read-only system in this machine's network."""
        kept = ["--read-only", "--tmpfs", "/tmp", "--volume", f"{volume}:/data"]
        self("run", "--detach", "--name", name, "--network", "host", *self._limits, *kept, tag, *arguments)

    def inspect(self, name: str) -> Any:
        return json.loads(self("inspect", name))[0]

    def close(self) -> None:
        if self.is_podman:
            self("system", "reset", "--force", ok=False)
            # Podman leaves a mount, and debootstrap another one if it is stopped. Nothing could remove their folders.
            for mount in ("system/proc", "images/overlay"):
                subprocess.run(["umount", "--lazy", self.folder / mount], capture_output=True, check=False)

    def _found_base(self) -> str:
        try:
            self("pull", "--quiet", _PULLED, seconds=300)
        except (AssertionError, subprocess.TimeoutExpired):
            self._make_base()
            return _MADE
        return _PULLED

    def _make_base(self) -> None:
        """Debian with its Python, if no registry can be reached."""
        if shutil.which("debootstrap") is None or os.geteuid() != 0:
            pytest.skip("no registry can be reached, and only root with debootstrap can make a base image")
        system, packed = self.folder / "system", self.folder / "system.tar"
        packages = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(
            ["debootstrap", "--variant=minbase", packages, "bookworm", str(system)],
            check=True, stdout=subprocess.DEVNULL, timeout=600,
        )  # fmt: skip
        (system / "usr/bin/python").symlink_to("python3")
        subprocess.run(["tar", "-C", str(system), "-cf", str(packed), "."], check=True, timeout=300)
        self("import", str(packed), _MADE)
        shutil.rmtree(system)
        packed.unlink()

    def _choose_runtime(self) -> None:
        """Podman's usual runtime does not start in every nested machine; runc may."""
        probe = ("run", "--rm", "--network", "host", *self._limits, self.base, "true")
        choices = [[], ["--runtime", "runc"]] if self.is_podman and shutil.which("runc") else [[]]
        said = ""
        for choice in choices:
            begin, self._begin = self._begin, [*self._begin, *choice]
            try:
                self(*probe)
            except AssertionError as error:
                self._begin, said = begin, str(error)
            else:
                return
        pytest.skip(f"no container can be started here: {said[-300:]}")
