"""An index of a folder of files: what is new, changed and gone, and what a run that was killed leaves."""

import pytest

pytest.importorskip("pypdf", reason="the extra 'files' is not installed")
pytest.importorskip("selectolax", reason="the extra 'files' is not installed")
pytest.importorskip("docx", reason="the extra 'files' is not installed")

import gemel
from document_samples import folder_of_documents, pdf
from gemel.errors import InputError
from tiny import tiny_bert


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(params=["memory", "folder"])
def index(request, tmp_path, model):
    if request.param == "folder":
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
    location = ":memory:" if request.param == "memory" else tmp_path / "index"
    with gemel.open_index(location, model) as index:
        yield index


@pytest.fixture
def notes(tmp_path):
    return folder_of_documents(tmp_path / "notes")


def ids(index):
    return [document.id for document in index.documents()]


def test_answers_name_their_page_or_heading(index, notes):
    done = gemel.sync_files(index, notes)
    assert (done.files, done.added, done.skipped) == (5, 11, ())
    (hit,) = index.search("The third page.", k=1, where="path = 'notes/scan.pdf' and page > 1")
    assert (hit.id, hit.fields["title"], hit.fields["page"]) == ("notes/scan.pdf#page=3", "scan", 3)
    (hit,) = index.search("apt install it", k=1, where="heading = 'Guide > Install > Linux'")
    assert hit.id == "notes/guide.md#linux"


def test_unchanged_files_are_not_read_again(index, notes, monkeypatch):
    gemel.sync_files(index, notes)

    def never(*_):
        raise AssertionError("an unchanged file was parsed")

    monkeypatch.setattr("gemel.files.document_files.read_content", never)
    done = gemel.sync_files(index, notes)
    assert (done.files_unchanged, done.added, done.replaced, done.removed, done.encoded) == (5, 0, 0, 0, 0)


def test_changed_and_gone_files_are_brought_up_to_date(index, notes):
    gemel.sync_files(index, notes)
    (notes / "guide.md").write_text("# Guide\nNew text.\n## Linux\n\napt install it\n", encoding="utf-8")
    (notes / "page.html").unlink()
    (notes / "new.md").write_text("new", encoding="utf-8")
    kept = gemel.sync_files(index, notes, remove=False)
    assert (kept.added, kept.replaced, kept.removed) == (2, 1, 3)
    assert kept.encoded == 2  # the text below Linux is the same
    assert "notes/page.html#top" in ids(index)
    done = gemel.sync_files(index, notes)
    assert (done.files_removed, done.removed) == (1, 2)
    assert "1 gone" in done.summary()
    assert [each for each in ids(index) if each.startswith("notes/guide")] == [
        "notes/guide.md#guide",
        "notes/guide.md#linux",
    ]
    assert not any(each.startswith("notes/page") for each in ids(index))


def test_what_is_stored_of_a_file_that_cannot_be_read_now_stays(index, notes):
    gemel.sync_files(index, notes)
    (notes / "scan.pdf").write_bytes(b"damaged")
    done = gemel.sync_files(index, notes)
    assert (len(done.skipped), done.removed) == (1, 0)
    assert "notes/scan.pdf#page=1" in ids(index)


def test_files_that_the_pattern_leaves_out_stay(index, notes):
    gemel.sync_files(index, notes)
    assert gemel.sync_files(index, notes, glob="**/*.md").removed == 0
    assert len(index) == 11


def test_a_file_that_was_stored_in_part_is_read_again(index, notes):
    gemel.sync_files(index, notes)
    index.delete(["notes/guide.md#linux"])  # as if a run had been killed
    done = gemel.sync_files(index, notes)
    assert (done.files_unchanged, done.added, done.unchanged) == (4, 1, 3)


def test_equal_files_are_told_apart(index, notes):
    (notes / "copy.pdf").write_bytes((notes / "scan.pdf").read_bytes())
    assert gemel.sync_files(index, notes).added == 13
    assert gemel.sync_files(index, notes).files_unchanged == 6


def test_documents_can_be_added_like_texts(index, notes):
    documents = list(gemel.read_documents(notes, glob="*.md"))
    assert index.add(documents).added == 4
    assert index.fields["page"] == "int"  # though no Markdown file has one
    assert index.upsert(gemel.read_documents(notes)).added == 7
    assert index.get(["notes/scan.pdf#page=1"])[0].fields["page"] == 1
    assert gemel.sync_files(index, notes).files_unchanged == 5


def test_stored_documents_can_be_added_to_another_index(index, notes, model):
    gemel.sync_files(index, notes)
    with gemel.open_index(":memory:", model, fields=index.fields) as other:
        assert other.add(index.documents()).added == 11
        assert other.get(["notes/guide.md#linux"]) == index.get(["notes/guide.md#linux"])


def test_an_index_with_other_fields_gets_those_of_files(index, notes):
    index.add(["a text"], ids=["1"], fields={"year": [2020]})
    gemel.sync_files(index, notes)
    assert len(index) == 12
    assert index.count("page is not null").documents == 2


def test_nothing_that_can_be_read_is_an_error(index, tmp_path):
    with pytest.raises(InputError, match="no file or folder at"):
        gemel.sync_files(index, tmp_path / "no")
    (tmp_path / "bad").mkdir()
    with pytest.raises(InputError, match="matches"):
        gemel.sync_files(index, tmp_path / "bad")
    (tmp_path / "bad" / "a.pdf").write_bytes(pdf([""]))
    with pytest.raises(InputError, match=r"none of 1 file could be read. bad/a.pdf: no text in it"):
        gemel.sync_files(index, tmp_path / "bad")
