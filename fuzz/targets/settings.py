"""Files that a user or a run leaves behind: gemel.toml, API keys, metrics of a training run."""

from __future__ import annotations

import os
from pathlib import Path

from fuzz.target import Job, target

TOML = [
    b'[defaults]\nmodel = "all-MiniLM-L6-v2"\nthreads = 2\n\n[encode]\nprecision = "int8"\non-long = "truncate"\n',
    b'[index.add]\ntext-column = "body"\nfield = ["lang", "year:int"]\n\n[search]\nk = 5\n',
    b'[train]\nepochs = 2\nlearning-rate = 1e-5\n\n[serve]\nport = 8000\ncors-origin = ["http://localhost"]\n',
]


@target("gemel-toml", "lines", "gemel.cli.config")
def gemel_toml(folder: Path) -> Job:
    """The settings of a working folder, for every verb."""
    import click

    from gemel.cli.config import check_commands, default_map, read_files, settings_of, verbs_below
    from gemel.cli.main import VERBS, cli

    path = folder / "gemel.toml"
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in VERBS}

    def read(data: bytes) -> None:
        path.write_bytes(data)
        before, os.environ["GEMEL_CONFIG"] = os.environ.get("GEMEL_CONFIG"), str(path)
        try:
            files = read_files(list(VERBS))
            for name, result in commands.items():
                if isinstance(result, click.Group):
                    check_commands(result, name, files)
                for words, verb in verbs_below(result, (name,)):
                    default_map(verb, words, settings_of(verb, words, files))
        finally:
            os.environ["GEMEL_CONFIG"] = before or "none"

    return Job(TOML, read)


@target("api-keys", "lines", "gemel.serve.access")
def api_keys(folder: Path) -> Job:
    from gemel.serve.access import read_keys

    path = folder / "keys"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        keys = read_keys(path, data.decode("utf-8", "replace").replace("\n", " "), None)
        keys.find("0123456789abcdef0123")

    return Job([b"alice:0123456789abcdef0123\nbob:fedcba9876543210fedc:600\n", b"0123456789abcdef0123"], read)


@target("metrics", "lines", "gemel.training.journal")
def metrics(folder: Path) -> Job:
    """metrics.jsonl of a training run."""
    from gemel.training.journal import read_journal, untimed

    path = folder / "run" / "metrics.jsonl"
    path.parent.mkdir()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        untimed(read_journal(path))

    return Job(
        [b'{"kind": "start", "step": 0}\n{"kind": "train", "step": 1, "loss": 0.5}\n'],
        read,
    )
