"""The file that the page makes of its results, run by node."""

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import gemel

DOWNLOAD = Path(gemel.__file__).parent / "serve" / "page" / "download.js"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's code with")


def written(names, rows, tmp_path):
    """The rows of the CSV file, as a reader of CSV has them."""
    for name in ("download.js", "dom.js"):
        (tmp_path / name.replace(".js", ".mjs")).write_text(
            (DOWNLOAD.parent / name).read_text(encoding="utf-8").replace('.js"', '.mjs"'), encoding="utf-8"
        )
    code = f"""
import {{ csv }} from "./download.mjs";
process.stdout.write(csv({json.dumps(names)}, {json.dumps(rows)}));
"""
    (tmp_path / "run.mjs").write_text(code, encoding="utf-8")
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, check=True)
    return list(csv.reader(io.StringIO(done.stdout.decode(), newline="")))


def test_a_text_that_begins_like_a_formula_is_text_and_a_number_is_a_number(tmp_path):
    texts = ['=HYPERLINK("http://x","y")', "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "a = b", "'", ""]
    rows = written(["text", "score"], [[text, -0.5] for text in texts], tmp_path)[1:]
    assert [row[0] for row in rows] == [
        "'" + text if text[:1] in tuple("=+-@\t\r\n") else text for text in texts
    ]
    assert {row[1] for row in rows} == {"-0.5"}


def test_titles_of_columns_are_cleaned_too(tmp_path):
    assert written(["=1+1", "b"], [[None, True]], tmp_path) == [["'=1+1", "b"], ["", "true"]]
