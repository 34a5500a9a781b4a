"""Cores and memory that the process may use: affinity, GEMEL_THREADS, and limits of cgroups in trees of all kinds."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from gemel.errors import InputError
from gemel.files import machine
from gemel.files.machine import CoreLimits, MemoryLimits, cores_per_process, cpu_quota, memory_limit

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU = "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
DISK = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


@pytest.fixture
def tree(tmp_path):
    """A function that writes a root folder with /proc/self and files of cgroups."""

    def write(cgroup, mounts, files):
        lines = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": "\n".join([DISK, *mounts]) + "\n"}
        for name, content in {**lines, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("content", "quota"),
    [
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("50000 100000", 0.5),
        ("200000", 2.0),  # the period of the kernel
        ("", None),
        ("many cores", None),
        ("-1 100000", None),
        ("100000 0", None),
        ("100000 x", None),
        (f"{'9' * 400} 100000", None),
        ("٣ 100000", None),
    ],
)
def test_the_quota_of_version_2_is_quota_by_period(tree, content, quota):
    root = tree("0::/app\n", [V2], {"sys/fs/cgroup/app/cpu.max": content})
    assert cpu_quota(root) == quota


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [("250000", "100000", 2.5), ("-1", "100000", None), ("100000", "", None), ("", "100000", None)],
)
def test_the_quota_of_version_1_is_in_two_files(tree, quota, period, cores):
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/1"
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}
    assert cpu_quota(tree("4:cpu,cpuacct:/docker/1\n", [V1_CPU], files)) == cores


def test_the_smallest_quota_of_all_parents_holds(tree):
    files = {
        "sys/fs/cgroup/cpu.max": "max 100000",
        "sys/fs/cgroup/pods/cpu.max": "300000 100000",
        "sys/fs/cgroup/pods/one/cpu.max": "75000 50000",
        "sys/fs/cgroup/pods/one/app/cpu.max": "800000 100000",
        "sys/fs/cgroup/pods/other/cpu.max": "10000 100000",
    }
    assert cpu_quota(tree("0::/pods/one/app\n", [V2], files)) == 1.5


def test_in_a_cgroup_namespace_the_mount_point_is_the_own_cgroup(tree):
    files = {"sys/fs/cgroup/cpu.max": "200000 100000", "sys/fs/cgroup/memory.max": "1000000"}
    root = tree("0::/\n", [V2], files)
    assert (cpu_quota(root), memory_limit(root)) == (2.0, 1_000_000)


def test_a_container_of_version_1_without_a_namespace_sees_its_own_folder_as_the_mount_point(tree):
    mount = V1_CPU.replace(" / /sys", " /docker/1 /sys")
    files = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us": "100000",
    }
    assert cpu_quota(tree("4:cpu,cpuacct:/docker/1\n", [mount], files)) == 4.0
    assert cpu_quota(tree("4:cpu,cpuacct:/docker/1/inner\n", [mount], files)) == 1.0
    # What is mounted is another part of the tree: the mount point is all that can be known.
    assert cpu_quota(tree("4:cpu,cpuacct:/docker/12\n", [mount], files)) == 4.0
    assert cpu_quota(tree("4:cpu,cpuacct:/../docker/1\n", [mount], files)) == 4.0


def test_a_hybrid_tree_has_its_controllers_in_version_1(tree):
    files = {
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/app/memory.limit_in_bytes": "2000000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/unified/app/cgroup.procs": "",
    }
    lines = "12:memory:/app\n4:cpu,cpuacct:/app\n3:cpuset:/\n1:name=systemd:/app\n0::/app\n"
    root = tree(lines, [V1_CPU, V1_MEMORY, UNIFIED], files)
    assert (cpu_quota(root), memory_limit(root)) == (1.5, 2_000_000)


def test_a_mount_point_may_contain_spaces_and_a_path_colons(tree):
    mount = V2.replace("/sys/fs/cgroup", r"/my\040groups")
    root = tree("0::/a:b\n", [mount], {"my groups/a:b/cpu.max": "100000 100000"})
    assert cpu_quota(root) == 1.0


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "max", "memory.high": "max"}, None),
        ({"memory.max": "5000000\n"}, 5_000_000),
        ({"memory.max": "5000000", "memory.high": "4000000"}, 4_000_000),
        ({"memory.max": "max", "memory.high": "4000000"}, 4_000_000),
        ({"memory.max": "lots"}, None),
        ({}, None),
    ],
)
def test_the_memory_of_version_2_is_the_lower_of_max_and_high(tree, files, limit):
    root = tree("0::/app\n", [V2], {f"sys/fs/cgroup/app/{name}": text for name, text in files.items()})
    assert memory_limit(root) == limit


def test_the_smallest_memory_of_parents_holds_and_version_1_reports_no_limit_as_a_huge_one(tree):
    folder = "sys/fs/cgroup/memory"
    unlimited = {
        f"{folder}/{name}memory.limit_in_bytes": "9223372036854771712" for name in ("", "pod/", "pod/app/")
    }
    lines = "4:memory:/pod/app\n"
    assert memory_limit(tree(lines, [V1_MEMORY], unlimited)) is None
    assert (
        memory_limit(tree(lines, [V1_MEMORY], {f"{folder}/pod/memory.limit_in_bytes": "123456"})) == 123_456
    )


@pytest.mark.parametrize("cgroup", ["", "no colons\n", "0:/app\n", "0::app\n", "x::/app\n", "4:pids:/\n"])
def test_a_membership_that_cannot_be_understood_is_no_limit(tree, cgroup):
    root = tree(cgroup, [V2, V1_CPU], {"sys/fs/cgroup/cpu.max": "100000 100000"})
    assert cpu_quota(root) is None


@pytest.mark.parametrize(
    "mount", ["", "30 23", "30 23 0:26 / /sys/fs/cgroup rw cgroup2 cgroup2 rw", " - cgroup2"]
)
def test_mounts_that_cannot_be_understood_are_no_limit(tree, mount):
    root = tree("0::/\n", [mount], {"sys/fs/cgroup/cpu.max": "100000 100000"})
    assert (cpu_quota(root), memory_limit(root)) == (None, None)


def test_without_proc_there_are_no_limits(tmp_path):
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (None, None)
    assert machine.memory_limits(tmp_path).limit is None


def test_a_limit_above_the_memory_of_the_machine_is_none(tree, monkeypatch):
    root = tree("0::/\n", [V2], {"sys/fs/cgroup/memory.max": "5000"})
    for physical, limit, usable in [(4000, None, 4000), (6000, 5000, 5000), (None, 5000, 5000)]:
        monkeypatch.setattr(machine, "_physical_memory", lambda size=physical: size)
        found = machine.memory_limits(root)
        assert found == MemoryLimits(physical, limit)
        assert found.usable == usable


@pytest.mark.parametrize(
    ("affinity", "quota", "requested", "used"),
    [
        (8, None, None, 8),
        (8, 1.5, None, 2),
        (8, 2.0, None, 2),
        (8, 0.1, None, 1),
        (2, 6.0, None, 2),
        (8, 1.5, 4, 4),
        (2, None, 1, 1),
    ],
)
def test_quotas_are_rounded_up_and_the_variable_wins(affinity, quota, requested, used):
    assert CoreLimits(64, affinity, quota, requested).used == used


def test_the_variable_says_how_many_cores_to_use(monkeypatch):
    monkeypatch.setenv("GEMEL_THREADS", "")
    everything = machine.usable_cores()
    assert 1 <= everything <= (os.cpu_count() or 1)
    monkeypatch.setenv("GEMEL_THREADS", "3")
    assert machine.usable_cores() == 3


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_wrong_variable_is_an_error_that_names_it(monkeypatch, value):
    monkeypatch.setenv("GEMEL_THREADS", value)
    with pytest.raises(
        InputError, match=f"GEMEL_THREADS must be a whole number of at least 1, got '{value}'"
    ):
        machine.usable_cores()


def test_processes_divide_the_cores_but_not_the_variable(monkeypatch):
    monkeypatch.delenv("GEMEL_THREADS", raising=False)
    monkeypatch.setattr(machine, "_recent_quota", lambda _: 6.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert [cores_per_process(count) for count in (1, 2, 4, 12)] == [6, 3, 1, 1]
    monkeypatch.setenv("GEMEL_THREADS", "5")
    assert cores_per_process(4) == 5


def test_the_variable_also_holds_for_the_threads_of_tokenizers(monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")  # so that it is restored
    monkeypatch.delenv("RAYON_NUM_THREADS")
    monkeypatch.delenv("GEMEL_THREADS", raising=False)
    machine.limit_tokenizers()
    assert "RAYON_NUM_THREADS" not in os.environ
    monkeypatch.setenv("GEMEL_THREADS", "2")
    machine.limit_tokenizers()
    assert os.environ["RAYON_NUM_THREADS"] == "2"
    monkeypatch.setenv("GEMEL_THREADS", "3")
    machine.limit_tokenizers()
    assert os.environ["RAYON_NUM_THREADS"] == "2"  # what is set already stays


def test_a_quota_that_changes_is_noticed(monkeypatch):
    now, quota = [0.0], [1.0]
    monkeypatch.setattr(machine, "monotonic", lambda: now[0])
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota[0])
    machine._recent_quota.cache_clear()
    try:
        assert machine.core_limits().quota == 1.0
        quota[0] = 2.0
        assert machine.core_limits().quota == 1.0  # read a moment ago
        now[0] = machine._FRESH_S
        assert machine.core_limits().quota == 2.0
    finally:
        machine._recent_quota.cache_clear()


SHOWN = "from gemel.files.machine import core_limits; c = core_limits(); print(c.quota, c.used)"


@contextmanager
def real_cgroup():
    """A new cgroup with a quota of half a core, and the file to join it."""
    parent, settings = Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_quota_us": "50000"}
    if not (parent / "cpu.cfs_quota_us").exists():
        parent, settings = Path("/sys/fs/cgroup"), {"cpu.max": "50000 100000"}
    folder = parent / f"gemel-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be created here: {error}")
    try:
        try:
            for name, text in settings.items():
                (folder / name).write_text(text, encoding="ascii")
        except OSError as error:
            pytest.skip(f"no quota can be set in a cgroup here: {error}")
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def test_a_process_in_a_real_cgroup_sees_its_quota():
    with real_cgroup() as members:
        code = f"open({str(members)!r}, 'w').write('0')\n{SHOWN}"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "OSError" in done.stderr or "PermissionError" in done.stderr:
        pytest.skip(f"no process can be put into a cgroup here: {done.stderr.splitlines()[-1]}")
    assert done.stdout.split() == ["0.5", "1"], done.stderr
