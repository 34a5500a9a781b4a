"""Document files to texts with their page or heading; nothing that a folder holds ends the work."""

import os
import random
import sys
import zipfile
from io import BytesIO

import pytest

pytest.importorskip("pypdf", reason="the extra 'files' is not installed")
pytest.importorskip("selectolax", reason="the extra 'files' is not installed")
pytest.importorskip("docx", reason="the extra 'files' is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

import gemel
from document_samples import HTML, docx, folder_of_documents, pdf
from gemel.errors import InputError
from gemel.files.document_files import expand_braces, glob_pattern, read_documents
from gemel.files.document_formats import FileBytes, read_content


def read(folder, **options):
    reader = read_documents(folder, **options)
    return {document.id: document for document in reader}, reader


def content(suffix, data):
    return read_content(suffix, FileBytes(data, None, 10**7))


@pytest.fixture
def notes(tmp_path):
    return folder_of_documents(tmp_path / "notes")


def test_every_document_names_its_page_or_heading(notes):
    documents, reader = read(notes)
    assert list(documents) == [
        "notes/guide.md",
        "notes/guide.md#install",
        "notes/guide.md#install-1",
        "notes/guide.md#linux",
        "notes/page.html#top",
        "notes/page.html#below",
        "notes/report.docx#first",
        "notes/report.docx#second",
        "notes/scan.pdf#page=1",
        "notes/scan.pdf#page=3",
        "notes/inside/plain.txt",
    ]
    linux = documents["notes/guide.md#linux"]
    assert (linux.title, linux.heading, linux.page) == ("The guide", "Guide > Install > Linux", None)
    assert (linux.section, linux.text) == (4, "Linux\n\napt install it")
    third = documents["notes/scan.pdf#page=3"]
    assert (third.title, third.heading, third.page, third.text) == ("scan", None, 3, "The third page.")
    second = documents["notes/report.docx#second"]
    assert (second.title, second.heading) == ("A report", "First > Second")
    assert documents["notes/inside/plain.txt"].text == "One text\nof two lines."
    assert (len(reader.files), reader.read, reader.skipped) == (5, 5, [])
    assert gemel.read_documents is read_documents


def test_markup_is_left_out_of_texts(notes):
    documents, _ = read(notes)
    assert documents["notes/guide.md#install"].text == "Install\n\nRun pip from the index.\n\n- one\n- two"
    assert documents["notes/guide.md#install-1"].text == "Install\n\nname | size\n\na | 1"
    assert documents["notes/page.html#top"].text == "Top\n\nHello world\nagain"
    assert documents["notes/page.html#below"].text == "Below\n\n- one\n- two\n\na | b"
    assert documents["notes/report.docx#first"].text == "First\n\nThe first paragraph.\n\nleft | right"


def test_a_second_run_gives_equal_documents(notes):
    assert read(notes)[0] == read(f"{notes}/")[0]


def test_braces_are_expanded():
    assert expand_braces("**/*.{md,{htm,html}}") == ["**/*.md", "**/*.htm", "**/*.html"]
    assert expand_braces("a{1,2}b{,c}") == ["a1b", "a1bc", "a2b", "a2bc"]


@pytest.mark.parametrize("glob", ["{a", "a}", "", "{a,b}" * 11])
def test_a_glob_that_means_nothing_is_refused(glob):
    with pytest.raises(InputError, match="glob"):
        glob_pattern(glob)


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("**/*.md", "a/b/c.md", True),
        ("**/*.md", "c.md", True),
        ("*.md", "a/c.md", False),
        ("a/**", "a/b/c.md", True),
        ("**/*.{md,pdf}", "a/B.PDF", True),
        ("[a-c]?.md", "b1.md", True),
        ("[!a]*.md", "ab.md", False),
        ("a.md", "a+md", False),
    ],
)
def test_a_glob_matches_as_in_a_shell(glob, path, matches):
    assert bool(glob_pattern(glob).fullmatch(path)) == matches


def test_only_files_that_match_are_read(notes):
    documents, _ = read(notes, glob="**/*.{txt,pdf}")
    assert {document.path for document in documents.values()} == {"notes/scan.pdf", "notes/inside/plain.txt"}


def test_hidden_files_and_folders_are_not_read(notes):
    (notes / ".git").mkdir()
    (notes / ".git" / "a.md").write_text("no", encoding="utf-8")
    (notes / ".b.md").write_text("no", encoding="utf-8")
    assert len(read_documents(notes).files) == 5


def test_links_in_a_circle_are_followed_once(notes):
    (notes / "inside" / "back").symlink_to(notes, target_is_directory=True)
    (notes / "inside" / "lost.md").symlink_to(notes / "nothing.md")
    documents, reader = read(notes)
    assert len(documents) == 11
    assert [str(each) for each in reader.skipped] == [
        "notes/inside/lost.md: cannot be read (No such file or directory)"
    ]


