"""Configuration files: precedence of values, what is refused, and the messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemel.cli import config as config_files
from gemel.cli import index_documents as writing
from gemel.cli.main import main
from gemel.cli.verbs import encode


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """An empty working folder, a home without settings, and no variable of gemel."""
    for name in [name for name in os.environ if name.startswith("GEMEL_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder


@pytest.fixture
def user(tmp_path):
    """Write the user's own file."""

    def write(text):
        path = tmp_path / "config" / "gemel" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def project(work):
    """Write the file of the working folder."""
    return lambda text: (work / "gemel.toml").write_text(text, encoding="utf-8")


@pytest.fixture
def encoded(monkeypatch):
    """`gemel encode` with what is given; returns the values that the command got."""

    def run(*arguments):
        seen = {}
        monkeypatch.setattr(encode.command, "callback", lambda **values: seen.update(values))
        assert main(["encode", "texts.txt", *arguments]) == 0
        return seen

    return run


@pytest.fixture
def refused(capsys):
    """The one-line error for a wrong file."""

    def run(*arguments):
        assert main(list(arguments) or ["encode", "texts.txt"]) == 2
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1
        return shown

    return run


def test_precedence_is_flag_environment_project_user_default(encoded, user, project, monkeypatch):
    assert encoded()["threads"] is None
    user("[defaults]\nthreads = 1\n")
    assert encoded()["threads"] == 1
    project("[defaults]\nthreads = 2\n")
    assert encoded()["threads"] == 2
    monkeypatch.setenv("GEMEL_THREADS", "3")
    assert encoded()["threads"] == 3
    monkeypatch.setenv("GEMEL_ENCODE_THREADS", "4")
    assert encoded()["threads"] == 4
    assert encoded("--threads", "5")["threads"] == 5


def test_the_table_of_a_verb_overrides_the_defaults_of_its_own_file_only(encoded, user, project):
    user('[encode]\nthreads = 1\nprecision = "int8"\n[defaults]\nthreads = 2\n')
    assert encoded()["threads"] == 1
    project("[defaults]\nthreads = 3\n")
    assert encoded()["threads"] == 3
    assert encoded()["precision"] == "int8"


def test_switches_lists_and_both_spellings_arrive(encoded, project):
    project('[encode]\nskip_bad = true\nprogress = false\ntext-column = "body"\nmemory = "1GB"\n')
    seen = encoded()
    assert (seen["skip_bad"], seen["progress"], seen["text_column"], seen["memory"]) == (
        True,
        False,
        "body",
        "1GB",
    )
    assert encoded("--progress")["progress"] is True


def test_a_verb_of_two_words_has_a_table_in_a_table(project, monkeypatch):
    seen = {}
    monkeypatch.setattr(writing.add, "callback", lambda **values: seen.update(values))
    project('[index.add]\nfield = ["lang", "year:int"]\nblock = 16\n[defaults]\ntext-column = "body"\n')
    assert main(["index", "add", "notes", "a.csv"]) == 0
    assert (seen["typed"], seen["block"], seen["text_column"]) == (("lang", "year:int"), 16, "body")


def test_one_value_is_a_list_where_an_option_may_be_repeated(project, monkeypatch):
    seen = {}
    monkeypatch.setattr(writing.add, "callback", lambda **values: seen.update(values))
    project('[index.add]\nfield = "lang"\n')
    assert main(["index", "add", "notes", "a.csv"]) == 0
    assert seen["typed"] == ("lang",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("threads = 2\n", "threads stands outside of a table. Put it below [defaults], or below a verb"),
        ("[encod]\nthreads = 2\n", "unknown table [encod]. Did you mean 'encode'? Known: bench, "),
        ('["index add"]\nblock = 2\n', "unknown table [index add]. Did you mean 'index.add'?"),
        (
            "[encode]\nthread = 2\n",
            "[encode] has no key 'thread'. Did you mean 'threads'? See: gemel encode --help",
        ),
        ("[defaults]\nhybrid = true\n", "[defaults] has no key 'hybrid', only options that verbs share. "),
        ("[encode]\nthreads = 'two'\n", "[encode] threads takes a whole number, got 'two'"),
        ("[defaults]\nthreads = true\n", "[defaults] threads takes a whole number, got true"),
        ("[encode]\nskip-bad = 1\n", "[encode] skip-bad takes true or false, got 1"),
        ("[encode]\nmodel = 7\n", "[encode] model takes a text in quotes, got 7"),
        ("[encode]\nmodel = ['a', 'b']\n", "[encode] model takes one value, got a list of 2"),
        ("[encode.threads]\nat = 1\n", "[encode] threads takes a whole number, got a table"),
        ("[encode]\non-long = 'cut'\n", "[encode] on-long: 'cut' is not one of "),
        ("[encode]\non-long = 'error'\non_long = 'warn'\n", "[encode] has on-long twice, with a hyphen and"),
        ("[encode\n", "gemel.toml is not TOML: "),
        pytest.param(f"[encode]\nmodel = {'[' * 100_000}", "gemel.toml is not TOML: ", id="deep"),
    ],
)
def test_errors_name_file_and_key(project, refused, text, message):
    project(text)
    shown = refused()
    assert shown.startswith("gemel encode: gemel.toml")
    assert message in shown


