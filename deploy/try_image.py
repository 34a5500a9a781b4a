"""Build the image of deploy/Dockerfile, run it as compose and Kubernetes do, and ask its server: needs no Docker.

    apt install buildah mmdebstrap && python deploy/try_image.py

buildah builds without a daemon. --stand-in makes the base image from packages of Debian (mmdebstrap), for machines
that reach no registry of images: the same release of Debian and the same minor version of Python as the real one. The
image then runs in namespaces of its own: as the user of the image, with a read-only root, an empty /tmp, a file of keys
and no network but the loopback device. Prints what it saw as JSON; --write stores that in deploy/image.json.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
RESULT = ROOT / "deploy" / "image.json"
IMAGE = "localhost/gemel:try"
KEY = "0123456789abcdef0123456789abcdef"
CERTIFICATES = Path("/etc/ssl/certs")


def missing(*, stand_in: bool = True) -> list[str]:
    """What this machine lacks for a run."""
    programs = ["buildah", "unshare", "chroot", *(["mmdebstrap"] if stand_in else [])]
    lacks = [name for name in programs if shutil.which(name) is None]
    if platform.system() != "Linux" or os.geteuid() != 0:
        lacks.append("root on Linux")
    return lacks


def base_image() -> str:
    """The image that the last stage of the Dockerfile starts from."""
    return re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)[-1]


class Buildah:
    """buildah with a storage of its own, which is deleted with its folder."""

    def __init__(self, folder: Path) -> None:
        self.options = [
            "--storage-driver",
            "vfs",
            "--root",
            str(folder / "storage"),
            "--runroot",
            str(folder / "run"),
        ]

    def __call__(self, *arguments: str, quiet: bool = True) -> str:
        command = ["buildah", *self.options, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE if quiet else sys.stderr, text=True, check=True)
        return (done.stdout or "").strip()

    def make_base(self, folder: Path, name: str) -> None:
        """Debian with its own Python, under the name of the official image; only the folder of Python differs."""
        release = name.rpartition("-")[2]
        archive = folder / "base.tar"
        packages = "python3,python3-venv,ca-certificates"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", release, str(archive)],
            check=True,
        )
        container = self("from", "scratch")
        self("add", container, str(archive), "/")
        archive.unlink()
        links = (
            "ln -s /usr/bin/python3 /usr/local/bin/python && ln -s /usr/bin/python3 /usr/local/bin/python3"
        )
        self("run", "--isolation", "chroot", container, "--", "sh", "-c", links)
        path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        self("config", "--env", path, "--cmd", "python3", container)
        self("commit", "--quiet", "--rm", container, f"docker.io/library/{name}")
        version = self.run_in(name, "python", "--version").split()[1]
        if not name.startswith(f"python:{version.rpartition('.')[0]}-"):
            raise SystemExit(f"Debian {release} has Python {version}; it cannot stand in for {name}")

    def run_in(self, image: str, *command: str) -> str:
        container = self("from", "--pull-never", image)
        try:
            return self("run", "--isolation", "chroot", container, "--", *command)
        finally:
            self("rm", container)

    def build(self, arguments: Sequence[str]) -> None:
        # The certificates of this machine, for networks that have their own; they are not part of the image.
        volume = ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.is_dir() else []
        self(
            *(
                "build",
                "--isolation",
                "chroot",
                "--format",
                "docker",
                "--pull-never",
                "--file",
                str(DOCKERFILE),
            ),
            *("--ignorefile", f"{DOCKERFILE}.dockerignore", *volume, "--tag", IMAGE, *arguments, str(ROOT)),
            quiet=False,
        )


def _bytes(folder: Path) -> int:
    """The size of all files below a folder; links count as themselves."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def run_image(root: Path, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the image of `root` in new namespaces, and return what `inside` saw there."""
    keys = folder / "keys"
    keys.mkdir()
    (keys / "keys.txt").write_text(f"team:{KEY}\n", encoding="utf-8")
    task = folder / "task.json"
    task.write_text(json.dumps({"root": str(root), "keys": str(keys), "config": config}), encoding="utf-8")
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", sys.executable, __file__]
    done = subprocess.run([*command, "--inside", str(task)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def inside(task: Path) -> None:
    """In the new namespaces: mount as a container runtime does, start the server, ask it, stop it; print JSON."""
    told = json.loads(task.read_text(encoding="utf-8"))
    root, config = told["root"], told["config"]
    (Path(root) / "run" / "keys").mkdir(parents=True, exist_ok=True)
    for mount in (
        ("--make-rprivate", "/"),
        ("--bind", root, root),
        ("--bind", told["keys"], f"{root}/run/keys"),
        ("-o", "remount,bind,ro", f"{root}/run/keys"),
        ("-t", "proc", "proc", f"{root}/proc"),
        ("-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/tmp"),
        ("--rbind", "/dev", f"{root}/dev"),
        ("-o", "remount,bind,ro", root),
    ):
        subprocess.run(["mount", *mount], check=True)
    with socket.socket() as probe:  # the loopback device of a new network is down
        request = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(probe, 0x8914, request)  # SIOCSIFFLAGS
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    enter = ["chroot", f"--userspec={config['User']}", root]
    found = shutil.which(config["Entrypoint"][0], path=_under(root, environment["PATH"]))
    program = [str(found).removeprefix(root), *config["Entrypoint"][1:]]

    def ask(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*enter, *command], env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    started = time.monotonic()
    server = subprocess.Popen(
        [*enter, *program, *config["Cmd"]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while server.poll() is None and _status("/health/ready") != 200 and time.monotonic() < started + 120:
        time.sleep(0.1)
    ready = time.monotonic() - started
    kind, *health = config["Healthcheck"]["Test"]
    health[0] = str(shutil.which(health[0], path=_under(root, environment["PATH"]))).removeprefix(root)
    body = {"model": "all-MiniLM-L6-v2", "input": ["A man is playing a guitar."]}
    answer: dict[str, Any] = {}
    seen = {
        "user": ask("/usr/bin/id", "-u").stdout.strip(),
        "seconds_to_ready": round(ready, 1),
        "health_check": [kind, ask(*health).returncode],
        "with_key": _status("/v1/embeddings", body, KEY, answer),
        "without_key": _status("/v1/embeddings", body),
        "with_wrong_key": _status("/v1/embeddings", body, "f" * 32),
        "dimensions": len(answer["data"][0]["embedding"]) if answer else None,
        "writes_to_its_root": ask("/usr/bin/touch", "/opt/models/x").returncode == 0,
        "writes_to_tmp": ask("/usr/bin/touch", "/tmp/x").returncode == 0,
        "has_pip": ask(*health[:1], "-c", "import pip").returncode == 0,
        "has_compiler": any(
            shutil.which(name, path=_under(root, environment["PATH"])) for name in ("g++", "cc")
        ),
    }
    server.terminate()
    log, _ = server.communicate(timeout=60)
    seen["exit_code"] = server.returncode
    sys.stdout.write(json.dumps(seen | {"log": log.splitlines()[-20:]}))


def _under(root: str, path: str) -> str:
    return ":".join(f"{root}{folder}" for folder in path.split(":"))


def _status(
    route: str, body: object = None, key: str | None = None, answer: dict[str, Any] | None = None
) -> int | None:
    """The status of a request to the server; None when nothing listens."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"http://127.0.0.1:8080{route}", data, headers), timeout=30) as response:
            if answer is not None:
                answer.update(json.load(response))
            return int(response.status)
    except HTTPError as error:
        return error.code
    except (URLError, OSError):
        return None


def try_image(*, stand_in: bool, extras: str | None = None) -> dict[str, Any]:
    """Build, run and ask; what was seen, with the sizes in bytes."""
    with tempfile.TemporaryDirectory(prefix="gemel-image-") as name:
        folder = Path(name)
        buildah = Buildah(folder)
        base = base_image()
        if stand_in:
            buildah.make_base(folder, base)
        else:
            buildah("pull", "--quiet", f"docker.io/library/{base}")
        buildah.build(["--build-arg", f"EXTRAS={extras}"] if extras else [])
        config = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
        container = buildah("from", "--pull-never", IMAGE)
        root = Path(buildah("mount", container))
        sizes = {
            "image": _bytes(root),
            "packages": _bytes(root / "opt" / "gemel"),
            "model": _bytes(root / "opt" / "models"),
        }
        sizes["base"] = sizes["image"] - sizes["packages"] - sizes["model"]
        seen = run_image(root, config, folder)
        made = {
            "date": date.today().isoformat(),
            "machine": platform.machine(),
            "base": base,
            "stand_in": stand_in,
        }
        version = subprocess.run(
            ["buildah", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[2]
        buildah("rm", container)
        return {**made, "buildah": version, "bytes": sizes, **seen}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stand-in", action="store_true", help="make the base image from packages of Debian")
    parser.add_argument("--extras", help="extras of gemel in the image; default: those of the Dockerfile")
    parser.add_argument(
        "--write", action="store_true", help=f"store the result in {RESULT.relative_to(ROOT)}"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.inside:
        inside(chosen.inside)
        return 0
    if lacks := missing(stand_in=chosen.stand_in):
        sys.stderr.write(f"this needs {', '.join(lacks)}\n")
        return 2
    seen = try_image(stand_in=chosen.stand_in, extras=chosen.extras)
    sys.stderr.write("\n".join([*seen.pop("log"), ""]))
    text = json.dumps(seen, indent=1) + "\n"
    if chosen.write:
        RESULT.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
