"""What kind of text a file holds, found out before a single value is believed: encoding, delimiter, quotes.

Encodings are decided by evidence, in this order: a byte order mark; UTF-8, which other text practically never is by
accident; UTF-16 without a mark, by where its zero bytes fall; GB18030, when most pairs of high bytes are common
Chinese characters (level 1 of GB 2312 or its punctuation), which neither Western nor Cyrillic text shows; Latin-1
(read as Windows-1252), when high bytes are rare letters among ASCII. Anything else is refused: text read in the wrong
encoding has wrong names.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from failsoft.examples.analyst.errors import DataError

SAMPLE = 1 << 20
"""Bytes looked at to recognise an encoding; UTF-8 is always checked to the end."""
DELIMITERS = (",", ";", "\t", "|", "，")
_SEPARATOR = re.compile(r"\ufeff?sep=(.)\r?\n")
_SINGLE_QUOTED = re.compile(r"(?:^|[,;\t|，])'[^']*'(?:[,;\t|，]|$)")
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MAGIC = (
    (b"PK\x03\x04", "a zip archive or an Excel workbook; save the sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook; save the sheet as CSV"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"SQLite format 3", "an SQLite database"),
)
_NAMES = {
    "utf-8": "UTF-8",
    "utf-8-sig": "UTF-8 with a byte order mark",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16 (little endian, without a byte order mark)",
    "utf-16-be": "UTF-16 (big endian, without a byte order mark)",
    "utf-32": "UTF-32",
    "gb18030": "GB18030",
    "cp1252": "Latin-1 (Windows-1252)",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the fields of a text file are told apart."""

    encoding: str
    delimiter: str
    quote: str
    skip: int = 0
    """Lines before the column names: Excel's ``sep=;``."""

    @property
    def encoding_name(self) -> str:
        """The encoding as people call it."""
        return _NAMES.get(self.encoding, self.encoding)

    @property
    def delimiter_name(self) -> str:
        """The delimiter as people call it."""
        return "tab" if self.delimiter == "\t" else f"“{self.delimiter}”"


def is_parquet(path: Path) -> bool:
    """Whether the file begins as Parquet files do, whatever its name."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def find_dialect(path: Path, *, encoding: str | None = None, delimiter: str | None = None) -> Dialect:
    """The dialect of a text file; raises :class:`DataError` (``binary``, ``encoding``, ``empty``)."""
    if encoding is None:
        encoding = find_encoding(path)
    else:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise DataError("encoding", f"there is no encoding called {encoding!r}", path) from None
    with path.open("rb") as file:
        raw = file.read(SAMPLE)
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(raw)
    if not text.strip("\ufeff \t\r\n"):
        raise DataError("empty", "the file is empty", path)
    if len(raw) == SAMPLE:
        text = text[: text.rfind("\n") + 1] or text  # a line cut off would look like a broken one
    quote = _find_quote(text)
    if (named := _SEPARATOR.match(text)) is not None:
        return Dialect(encoding, delimiter or named[1], quote, skip=1)
    if delimiter is None:
        delimiter = _find_delimiter(text, quote, first="\t" if path.suffix.lower() in {".tsv", ".tab"} else ",")
    return Dialect(encoding, delimiter, quote)


def find_encoding(path: Path) -> str:
    """The Python name of the encoding of a text file; raises :class:`DataError` (``binary``, ``encoding``)."""
    with path.open("rb") as file:
        head = file.read(SAMPLE)
    for magic, what in _MAGIC:
        if head.startswith(magic):
            raise DataError("binary", f"this is not a text file but {what}", path)
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if b"\x00" in head:
        return _utf16_without_mark(head, path)
    wrong = _first_not_utf8(path)
    if wrong is None:
        return "utf-8"
    if _looks_gb18030(head):
        return "gb18030"
    if _looks_utf8(head):
        line, byte = wrong
        raise DataError(
            "encoding", f"not valid UTF-8 here (byte 0x{byte:02X}), though the rest of the file is", path, line
        )
    controls = sum(head.count(c) for c in (*range(1, 9), *range(14, 27), *range(28, 32)))
    if controls > len(head) / 200:
        raise DataError("binary", "this is not a text file", path)
    if _looks_latin(head):
        return "cp1252"
    raise DataError(
        "encoding", "the encoding is none of UTF-8, UTF-16, GB18030 and Latin-1; save the file as UTF-8", path, wrong[0]
    )


def _first_not_utf8(path: Path) -> tuple[int, int] | None:
    """Line and value of the first byte that is not UTF-8; None when all of the file is."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    pending = b""
    with path.open("rb") as file:
        while True:
            chunk = file.read(SAMPLE)
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = error.start - (len(error.object) - len(chunk))
                data = pending + chunk
                at += len(pending)
                return line + data[:at].count(b"\n"), data[at] if at < len(data) else 0
            if not chunk:
                return None
            line += (pending + chunk).count(b"\n") - pending.count(b"\n")
            pending = chunk[-4:] if b"\n" not in chunk[-4:] else b""


