"""Rules that hold for every option of every verb."""

import re
from pathlib import Path

import click
import pytest

from gemel.cli.config import (
    GENERAL,
    NOT_SHARED,
    SHARED,
    ConfigFile,
    default_map,
    is_shared,
    options_by_key,
    rule_of,
    settings_of,
    variables_of,
    verbs_below,
)
from gemel.cli.main import VERBS, cli

DOCS = Path(__file__).parents[2] / "docs"
LEAVES = [leaf for name in VERBS for leaf in verbs_below(cli.get_command(click.Context(cli), name), (name,))]
OPTIONS = [
    (words, command, key, option)
    for words, command in LEAVES
    for key, option in options_by_key(command).items()
]

# Switches that an untrusted gemel.toml may set. Add a new one here if it neither writes, opens nor sends anything;
# otherwise add it to a table of cli/config.py.
HARMLESS = {
    "accept-token-ids",
    *(
        "calibrate",
        "canaries",
        "compact",
        "costs",
        "durable",
        "exact",
        "exact-only",
        "gradient-checkpointing",
        "group-by-length",
    ),
    *(
        "here",
        "hybrid",
        "ignore-case",
        "ignore-space",
        "json",
        "keep-texts",
        "late-chunks",
        "no-dense",
        "no-fields",
        "normalize",
        "online",
    ),
    *(
        "no-ratio",
        "positive-ids",
        "progress",
        "scores",
        "skip-bad",
        "symmetric",
        "tokens",
        "train",
        "vectors",
    ),
    *("bias", "clip-head", "encode-repeats", "warmup-from-zero"),  # arithmetic of training only
    *("inference-free", "query-expansion"),  # the form of the trained model
}


def sample(option, tmp_path):
    """A value other than the default: as text for the environment, as TOML, and as the command receives it."""
    kind = option.type
    if option.is_flag:
        wanted = not option.get_default(click.Context(cli))
        return str(int(wanted)), wanted, wanted
    if isinstance(kind, click.Choice):
        text = value = next(choice for choice in kind.choices if choice != option.default)
    elif isinstance(kind, click.types.IntParamType):
        text, value = "9", 9
    elif isinstance(kind, click.types.FloatParamType):
        text, value = "0.5", 0.5
    elif isinstance(kind, click.Path):
        text = value = str(tmp_path)
        if not kind.dir_okay or kind.exists:
            (tmp_path / "file").touch()
            text = value = str(tmp_path / "file")
    else:
        text = value = "x"
    made = kind.convert(value, option, click.Context(cli))
    if option.nargs > 1:
        return " ".join([text] * option.nargs), [value] * option.nargs, (made,) * option.nargs
    return (text, [value], (made,)) if option.multiple else (text, value, made)


def parsed(command, words, **settings):
    """What the command would receive without arguments; missing arguments are ignored."""
    with command.make_context(words[-1], [], resilient_parsing=True, **settings) as context:
        return dict(context.params)


def test_every_verb_is_covered():
    assert {words[0] for words, _ in LEAVES} == set(VERBS)
    assert len(OPTIONS) > 200


def test_every_option_has_its_variables(tmp_path, monkeypatch):
    for words, command, key, option in OPTIONS:
        text, _, wanted = sample(option, tmp_path)
        names = variables_of(words, key)
        assert names[0] == "_".join(("GEMEL", *words, key)).upper().replace("-", "_")
        for name in names:
            with monkeypatch.context() as environment:
                environment.setenv(name, text)
                assert parsed(command, words)[option.name] == wanted, name


def test_no_variable_means_two_things():
    owners = {}
    for words, _, key, _ in OPTIONS:
        for at, name in enumerate(variables_of(words, key)):
            assert name not in GENERAL, name
            owner = (" ".join(words), key) if at == 0 else ("", key)
            assert owners.setdefault(name, owner) == owner, name


def test_every_option_that_a_file_may_set_arrives(tmp_path):
    for words, command, key, option in OPTIONS:
        if rule_of(key, option).who == "nobody":
            continue
        _, value, wanted = sample(option, tmp_path)
        table = {key: value}
        for word in reversed(words):
            table = {word: table}
        file = ConfigFile(Path("mine.toml"), "chosen", table)
        inner = default_map(command, words, settings_of(command, words, [file]))
        for word in words:
            inner = inner[word]
        assert parsed(command, words, default_map=inner)[option.name] == wanted, (words, key)


def test_shared_options_are_of_one_kind_in_all_their_verbs():
    for shared in SHARED:
        kinds, verbs = set(), set()
        for words, _, key, option in OPTIONS:
            if key == shared and is_shared(words, key):
                kind = "flag" if option.is_flag else option.type.name
                kinds.add("integer" if kind == "integer range" else kind)
                verbs.add(words)
        assert len(kinds) == 1, (shared, kinds)
        assert len(verbs) >= 2, f"{shared} is an option of {verbs} only; it is no option that verbs share"


def test_every_exception_is_an_option():
    available = {f"{' '.join(words)} {key}" for words, _, key, option in OPTIONS}
    assert available >= NOT_SHARED


def test_flags_that_a_project_file_may_set_were_reviewed():
    result = {key for _, _, key, option in OPTIONS if option.is_flag and rule_of(key, option).who == "all"}
    assert result == HARMLESS


def test_no_path_may_come_from_a_project_file():
    for words, _, key, option in OPTIONS:
        if isinstance(option.type, click.Path) and rule_of(key, option).who == "all":
            pytest.fail(f"gemel {' '.join(words)} --{key} is a path that a gemel.toml may set")


def test_the_page_lists_the_options_that_verbs_share():
    page = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- shared -->")[2].partition("<!-- /shared -->")[0]
    assert re.findall(r"`([^`]+)`", shown) == sorted(SHARED)
    for name in GENERAL:
        assert f"| `{name}` |" in page


def test_the_port_of_a_kubernetes_service_is_left_alone(monkeypatch):
    monkeypatch.setenv("GEMEL_SERVE_PORT", "tcp://10.0.0.7:80")
    command = cli.get_command(click.Context(cli), "serve")
    assert parsed(command, ("serve",))["port"] == 8080
    monkeypatch.setenv("GEMEL_SERVE_PORT", "9000")
    command = cli.get_command(click.Context(cli), "serve")
    assert parsed(command, ("serve",))["port"] == 9000


def test_no_variable_of_root_flags(monkeypatch, capsys):
    # Images often have a variable with the version of what is in them.
    from gemel.cli.main import main

    monkeypatch.setenv("GEMEL_VERSION", "0.1.0")
    assert main(["objectives"]) == 0
    assert "Usage" not in capsys.readouterr().out
