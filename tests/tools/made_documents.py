"""Documents of every format, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def pdf(pages: Sequence[str], title: str = "") -> bytes:
    """A PDF with a line of text on each page."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for text in pages:
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    objects.append(b"<< /Title (%s) >>" % title.encode())
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>" % (len(objects) + 1, len(objects))
    return out + b"xref\n0 %d\n0000000000 65535 f \n%s%s\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1,
        table,
        end,
        len(out),
    )


MARKDOWN = """\
# Tides of Brunn

The tide at Brunn turns twice a day.

## Spring tides

Spring tides rise nine metres.

```
# not a heading
```
"""
PAGE = """\
<!doctype html><html><head><title>Lighthouse &amp; keeper</title><style>p {color: red}</style></head>
<body><h1>The lighthouse</h1><p>It was built in <b>1</b>873.<script>alert("<p>no")</script>
<!-- hidden --><p>Its keeper is Ada.</p></body></html>
"""


def folder_of_documents(folder: Path) -> Path:
    """A folder with a Markdown file, a page, a plain text in a subfolder, and files that are not read."""
    (folder / "sub").mkdir(parents=True)
    (folder / "tides.md").write_text(MARKDOWN, encoding="utf-8")
    (folder / "lighthouse.html").write_text(PAGE, encoding="utf-8")
    (folder / "sub" / "notes.txt").write_text("The ferry leaves at nine.", encoding="utf-8")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("secret", encoding="utf-8")
    return folder
