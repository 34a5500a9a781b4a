"""The verbs on a real Ray: each once on this machine; and on two nodes, parts of which are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.integrations.test_ray import WORDS, same_files

from ray_cluster import RayCluster, until
from tiny import tiny_bert
from two_networks import TwoNetworks, why_not

pytest.importorskip("ray", reason="needs the extra ray: pip install 'gemel[ray]'")

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


def write_texts(path, count):
    chosen = random.Random(3)
    path.write_text(
        "".join(f"{' '.join(chosen.choices(WORDS, k=chosen.randint(1, 25)))} {n}\n" for n in range(count))
    )
    return path


def test_every_verb_gives_the_bits_of_one_machine(model, tmp_path):
    with tempfile.TemporaryDirectory(prefix="gr-", dir="/tmp") as short:  # the path of a socket must be short
        settings = {"RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | settings
        source = write_texts(tmp_path / "in.txt", 1000)
        command = [sys.executable, HERE / "support" / "ray_child.py", model, source, tmp_path / "out"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["vectors"] and report["pairs"] and report["hits"]
    assert report["tasks"] > 20
    assert (report["retries"], report["nodes"], report["nodes_lost"]) == (0, 1, 0)


# Two nodes.


@pytest.fixture(scope="module")
def cluster():
    with RayCluster() as made:
        yield made


@pytest.fixture
def node(cluster):
    """The second node; a new one if a test has killed the last."""
    return cluster.nodes[1] if len(cluster.nodes) > 1 else cluster.add_node()


class Command:
    """`gemel ... --on ray://...` in a separate process."""

    def __init__(self, cluster, model, tmp_path, *arguments, on=True):
        self.summary = tmp_path / "summary.json"
        command = [sys.executable, "-m", "gemel", *map(str, arguments), "--model", str(model)]
        if on:
            command += ["--on", f"ray://{cluster.address}", "--job-summary", str(self.summary)]
        if on and cluster.networks:
            command = cluster.networks.inside(0, command)
        self.process = subprocess.Popen(
            command, env=cluster.environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def done(self):
        _, err = self.process.communicate(timeout=250)
        assert self.process.returncode == 0, err
        return json.loads(self.summary.read_text()) if self.summary.exists() else {}


def rows_done(out):
    try:
        return json.loads((out / "progress.json").read_text())["rows"]
    except (FileNotFoundError, ValueError):
        return 0


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "in.txt", 120_000)


@pytest.fixture(scope="module")
def plain(cluster, model, source, tmp_path_factory):
    """The folder of one machine."""
    out = tmp_path_factory.mktemp("plain") / "vectors"
    Command(cluster, model, out.parent, "encode", source, "-o", out, on=False).done()
    return out


@pytest.mark.slow
def test_a_killed_worker_costs_its_blocks_and_nothing_else(cluster, node, model, source, plain, tmp_path):
    out = tmp_path / "vectors"
    command = Command(cluster, model, tmp_path, "encode", source, "-o", out)
    until(lambda: rows_done(out) > 0)
    os.kill(cluster.workers()[0], signal.SIGKILL)
    report = command.done()
    same_files(plain, out)
    assert (report["rows"], report["nodes"], report["nodes_lost"]) == (120_000, 2, 0)
    assert report["workers_lost"] >= 1
    assert report["retries"] >= 1


@pytest.mark.slow
def test_a_killed_node_costs_its_blocks_and_nothing_else(cluster, node, model, source, plain, tmp_path):
    out = tmp_path / "vectors"
    command = Command(cluster, model, tmp_path, "encode", source, "-o", out)
    until(lambda: rows_done(out) > 0 and cluster.workers(node))
    cluster.kill_node(node)
    report = command.done()
    same_files(plain, out)
    assert report["rows"] == 120_000
    assert report["workers_lost"] >= 2
    assert report["retries"] >= 1


@pytest.mark.slow
def test_a_killed_driver_is_resumed(cluster, node, model, source, plain, tmp_path):
    out = tmp_path / "vectors"
    command = Command(cluster, model, tmp_path, "encode", source, "-o", out)
    until(lambda: rows_done(out) > 0)
    command.process.kill()
    command.process.communicate()
    before = rows_done(out)
    report = Command(cluster, model, tmp_path, "encode", source, "-o", out).done()
    same_files(plain, out)
    assert report["rows"] == 120_000 - before


@pytest.mark.slow
def test_pairs_with_a_killed_node_and_a_killed_driver_are_those_of_one_machine(
    cluster, node, model, tmp_path
):
    texts = write_texts(tmp_path / "in.txt", 60_000)
    one, two = tmp_path / "one.tsv", tmp_path / "two.tsv"
    Command(cluster, model, tmp_path, "pairs", texts, "--min-score", "0.996", "-o", one, on=False).done()
    request = ("pairs", texts, "--min-score", "0.996", "-o", two)
    tiles = tmp_path / ".two.tsv.pairs" / "tiles"
    first = Command(cluster, model, tmp_path, *request)
    until(lambda: tiles.exists() and any(tiles.iterdir()))
    first.process.kill()
    first.process.communicate()
    until(lambda: not cluster.workers())
    again = Command(cluster, model, tmp_path, *request)
    until(lambda: cluster.workers(node, doing=r"TileWorker\.work"))
    cluster.kill_node(node)
    assert again.done()["workers_lost"] >= 1
    assert one.read_bytes() == two.read_bytes()
    assert one.read_text().count("\n") > 100
    assert not tiles.parent.exists()


@pytest.mark.slow
def test_search_and_index_on_two_nodes(cluster, node, model, tmp_path):
    texts = write_texts(tmp_path / "in.txt", 5000)
    one, two = tmp_path / "one.tsv", tmp_path / "two.tsv"
    for out, on in ((one, False), (two, True)):
        Command(
            cluster, model, tmp_path, "search", texts, "--queries", texts, "-k", 3, "-o", out, on=on
        ).done()
    assert one.read_bytes() == two.read_bytes()
    location = tmp_path / "notes"
    gemel = [sys.executable, "-m", "gemel", "index"]
    subprocess.run([*gemel, "create", location, "--model", model], check=True, capture_output=True)
    on = ["--on", f"ray://{cluster.address}", "--json"]
    for added in (5000, 0):
        done = subprocess.run(
            [*gemel, "add", location, texts, *on], env=cluster.environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["added"] == added


@pytest.mark.slow
def test_a_missing_cluster_is_a_one_line_error(cluster, model, tmp_path):
    source = write_texts(tmp_path / "in.txt", 10)
    command = [sys.executable, "-m", "gemel", "encode", source, "-o", tmp_path / "out", "--model", model]
    done = subprocess.run(
        [*command, "--on", "ray://127.0.0.1:9"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot connect to the Ray cluster at 127.0.0.1:9" in done.stderr


# Two nodes with separate networks and one link between them.


@pytest.fixture
def two_machines():
    if why := why_not():
        pytest.skip(why)
    with TwoNetworks() as networks, RayCluster(networks=networks) as made:
        made.add_node()
        yield made


@pytest.mark.slow
def test_two_machines_and_then_one_is_disconnected(two_machines, model, source, plain, tmp_path):
    """Vectors and blocks cross the link; then the second machine is alive but unreachable."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    report = Command(two_machines, model, tmp_path, "encode", source, "-o", whole).done()
    same_files(plain, whole)
    assert (report["nodes"], report["nodes_lost"], report["retries"]) == (2, 0, 0)

    command = Command(two_machines, model, tmp_path, "encode", source, "-o", cut)
    until(lambda: rows_done(cut) > 0 and two_machines.workers(two_machines.nodes[1]))
    two_machines.networks.cut()
    report = command.done()
    same_files(plain, cut)
    assert report["rows"] == 120_000
    assert report["workers_lost"] >= 1
    assert report["retries"] >= 1
