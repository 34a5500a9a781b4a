"""Small document files for tests: a PDF of text pages, a Word file, a folder of all kinds."""

from functools import cache
from io import BytesIO
from pathlib import Path

MARKDOWN = """---
title: The guide
---
Before the first heading.

# Guide

## Install

Run `pip` from [the index](http://example.org).

- one
- two

## Install

| name | size |
|---|---|
| a | 1 |

### Linux

```sh
apt install it
```
"""
HTML = """<!doctype html><html><head><title>A page</title><style>p {color: red}</style></head><body>
<nav><a href=x>Menu</a></nav><h1 id="top">Top</h1><p>Hello <b>wor</b>ld<script>bad()</script><br>again</p>
<h2>Below</h2><ul><li>one<li>two</ul><table><tr><td>a</td><td>b</td></tr></table><p hidden>unseen</p></body></html>"""


def pdf(pages: list[str]) -> bytes:
    """A PDF with one line of text per page; an empty one is a page without text."""
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
    font = "/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>",
    ]
    for number, text in enumerate(pages):
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 300]{font}/Contents {4 + 2 * number} 0 R>>"
        )
        stream = f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET" if text else ""
        objects.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    end = f"trailer<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF"
    return out + head.encode() + end.encode()


@cache
def docx() -> bytes:
    """A Word file with two headings and a table."""
    import docx

    document = docx.Document()
    document.core_properties.title = "A report"
    document.add_heading("First", 1)
    document.add_paragraph("The first paragraph.")
    table = document.add_table(1, 2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "left", "right"
    document.add_heading("Second", 2)
    document.add_paragraph("The second paragraph.")
    out = BytesIO()
    document.save(out)
    return out.getvalue()


def folder_of_documents(folder: Path) -> Path:
    """One good file of each kind."""
    (folder / "inside").mkdir(parents=True)
    (folder / "guide.md").write_text(MARKDOWN, encoding="utf-8")
    (folder / "page.html").write_text(HTML, encoding="utf-8")
    (folder / "report.docx").write_bytes(docx())
    (folder / "scan.pdf").write_bytes(pdf(["The first page.", "", "The third page."]))
    (folder / "inside" / "plain.txt").write_text("One text\nof two lines.\n", encoding="utf-8")
    return folder
