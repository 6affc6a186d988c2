"""Title, caption, keywords and date that an image file has: EXIF, IPTC, XMP and PNG texts.

Files come from anywhere, so every text is bounded, XML with a document type is not parsed, and a
fault in the metadata is not a fault of the image.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from xml.etree import ElementTree

from PIL import Image, ImageFile, IptcImagePlugin

_MAX_TEXT = 2000  # characters of a title or caption
_MAX_KEYWORDS, _MAX_KEYWORD = 64, 100
_MAX_XMP_BYTES = 1 << 18
_EXIF_IFD = 0x8769
_ORIGINAL_TIME, _DIGITIZED_TIME, _USER_COMMENT = 0x9003, 0x9004, 0x9286
_DESCRIPTION, _XP_TITLE, _XP_COMMENT, _XP_KEYWORDS, _XP_SUBJECT = (
    0x010E, 0x9C9B, 0x9C9C, 0x9C9E, 0x9C9F,
)  # fmt: skip
_NAMESPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "exif": "http://ns.adobe.com/exif/1.0/",
}
# What cameras and programs write into every file says nothing about the image.
_DEFAULT_TEXT = re.compile(
    r"(olympus|konica|minolta|kodak|samsung|sony|canon|nikon|digital still)[ \w]*camera|sony dsc|"
    r"digital camera|dcim\\.*|exif_jpeg\w*|default|untitled|screenshot|created with .*|"
    r"(image|photo)? *[\d_.-]*",
    re.IGNORECASE,
)


_Fields = tuple[list[Any], list[Any], list[Any], list[Any]]  # titles, captions, keywords, times


class ImageMetadata(NamedTuple):
    """What an image file says about itself; empty where it says nothing."""

    title: str = ""
    caption: str = ""
    keywords: tuple[str, ...] = ()
    taken: str = ""  # local time: YYYY-MM-DD, or YYYY-MM-DDTHH:MM:SS

    def to_json(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def from_json(cls, content: bytes) -> ImageMetadata:
        title, caption, keywords, taken = json.loads(content)
        return cls(title, caption, tuple(keywords), taken)

    @property
    def text(self) -> str:
        """Title, caption and keywords as one text."""
        parts = (self.title, self.caption, ", ".join(self.keywords))
        return "; ".join(dict.fromkeys(part for part in parts if part))


def read_metadata(image: Image.Image) -> ImageMetadata:
    """Return the metadata of an image as Pillow opened it, before it is converted.

    XMP is the newest of the standards, so it is preferred, then IPTC, EXIF and PNG texts. Keywords
    of all of them are used.
    """
    fields: _Fields = [], [], [], []
    for reader in (_read_xmp, _read_iptc, _read_exif, _read_png_texts):
        with suppress(Exception):  # parsers of strange files may raise anything
            for values, more in zip(fields, reader(image)):
                values += more
    titles, captions, keywords, times = fields
    title = next((text for text in map(_clean, titles) if text), "")
    caption = next((text for text in map(_clean, captions) if text and text != title), "")
    words = dict.fromkeys(filter(None, (_clean(word, _MAX_KEYWORD) for word in keywords)))
    taken = next((time for time in map(_parse_time, times) if time), "")
    return ImageMetadata(title, caption, tuple(words)[:_MAX_KEYWORDS], taken)


def _read_xmp(image: Image.Image) -> _Fields:
    packet = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or _tiff_tag(image, 700)
    if not packet or len(packet) > _MAX_XMP_BYTES:
        return [], [], [], []
    text = packet if isinstance(packet, str) else bytes(packet).decode("utf-8")
    text = text.strip("\x00\ufeff \r\n\t")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:  # entities could expand without bound
        return [], [], [], []
    root = ElementTree.fromstring(text)

    def values(name: str) -> list[str]:
        prefix, _, local = name.partition(":")
        tag = f"{{{_NAMESPACES[prefix]}}}{local}"
        texts = [node.attrib[tag] for node in root.iter() if tag in node.attrib]
        for node in root.iter(tag):
            items = [item.text or "" for item in node.iterfind(".//rdf:li", _NAMESPACES)]
            texts += items or [node.text or ""]
        return texts

    times = [*values("exif:DateTimeOriginal"), *values("photoshop:DateCreated")]
    return (
        [*values("dc:title"), *values("photoshop:Headline")],
        values("dc:description"),
        values("dc:subject"),
        [*times, *values("xmp:CreateDate")],
    )


def _read_iptc(image: Image.Image) -> _Fields:
    if not isinstance(image, ImageFile.ImageFile):
        return [], [], [], []
    records = IptcImagePlugin.getiptcinfo(image) or {}

    def values(number: int) -> list[str]:
        value = records.get((2, number), [])
        return [_decode(part) for part in (value if isinstance(value, list) else [value])]

    return [*values(5), *values(105)], values(120), values(25), values(55)


def _read_exif(image: Image.Image) -> _Fields:
    exif = image.getexif()
    inner = exif.get_ifd(_EXIF_IFD)
    comment = inner.get(_USER_COMMENT)
    captions = [
        exif.get(_DESCRIPTION),
        _utf16(exif.get(_XP_COMMENT)),
        _utf16(exif.get(_XP_SUBJECT)),
    ]
    if isinstance(comment, bytes) and comment[:8] in (b"ASCII\0\0\0", bytes(8)):
        captions.append(comment[8:])
    return (
        [_utf16(exif.get(_XP_TITLE))],
        captions,
        re.split("[;,]", _utf16(exif.get(_XP_KEYWORDS))),
        [inner.get(_ORIGINAL_TIME), inner.get(_DIGITIZED_TIME)],
    )


def _read_png_texts(image: Image.Image) -> _Fields:
    if image.format != "PNG":
        return [], [], [], []
    texts = {str(name).lower(): value for name, value in image.info.items()}
    keywords = re.split("[;,]", str(texts.get("keywords", "")))
    return [texts.get("title")], [texts.get("description")], keywords, []


def _tiff_tag(image: Image.Image, tag: int) -> bytes | None:
    tags: Any = getattr(image, "tag_v2", {})
    value = tags.get(tag)
    return value if isinstance(value, bytes) else None


def _utf16(value: Any) -> str:
    """Decode the texts of the Windows Explorer."""
    raw = bytes(value) if isinstance(value, bytes | tuple) else b""
    return raw[: 4 * _MAX_TEXT].decode("utf-16-le", "ignore")


def _decode(raw: Any) -> str:
    if not isinstance(raw, bytes):
        return str(raw or "")
    try:
        return raw[: 4 * _MAX_TEXT].decode("utf-8")
    except UnicodeDecodeError:
        return raw[: 4 * _MAX_TEXT].decode("latin-1")


def _clean(value: Any, limit: int = _MAX_TEXT) -> str:
    """Return a text on one line without control characters; "" for what programs fill in."""
    text = _decode(value)[: 2 * limit].encode("utf-8", "ignore").decode()
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    text = " ".join(text.split())[:limit].strip()
    return "" if _DEFAULT_TEXT.fullmatch(text) or not re.search(r"\w", text) else text


_TIME = re.compile(r"(\d{4})[-:]?(\d\d)[-:]?(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?")


def _parse_time(value: Any) -> str:
    """Return the date, and the time if there is one, in ISO 8601 without a zone."""
    match = _TIME.match(_decode(value).strip("\x00 "))
    if match is None:
        return ""
    year, month, day, *clock = match.groups()
    try:
        hour, minute, second = (int(part or 0) for part in clock)
        moment = datetime(int(year), int(month), int(day), hour, minute, second)
    except ValueError:
        return ""
    return moment.isoformat() if clock[0] else moment.date().isoformat()
