"""Two simulated machines: two network namespaces with a link between them. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import count

_made = count()


def why_not():
    """The reason why they cannot be created here; empty if they can."""
    if not shutil.which("ip"):
        return "needs the command ip"
    if os.geteuid() != 0:
        return "making a network namespace needs root"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "this system allows no network namespaces"


class TwoNetworks:
    """Machines 0 and 1. Neither sees the networks of this machine, not even its loopback."""

    def __init__(self):
        name = f"gemel{os.getpid()}-{next(_made)}"
        self.names = (f"{name}-0", f"{name}-1")
        self.hosts = ("10.231.47.1", "10.231.47.2")
        self.ends = ("cable0", "cable1")
        try:
            for each in self.names:
                ip("netns", "add", each)
            ends = [("name", end, "netns", each) for end, each in zip(self.ends, self.names, strict=True)]
            ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
            for machine, host in enumerate(self.hosts):
                ip("-n", self.names[machine], "address", "add", f"{host}/24", "dev", self.ends[machine])
                for device in ("lo", self.ends[machine]):
                    ip("-n", self.names[machine], "link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    def inside(self, machine, command):
        """The command line that runs another in that machine's network."""
        return ["ip", "netns", "exec", self.names[machine], *command]

    def cut(self):
        """Cut the link without notifying either side."""
        ip("-n", self.names[0], "link", "set", self.ends[0], "down")

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)
