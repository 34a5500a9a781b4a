"""An index whose passages have vectors that know the whole document."""

from itertools import pairwise

import numpy as np
import pytest
from tests.index.test_index import LONG, TEXTS

import gemel
from gemel.errors import InputError, ModelError
from gemel.index.memory import MemoryStore
from gemel.index.open import open_index
from tiny import tiny_bert


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(params=["memory", "lance"])
def location(request, tmp_path):
    if request.param == "lance":
        pytest.importorskip("lance")
    return MemoryStore() if request.param == "memory" else tmp_path / "notes"


def stored(index, id_):
    (document,) = index.get([id_], vectors=True)
    return document


def test_passages_have_vectors_of_the_whole_document(location, model):
    with open_index(location, model, late_chunks=True, passage_tokens=16) as index:
        done = index.add([LONG, *TEXTS], ids=["long", *map(str, range(len(TEXTS)))])
        assert done.encoded >= len(TEXTS) + 4
        document = stored(index, "long")
        spans = np.cumsum([0, *map(len, model.passages([LONG], tokens=16)[0])])
        wanted = model.encode_passages([LONG], by=[list(pairwise(spans))])
        assert (document.vectors == wanted.vectors).all()
        assert index.verify().ok
        assert (index.stats().late_chunks, index.stats().passage_tokens) == (True, 16)
    with open_index(location) as index:
        assert index.verify().ok
        assert index.add([LONG], ids=["long"], existing="replace").unchanged == 1


def test_passages_are_of_128_tokens_or_what_the_model_reads(model, tmp_path):
    assert open_index(":memory:", model, late_chunks=True).stats().passage_tokens == 64
    longer = gemel.load(tiny_bert(tmp_path / "longer", max_length=200))
    assert open_index(":memory:", longer, late_chunks=True).stats().passage_tokens == 128


def test_a_passage_of_a_changed_document_is_encoded_again(model):
    text = LONG[:120]  # less than the model reads: every passage knows all of it
    with open_index(":memory:", model, late_chunks=True, passage_tokens=16) as index:
        index.add([text], ids=["a"], fields={"year": [1]})
        before = stored(index, "a").vectors
        assert index.upsert([text], ids=["a"], fields={"year": [2]}).encoded == 0
        assert (stored(index, "a").vectors == before).all()
        assert index.upsert([text + " A dog."], ids=["a"], fields={"year": [2]}).encoded > 1
        assert not (stored(index, "a").vectors[0] == before[0]).all()
        index.update(["a"], fields={"year": 3})
        assert index.verify().ok
        index.remove_field("year")
        assert index.verify().ok


def test_late_chunks_are_part_of_the_binding(location, model):
    with open_index(location, model, late_chunks=True) as index:
        index.add(TEXTS)
    with pytest.raises(ModelError, match="late_chunks: True in the index, False now"):
        open_index(location, model, late_chunks=False)
    with open_index(location, model) as index:
        assert index.stats().format == 3  # older versions would add plain passages


def test_an_index_migrates_to_late_chunks_and_back(location, model):
    with open_index(location, model, passage_tokens=16) as index:
        index.add([LONG, *TEXTS], ids=["long", *map(str, range(len(TEXTS)))])
        plain = stored(index, "long").vectors
        assert index.migrate(model, late_chunks=True).encoded > 0
        late = stored(index, "long").vectors
        assert late.shape == plain.shape and not np.allclose(late, plain, atol=1e-3)
        assert index.verify().ok
        assert index.migrate(model).encoded == 0
        index.migrate(model, late_chunks=False)
        assert (stored(index, "long").vectors == plain).all()
        assert index.verify().ok


def test_models_and_options_without_passages_are_refused(model, tmp_path):
    cls = gemel.load(tiny_bert(tmp_path / "cls", pooling="cls"))
    with pytest.raises(InputError, match="mean pooling"):
        open_index(":memory:", cls, late_chunks=True)
    with pytest.raises(InputError, match="one vector of a document"):
        open_index(":memory:", model, options=gemel.EncodeOptions(on_long="chunk"), late_chunks=True)
    with pytest.raises(InputError, match="give a model"):
        open_index(":memory:", dim=8, late_chunks=True)