def test_what_cannot_be_read_is_reported_in_one_line(notes):
    import pypdf

    writer = pypdf.PdfWriter(clone_from=BytesIO(pdf(["secret"])))
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(notes / "locked.pdf")
    (notes / "cut.pdf").write_bytes(pdf(["a"])[:60])
    (notes / "empty.md").write_bytes(b"")
    (notes / "large.txt").write_text("a" * 460_000, encoding="utf-8")
    (notes / "latin.txt").write_bytes("Grüße aus München".encode("latin-1"))
    (notes / "picture.pdf").write_bytes(pdf([""]))
    (notes / "table.md").write_bytes(b"a\0b")
    (notes / "word.docx").write_bytes(b"PK\3\4 not a zip file")
    told = []
    documents, reader = read(notes, max_size="400kB", on_skip=told.append)
    reasons = {each.path.removeprefix("notes/"): each.reason for each in reader.skipped}
    assert told == reader.skipped and len(documents) == 11
    assert all("\n" not in reason for reason in reasons.values())
    assert reasons["locked.pdf"] == "encrypted. Remove its password first"
    assert reasons["large.txt"] == "0.5 MB, more than the 0.4 MB of max_size (--max-size)"
    assert reasons["latin.txt"].startswith("not utf-8 (at byte 2)")
    assert "pictures" in reasons["picture.pdf"]
    assert (reasons["empty.md"], reasons["table.md"]) == ("no text in it", "binary data, not text")
    assert "damaged, or no .pdf file" in reasons["cut.pdf"] and "no .docx file" in reasons["word.docx"]
    assert (reader.read, len(reader.files)) == (6, 13)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_does_not_block(notes):
    os.mkfifo(notes / "pipe.txt")
    assert str(read(notes)[1].skipped[0]) == "notes/pipe.txt: no regular file"


def test_an_encoding_can_be_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "b.html").write_bytes('<meta charset="iso-8859-1"><p>Grüße'.encode("latin-1"))
    (tmp_path / "c.txt").write_text("Grüße", encoding="utf-16")
    assert [each.text for each in read_documents(tmp_path / "a.txt", encoding="cp1252")] == ["Grüße"]
    assert [each.text for each in read_documents(tmp_path / "b.html")] == ["Grüße"]
    assert [each.text for each in read_documents(tmp_path / "c.txt")] == ["Grüße"]


def test_a_word_file_that_unpacks_to_much_more_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.docx", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("word/document.xml", b" " * 2_000_000)
    _, reader = read(tmp_path, max_size="100kB")
    assert "it unpacks to 2 MB" in reader.skipped[0].reason


def test_elements_that_are_nested_too_deep_are_refused_at_once():
    with pytest.raises(InputError, match="nested more than"):
        content(".html", b"<div>" * 100_000)


def test_one_damaged_page_does_not_hide_the_others(tmp_path, monkeypatch):
    from pypdf import PageObject

    whole = PageObject.extract_text

    def fails_on_the_second(page):
        text = whole(page)
        if "second" in text:
            raise ZeroDivisionError
        return text

    monkeypatch.setattr(PageObject, "extract_text", fails_on_the_second)
    (tmp_path / "a.pdf").write_bytes(pdf(["the first", "the second"]))
    documents, reader = read(tmp_path / "a.pdf")
    assert list(documents) == ["a.pdf#page=1"]
    assert str(reader.skipped[0]) == "a.pdf#page=2: damaged page (ZeroDivisionError)"


def test_a_missing_package_is_reported_once(notes, monkeypatch):
    (notes / "other.pdf").write_bytes(pdf(["a"]))
    monkeypatch.setitem(sys.modules, "pypdf", None)
    told = []
    documents, reader = read(notes, on_skip=told.append)
    assert len(documents) == 9 and len(reader.skipped) == 2
    assert [each.reason for each in told] == [
        "reading .pdf files needs the package 'pypdf'. Install it with: pip install 'gemel[files]'"
    ]


def test_a_heading_gives_an_id_of_its_own(tmp_path):
    (tmp_path / "a.md").write_text("# ???\na\n# ???\nb\n# C++ & co.\nc\n", encoding="utf-8")
    assert list(read(tmp_path / "a.md")[0]) == ["a.md", "a.md#-1", "a.md#c-co"]


def test_a_file_of_headings_only_is_one_document(tmp_path):
    (tmp_path / "a.md").write_text("# A\n## B\n", encoding="utf-8")
    (document,) = read_documents(tmp_path / "a.md")
    assert (document.text, document.title) == ("A\n\nB", "A")


GOOD = {
    ".pdf": pdf(["one", "two"]),
    ".docx": docx(),
    ".html": HTML.encode(),
    ".md": b"# a\n\n- b\n\n[c](d)\n",
}


@given(st.sampled_from(sorted(GOOD)), st.binary(max_size=300), st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_random_and_damaged_bytes_never_crash(suffix, noise, seed):
    rng = random.Random(seed)
    damaged = bytearray(GOOD[suffix])
    start = rng.randrange(len(damaged))
    damaged[start : start + rng.randrange(40)] = noise[:40]
    for data in (noise, bytes(damaged)):
        try:
            found = content(suffix, data)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert all("\0" not in section.text for section in found.sections)