def _utf16_without_mark(head: bytes, path: Path) -> str:
    even, odd = head[0::2].count(0), head[1::2].count(0)
    for encoding, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        # Delimiters and digits make up a good part of any table, also of a Chinese one.
        if zeros > len(head) / 20 and others < zeros / 8:
            try:
                head[: len(head) // 2 * 2].decode(encoding)
            except UnicodeDecodeError as error:
                if error.end < len(head) - 2:
                    continue
            return encoding
    raise DataError("binary", "this is not a text file (it contains zero bytes)", path)


def _high_pairs(head: bytes) -> list[tuple[int, int]]:
    pairs, i = [], 0
    while i < len(head) - 1:
        if head[i] < 0x80:
            i += 1
        else:
            pairs.append((head[i], head[i + 1]))
            i += 2
    return pairs


def _looks_gb18030(head: bytes) -> bool:
    pairs = _high_pairs(head[:65536])
    common = sum(
        1 for a, b in pairs if b >= 0xA1 and (0xB0 <= a <= 0xD7 or a in {0xA1, 0xA3})
    )  # level 1 hanzi, punctuation, full-width forms
    if not pairs or common < 0.7 * len(pairs):
        return False
    try:
        codecs.getincrementaldecoder("gb18030")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _looks_utf8(head: bytes) -> bool:
    """Whether most non-ASCII bytes are valid UTF-8: then the file is UTF-8 with damage, and not another encoding."""
    text = head.decode("utf-8", errors="replace")
    bad = text.count("\ufffd")
    good = sum(1 for c in text if ord(c) >= 0x80) - bad
    return good > bad


def _looks_latin(head: bytes) -> bool:
    high = [b for b in head if b >= 0x80]
    letters = sum(1 for b in head if b < 0x80 and chr(b).isalpha())
    if any(b in {0x81, 0x8D, 0x8F, 0x90, 0x9D} for b in high):  # undefined in Windows-1252
        return False
    doubled = sum(1 for a, b in itertools.pairwise(head) if a >= 0xC0 and b >= 0xC0)
    return len(high) <= max(1, letters) * 0.3 and doubled <= len(high) * 0.2


def _find_quote(text: str) -> str:
    """The single quote when fields are quoted with it and none with the double one, otherwise that."""
    if '"' in text:
        return '"'
    lines = text.splitlines()[:200]
    opened = sum(1 for line in lines if _SINGLE_QUOTED.search(line))
    return "'" if lines and opened > len(lines) / 2 else '"'


def _find_delimiter(text: str, quote: str, *, first: str) -> str:
    """The delimiter under which most records have as many fields as the first one.

    That tells ``1,5;2,5`` from ``1;5,2;5``: the header names fields but has no decimal commas. The file's suffix
    decides ties.
    """
    best, best_score = first, (0.0, 0)
    for delimiter in sorted(DELIMITERS, key=lambda d: d != first):
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quote)
            widths = [len(row) for _, row in zip(range(200), (r for r in reader if r), strict=False)]
        except csv.Error:
            continue
        if not widths or widths[0] < 2:
            continue
        agreeing = Counter(widths)[widths[0]] / len(widths)
        score = (round(agreeing, 1), widths[0])
        if score > best_score:
            best, best_score = delimiter, score
    return best
