"""Load, encode and the command line in a process where torch and related packages cannot be imported."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tiny import tiny_bert

REFUSED = ("torch", "transformers", "sentence_transformers", "scipy", "sklearn", "pandas")
BARRIER = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {REFUSED!r}:
            raise ImportError(name + " is refused in this test")
sys.meta_path.insert(0, Refuse())
"""


def python(code, *arguments):
    program = BARRIER + textwrap.dedent(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_bert(folder)
    return str(folder)


def test_torch_cannot_be_imported():
    code = """
    for name in ("torch", "transformers"):
        try:
            __import__(name)
        except ImportError as error:
            print(error)
    """
    assert python(code).count("is refused in this test") == 2


def test_load_encode_search_and_pairs_work(model):
    code = """
    import gemel
    model = gemel.load(sys.argv[1])
    vectors = model.encode(["a man is playing a guitar", "hello world", ""])
    assert vectors.shape == (3, model.dim), vectors.shape
    assert gemel.search(vectors[:1], vectors, k=1).index.tolist() == [[0]]
    assert len(gemel.similar_pairs(vectors, k=2)) == 2
    model.encode(["hello world"], precision="int8")
    print(model.encode_report(["hello world"]).summary())
    """
    assert "1 texts" in python(code, model)


@pytest.mark.parametrize("name", ["onnxruntime", "native", "numpy"])
def test_every_engine_works(model, name):
    code = """
    import gemel
    from gemel.encoder.engines import native
    if sys.argv[2] == "native" and not native.levels():
        print("no kernel")
    else:
        print(gemel.load(sys.argv[1], engine=sys.argv[2]).encode(["hello world"]).shape)
    """
    shown = python(code, model, name).strip()
    if shown == "no kernel":
        pytest.skip("no kernel was compiled here")
    assert shown.startswith("(1, ")


RUN = """
from gemel.cli.main import main
code = main(sys.argv[1:])
assert not any(name in sys.modules for name in {refused!r}), "a refused package was loaded"
sys.exit(code)
"""


def run(*arguments):
    return python(RUN.format(refused=REFUSED), *arguments)


def test_gemel_encode_writes_a_folder(model, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("hello world\na man is playing a guitar\n", encoding="utf-8")
    run("encode", str(texts), "--model", model, "-o", str(tmp_path / "out"))
    code = "import gemel; print(gemel.read_folder(sys.argv[1]).vectors.shape[0])"
    assert python(code, str(tmp_path / "out")).strip() == "2"


def test_gemel_models_show_describes_a_folder(model):
    assert model.split("/")[-1] in run("models", "show", model)


@pytest.mark.parametrize("verb", ["--help", "demo", "encode", "models", "info", "bench"])
def test_help_works(verb):
    assert "Usage: gemel" in run(*([verb] if verb == "--help" else [verb, "--help"]))


@pytest.mark.parametrize(
    "code",
    [
        "import gemel; gemel.__version__",
        "from gemel.cli.main import main; assert main(['--help']) == 0",
        "from gemel.cli.main import main; assert main(['--version']) == 0",
    ],
)
def test_import_and_help_load_no_heavy_package(code):
    heavy = [
        "numpy",
        "rich",
        "onnxruntime",
        "tokenizers",
        "safetensors",
        "pyarrow",
        "huggingface_hub",
    ]
    check = f"\nloaded = [name for name in {heavy!r} if name in sys.modules]\nassert not loaded, loaded"
    python(code + check)


def test_encoding_loads_no_package_of_an_extra(model):
    code = """
    import gemel
    gemel.load(sys.argv[1]).encode(["hello world"])
    loaded = [name for name in ("pyarrow", "huggingface_hub", "rich", "click") if name in sys.modules]
    assert not loaded, loaded
    """
    python(code, model)
