"""A flag that several verbs have is spelled and described the same in all of them."""

from collections import defaultdict

import pytest

from cli_walk import commands, options
from gemel.cli.flags import WHEN_SHOWN

EVERY = [(words, option) for words, command in commands() for option in options(command)]

# What each must be spelled as, and the words its help begins with; what follows may be special to the verb.
TABLE = {
    "model": ("-m --model", "A model's name, or its folder"),
    "out": ("-o --out", ("A folder for ", "A file for ")),
    "json": ("--json", ("Print one JSON object.", "Print JSON lines, one object per row.")),
    "k": ("-k --k", "How many "),
    "min-score": ("--min-score", "The lowest cosine "),
    "threads": ("--threads", "CPU cores to use. Default: all that the process may use."),
    "seed": ("--seed", "Seed of "),
    "text-column": (
        "--text-column",
        'The column with the texts. Default: "text", or the only column with strings.',
    ),
    "id-column": ("--id-column", "The column with the ids. Default: "),
    "query-column": ("--query-column", "The column of --queries with the texts."),
    "where": ("--where", ("Only ", "All ")),
    "queries": ("--queries", "A file of queries"),
    "input-format": ("--input-format", "The format of FILE. Default: by its name; txt for standard input."),
    "skip-bad": ("--skip-bad", "Leave out rows that cannot be used, and report how many."),
    "overwrite": ("--overwrite", "Replace "),
    "precision": (
        "--precision",
        "Numbers used in the computation: float32, bfloat16 (float32 where the processor cannot) or int8 (fastest, "
        "nearly as good).",
    ),
    "rerank": ("--rerank", "A cross-encoder that reranks "),
    "max-length": ("--max-length", "Tokens of a text, special tokens included"),
    "resume": ("--resume", "Resume the "),
    "force": ("--force", "Train although "),
    "on": ("--on", "Run on a Ray cluster"),
}

# The same name for options of different types, and why.
OTHER_TYPES = {
    "keep": "of duplicates, one of three; of layers, their numbers",
    "data": "an evaluation reads one table or folder; the others files",
    "objective": "a training has any objective; a distillation by pairs one of two",
    "epochs": "a training may end within one",
    "metric": "an evaluation takes all of them at once, an objective one of those it can learn",
    "model": "a server may have several",
    "text-column": "where several are read, it may be repeated",
}


def key(option):
    return max(option.opts, key=len).lstrip("-")


def by_key():
    result = defaultdict(dict)
    for words, option in EVERY:
        result[key(option)][words] = option
    return result


@pytest.mark.parametrize("name", TABLE)
def test_a_flag_of_the_table_is_the_same_everywhere(name):
    spelling, begins = TABLE[name]
    users = by_key()[name]
    assert users, f"no verb has --{name}"
    for words, option in users.items():
        assert " ".join(option.opts) == spelling, words
        assert option.help.startswith(begins), f"{words}: {option.help}"


@pytest.mark.parametrize("name", [name for name, users in by_key().items() if len(users) > 1])
def test_a_flag_of_several_verbs_has_one_spelling_and_one_type(name):
    users = by_key()[name]
    spellings = {(*option.opts, *option.secondary_opts) for option in users.values()}
    assert len(spellings) == 1, users.keys()
    if name not in OTHER_TYPES:
        types = {kind(option): words for words, option in users.items()}
        assert len(types) == 1, types


def kind(option):
    """A number in a range is a number; which choices there are is the verb's business."""
    name = option.type.name.replace(" range", "")
    return (
        "text" if name in ("path", "file", "directory") else name,
        option.is_flag,
        option.multiple,
        option.nargs,
    )


def test_progress_is_shown_on_a_terminal():
    users = by_key()["progress"]
    for words, option in users.items():
        assert option.secondary_opts == ["--no-progress"], words
        assert option.help.endswith(WHEN_SHOWN), words


def test_a_short_name_means_one_thing():
    meant = {
        (short, key(option)) for _, option in EVERY for short in option.opts if not short.startswith("--")
    }
    assert {short for short, _ in meant} <= {"-h", "-k", "-m", "-o"}
    assert len(meant) == len({short for short, _ in meant})


def test_out_has_a_metavar_of_file_or_folder():
    for words, option in by_key()["out"].items():
        assert option.metavar in ("FILE", "FOLDER", "PATH"), words


@pytest.mark.parametrize(("words", "option"), EVERY, ids=[f"{words} --{key(each)}" for words, each in EVERY])
def test_every_flag_has_a_description_that_is_a_sentence(words, option):
    assert option.help
    assert option.help[0].isupper() or option.help[0] in "'\"" or ":" in option.help, option.help
    assert option.help.endswith("."), option.help


def test_no_verb_has_a_flag_twice():
    for words, command in commands():
        flags = [name for option in options(command) for name in (*option.opts, *option.secondary_opts)]
        assert len(flags) == len(set(flags)), words
