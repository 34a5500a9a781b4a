"""The recipes of ARCHITECTURE.md, executed: each adds one new file, and everything that should use it does.

A recipe runs in a separate process. The new file is in a folder that is appended to the package's path, which is what
putting it into the package's folder would do; poolings and metrics are added by a module of the user.
"""

import json
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

from tiny import tiny_bert


class Recipe:
    def __init__(self, folder):
        self.folder = folder
        self.new = folder / "new"
        self.new.mkdir()

    def file(self, name, code):
        (self.new / name).write_text(dedent(code).lstrip(), encoding="utf-8")

    def run(self, code, package=None):
        """What a program prints as JSON after the new folder was added to `package`."""
        result = f"import {package} as p\np.__path__.append({str(self.new)!r})\n" if package else ""
        start = (
            f"import json, sys\nsys.path.insert(0, {str(self.new)!r})\n"
            if not package
            else "import json, sys\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", start + result + dedent(code)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def recipe(tmp_path):
    return Recipe(tmp_path)


def test_a_pooling_is_one_record(recipe):
    tiny_bert(recipe.folder / "model")
    recipe.file(
        "ends.py",
        '''
        """The sum of the first and the last token."""
        import numpy as np
        from gemel.encoder.pooling import POOLINGS, Pooling

        POOLINGS.add("ends")(
            Pooling(
                numpy_form=lambda hidden, positions: hidden[:, 0] + hidden[:, -1],
                torch_form=lambda hidden, pack: hidden[pack.lengths.cumsum(0) - pack.lengths]
                + hidden[pack.lengths.cumsum(0) - 1],
                graph_form=lambda nodes, hidden, mask: POOLINGS["cls"].graph_form(nodes, hidden, mask),
                linear=True,
            )
        )
        ''',
    )
    out = recipe.run(
        """
        import ends, gemel
        from gemel.encoder.pooling import POOLINGS
        cls, last, both = (gemel.load("model", pooling=name).encode(["a man", "guitar"], normalize=False)
                           for name in ("cls", "last", "ends"))
        print(json.dumps({"equal": bool(abs(cls + last - both).max() < 1e-6), "named": "ends" in list(POOLINGS)}))
        """
    )
    assert out == {"equal": True, "named": True}


def test_a_metric_is_one_record(recipe):
    recipe.file(
        "chebyshev.py",
        '''
        """The largest difference of two numbers, negative so that a higher score is nearer."""
        import numpy as np
        from gemel.vectors.similarity import METRICS, Metric

        METRICS.add("chebyshev")(
            Metric(
                scores=lambda left, right: -np.abs(left[:, None] - right[None]).max(axis=2),
                rows=lambda left, right: -np.abs(left - right).max(axis=1),
                highest=0.0,
            )
        )
        ''',
    )
    out = recipe.run(
        """
        import chebyshev, gemel, numpy as np
        rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
        hits = gemel.search(rows[:3], rows, k=2, metric="chebyshev")
        pairs = gemel.similar_pairs(rows, k=5, metric="chebyshev")
        print(json.dumps({"first": hits.index[:, 0].tolist(), "pairs": [pairs.left.tolist(), pairs.right.tolist()]}))
        """
    )
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    scores = -np.abs(rows[:, None] - rows[None]).max(axis=2)
    best = sorted(zip(*np.triu_indices(50, 1), strict=True), key=lambda pair: -scores[pair])[:5]
    assert out["first"] == [0, 1, 2]
    assert list(zip(*out["pairs"], strict=True)) == [(int(a), int(b)) for a, b in best]


def test_an_architecture_is_one_file(recipe):
    """A checkpoint of another `model_type` that is read as BERT is."""
    tiny_bert(recipe.folder / "model")
    config = recipe.folder / "model" / "config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "model_type": "newbert"}), encoding="utf-8"
    )
    recipe.file(
        "newbert.py",
        '''
        """NewBERT: BERT under another name."""
        from dataclasses import replace
        from gemel.checkpoint.architecture import ARCHITECTURES

        ARCHITECTURES.add("newbert")(replace(ARCHITECTURES["bert"]))
        ''',
    )
    out = recipe.run(
        """
        import gemel
        print(json.dumps(list(gemel.load("model").encode(["a man"]).shape)))
        """,
        package="gemel.encoder.architectures",
    )
    assert out == [1, 32]