def test_a_group_has_tables_of_its_commands_only(project, refused):
    project("[index]\nblock = 2\n")
    assert "[index] has no command 'block'" in refused("index", "add", "notes", "a.csv")
    project("[index]\nadd = 2\n")
    assert "add is a command. Write its options below [index.add]" in refused(
        "index", "add", "notes", "a.csv"
    )
    project("[index.ad]\nblock = 2\n")
    assert "Did you mean 'add'?" in refused("index", "add", "notes", "a.csv")


def test_a_range_takes_a_list_of_its_length(project, refused):
    arguments = ("train", "a.tsv", "--model", "m", "--objective", "regression", "-o", "out")
    project("[train]\nscore-range = 5\n")
    assert "[train] score-range takes a list of 2 values, got 5" in refused(*arguments)
    project("[train]\nscore-range = [1, 2, 3]\n")
    assert "[train] score-range: Takes 2 values but 3 were given" in refused(*arguments)


@pytest.mark.parametrize("kind", ["project", "user"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('out = "x"', "out may not be in a file: it says what one run reads or writes. Give --out on the"),
        ("overwrite = true", "overwrite may not be in a file: it replaces what is there"),
        ('job-summary = "x"', "job-summary may not be in a file: "),
        ('api-keys = "x"', "api-keys may not be in a file: a file is easily shared, and it is a secret"),
    ],
)
def test_files_cannot_set_outputs_or_secrets(request, refused, kind, line, message):
    request.getfixturevalue(kind)(f"[encode]\n{line}\n")
    assert message in refused()


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("defaults", 'on = "ray://evil.example:10001"'),
        ("encode", 'on = "ray"'),
        ("serve", 'host = "0.0.0.0"'),
        ("serve", "insecure = true"),
        ("serve", 'index = ["notes=postgresql://evil.example/db"]'),
        ("serve", 'api-key-file = "keys.txt"'),
        ("serve", 'cors-origin = ["https://evil.example"]'),
        ("train", 'tracker = ["wandb"]'),
    ],
)
def test_a_project_file_cannot_disable_access_control(project, refused, user, table, line):
    project(f"[{table}]\n{line}\n")
    verb = {"defaults": "encode"}.get(table, table)
    shown = refused(verb, *([] if verb == "serve" else ["x"]))
    assert "may not be set by a file of the working folder: " in shown
    assert "config.toml" in shown


@pytest.mark.parametrize(
    "name", ["//evil.example/share/m", r"\\evil.example\share\m", r"/\evil.example/m", "smb://evil.example/m"]
)
def test_a_project_file_cannot_set_addresses_of_other_machines(project, refused, user, name):
    project(f"[defaults]\nmodel = '{name}'\n")
    assert "[defaults] model names another machine" in refused()
    project(f"[train]\neval-data = ['{name}']\n")
    assert "[train] eval-data names another machine" in refused("train", "a.tsv")


def test_the_user_s_own_file_may_do_that(user, encoded):
    user('[defaults]\non = "ray"\n[serve]\nhost = "0.0.0.0"\n')
    assert encoded()["on"] == "ray"


def test_a_chosen_file_replaces_both(encoded, user, project, tmp_path, monkeypatch):
    user("[defaults]\nthreads = 1\n")
    project("[defaults]\nthreads = 2\n")
    chosen = tmp_path / "other.toml"
    chosen.write_text('[encode]\ndim = 8\non = "ray"\n', encoding="utf-8")
    monkeypatch.setenv("GEMEL_CONFIG", str(chosen))
    seen = encoded()
    assert (seen["threads"], seen["dim"], seen["on"]) == (None, 8, "ray")
    monkeypatch.setenv("GEMEL_CONFIG", "none")
    assert encoded()["threads"] is None


def test_a_chosen_file_has_to_exist(refused, monkeypatch):
    monkeypatch.setenv("GEMEL_CONFIG", "missing.toml")
    assert "GEMEL_CONFIG names missing.toml, which is no file. Name one, or write none" in refused()


def test_options_of_another_meaning_ignore_the_defaults(project, monkeypatch, capsys):
    from gemel.cli.verbs import plan

    seen = {}
    monkeypatch.setattr(plan.command, "callback", lambda **values: seen.update(values))
    monkeypatch.setenv("GEMEL_DIM", "8")
    project('[defaults]\nmemory = "1GB"\nprecision = "int8"\n')
    assert main(["plan", "--texts", "10"]) == 0
    assert (seen["memory"], seen["precision"], seen["dim"]) == ("256GB", "float32", 384)
    project('[plan]\nmemory = "1GB"\n')
    assert main(["plan", "--texts", "10"]) == 0
    assert seen["memory"] == "1GB"


def test_a_required_option_may_come_from_a_file(project, refused):
    project('[train]\nmodel = "m"\n')
    assert "Missing option '--objective'" in refused("train", "a.tsv", "-o", "out")
    project('[defaults]\nmodel = "m"\n')
    assert "Missing option '-m' / '--model'" in refused(
        "train", "a.tsv", "-o", "out", "--objective", "cosent"
    )


def test_help_and_version_work_with_a_broken_file(project, capsys):
    project("[[[\n")
    for arguments in (["--help"], ["--version"], ["encode", "--help"], ["index", "add", "-h"], ["index"]):
        if arguments != ["index"]:
            assert main(arguments) == 0
    assert "Usage" in capsys.readouterr().out


def test_an_error_says_where_its_option_was_set(project, refused, monkeypatch):
    project('[encode]\nformat = "parquet"\n')
    assert "(gemel.toml sets format)" in refused()
    monkeypatch.setenv("GEMEL_THREADS", "many")
    assert "(GEMEL_THREADS is set). See: gemel encode --help" in refused()


def test_an_error_about_a_typed_flag_names_no_file(project, refused):
    project("[encode]\nthreads = 2\n")
    assert "gemel.toml" not in refused("encode", "texts.txt", "--threads", "many")


def test_a_model_of_a_file_that_is_not_there_names_the_file(project, refused, work):
    (work / "texts.txt").write_text("one\n")
    project('[defaults]\nmodel = "./nowhere"\n')
    assert "(gemel.toml sets model)" in refused("encode", "texts.txt")


@pytest.mark.parametrize(
    ("platform", "variable", "ending"),
    [
        ("linux", "XDG_CONFIG_HOME", "gemel/config.toml"),
        ("win32", "APPDATA", "gemel/config.toml"),
        ("darwin", None, "Library/Application Support/gemel/config.toml"),
    ],
)
def test_the_user_s_file_is_where_the_system_keeps_settings(
    monkeypatch, tmp_path, platform, variable, ending
):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", str(tmp_path))
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "there"))
    result = config_files.user_file()
    assert result is not None
    assert result.as_posix().endswith(ending)
    assert result.is_relative_to(tmp_path / "there" if variable else tmp_path)


def test_without_a_home_there_is_no_user_s_file(monkeypatch, encoded):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert config_files.user_file() is None
    assert encoded()["threads"] is None


def test_a_relative_config_folder_is_not_the_working_folder_s(monkeypatch, work, encoded):
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    (work / "here" / "gemel").mkdir(parents=True)
    (work / "here" / "gemel" / "config.toml").write_text('[defaults]\non = "ray"\n')
    assert encoded()["on"] is None


def test_a_file_is_looked_for_in_the_working_folder_only(project, encoded, work, monkeypatch):
    project("[defaults]\nthreads = 2\n")
    (work / "inner").mkdir()
    monkeypatch.chdir(work / "inner")
    assert encoded()["threads"] is None


def loaded(*arguments, work):
    """The modules of interest that a run of the program has loaded."""
    code = (
        "import sys; from gemel.cli.main import main; main(sys.argv[1:]); "
        "print('\\n' + ' '.join(sorted(name for name in sys.modules if name in "
        "('tomllib', 'numpy', 'gemel.cli.config', 'gemel.cli.config'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, cwd=work
    )
    return done.stdout.splitlines()[-1].split()


def test_without_a_file_no_parser_is_loaded_and_help_loads_nothing(work):
    assert loaded("--help", work=work) == []
    assert "tomllib" not in loaded("objectives", work=work)
    (work / "gemel.toml").write_text("[defaults]\n")
    assert "tomllib" in loaded("objectives", work=work)
    assert "tomllib" not in loaded("--help", work=work)