def test_an_objective_is_one_file(recipe):
    pytest.importorskip("torch")
    recipe.file(
        "signed_agreement.py",
        '''
        """Signed agreement: the cosine of a pair and its score should have one sign."""
        from dataclasses import dataclass
        from gemel.training.objectives.base import Needs, Objective, cosine_rows, register

        @register("signed-agreement")
        @dataclass(frozen=True)
        class SignedAgreement(Objective):
            """Signed agreement: the cosine of a pair and its score should have one sign."""

            needs = Needs(texts=("left", "right"), label="score")
            agreement_margin: float = 0.1
            """How far from zero a cosine should be."""

            def __call__(self, vectors, label, weights=None):
                return (self.agreement_margin - cosine_rows(*vectors) * label).clamp(min=0).mean()
        ''',
    )
    out = recipe.run(
        """
        import torch
        from click.testing import CliRunner
        from gemel.cli.main import cli
        from gemel.training.objectives.base import make_objective
        objective = make_objective("signed-agreement", {"agreement_margin": 0.5})
        same = torch.eye(2)
        text = CliRunner().invoke(cli, ["train", "--help"]).output
        print(json.dumps({"loss": float(objective((same, same), torch.ones(2))),
                          "listed": "signed-agreement" in CliRunner().invoke(cli, ["objectives"]).output,
                          "flag": "--agreement-margin" in text}))
        """,
        package="gemel.training.objectives",
    )
    assert out == {"loss": 0.0, "listed": True, "flag": True}


def test_a_task_is_one_file(recipe):
    tiny_bert(recipe.folder / "model")
    (recipe.folder / "texts.txt").write_text("a man\nguitar\n", encoding="utf-8")
    recipe.file(
        "lengths.py",
        '''
        """Lengths: are the vectors of all texts of length 1?"""
        from dataclasses import dataclass
        from pathlib import Path
        import numpy as np
        from gemel.evaluation.statistics import MeanSample
        from gemel.evaluation.task import TASKS, Bootstrap, Scores

        @dataclass(frozen=True)
        class Lengths:
            dataset: str
            texts: list

            def score(self, encoder):
                unit = np.isclose(np.linalg.norm(encoder.encode(self.texts), axis=1), 1)
                sample = MeanSample(1.0 * unit)
                return Scores(task="lengths", dataset=self.dataset, main="unit", items=len(unit), unit="texts",
                              values={"unit": Bootstrap(10).score(sample)}, protocol={}, sample=sample)

        @TASKS.add("lengths")
        def load(data, **settings):
            return [Lengths("texts", Path(data).read_text().splitlines())]
        ''',
    )
    out = recipe.run(
        """
        import gemel
        [scores] = gemel.evaluate("model", task="lengths", data="texts.txt")
        print(json.dumps(scores.values["unit"].value))
        """,
        package="gemel.evaluation.tasks",
    )
    assert out == 100


def test_a_clustering_method_is_one_file(recipe):
    recipe.file(
        "halves.py",
        '''
        """Halves: two clusters, by the sign of the first number."""
        import numpy as np
        from gemel.groups.grouping import METHODS, Grouping, centers_and_means

        @METHODS.add("halves")
        def halves(points, request):
            labels = (points.rows[:, 0] < 0).astype(np.int64)
            centers, means = centers_and_means(points, labels, 2)
            return Grouping(labels, centers, means, np.zeros(2))
        ''',
    )
    out = recipe.run(
        """
        import gemel, numpy as np
        rows = np.array([[1, 0], [1, 0.1], [-1, 0], [1, 0.2]], dtype=np.float32)
        print(json.dumps(gemel.cluster(rows, method="halves").labels.tolist()))
        """,
        package="gemel.groups.methods",
    )
    assert out == [0, 0, 1, 0]


def test_a_verb_is_one_file(recipe):
    recipe.file(
        "shout.py",
        '''
        """Print a text in upper case."""
        import click
        from gemel.cli.output import echo

        @click.command()
        @click.argument("text")
        def command(text: str) -> None:
            """Print a text in upper case."""
            echo(text.upper())
        ''',
    )
    out = recipe.run(
        """
        from click.testing import CliRunner
        from gemel.cli.main import cli
        print(json.dumps([CliRunner().invoke(cli, ["shout", "hello"]).output,
                          "Print a text in upper case." in CliRunner().invoke(cli, ["--help"]).output]))
        """,
        package="gemel.cli.verbs",
    )
    assert out == ["HELLO\n", True]
