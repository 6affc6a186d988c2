"""Titles, captions, keywords and dates are read from image files; bad ones are no fault of it."""

from __future__ import annotations

import io
import random
from collections.abc import Callable

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from transhash.features.decode import render, summary_task
from transhash.features.metadata import ImageMetadata

XMP = """<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
 xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"
 photoshop:DateCreated="2021-07-04T10:20:30+02:00">
<dc:title><rdf:Alt><rdf:li xml:lang="x-default">Old harbor</rdf:li></rdf:Alt></dc:title>
<dc:description><rdf:Alt><rdf:li>Fishing boats &amp; nets</rdf:li></rdf:Alt></dc:description>
<dc:subject><rdf:Bag><rdf:li>boat</rdf:li><rdf:li>sea</rdf:li></rdf:Bag></dc:subject>
</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>"""


def encoded(file_format: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(buffer, file_format, **options)
    return buffer.getvalue()


def metadata(content: bytes) -> ImageMetadata:
    result = render(content, summary_task(32))
    assert not isinstance(result, str), result
    assert result.metadata is not None
    return result.metadata


def exif_bytes(change: Callable[[Image.Exif], None]) -> bytes:
    exif = Image.Exif()
    change(exif)
    return exif.tobytes()


def set_exif(exif: Image.Exif) -> None:
    exif[0x010E] = "A cat on the roof"
    exif[0x9C9B] = "Our cat".encode("utf-16-le") + b"\0\0"
    exif[0x9C9E] = "cat;roof; Zürich".encode("utf-16-le")
    exif.get_ifd(0x8769)[0x9003] = "2019:12:24 18:00:01"


def iptc(*records: tuple[int, bytes]) -> bytes:
    data = b"".join(
        b"\x1c\x02" + bytes([number]) + len(text).to_bytes(2, "big") + text
        for number, text in records
    )
    block = b"8BIM\x04\x04\0\0" + len(data).to_bytes(4, "big") + data + b"\0" * (len(data) % 2)
    segment = b"Photoshop 3.0\0" + block
    jpeg = encoded()
    return jpeg[:2] + b"\xff\xed" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[2:]


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_xmp_gives_title_caption_keywords_and_time(file_format: str) -> None:
    if file_format == "PNG":
        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", XMP)
        content = encoded("PNG", pnginfo=info)
    else:
        content = encoded(file_format, xmp=XMP.encode())
    assert metadata(content) == ImageMetadata(
        "Old harbor", "Fishing boats & nets", ("boat", "sea"), "2021-07-04T10:20:30"
    )


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_gives_description_texts_of_windows_and_time(file_format: str) -> None:
    assert metadata(encoded(file_format, exif=exif_bytes(set_exif))) == ImageMetadata(
        "Our cat", "A cat on the roof", ("cat", "roof", "Zürich"), "2019-12-24T18:00:01"
    )


def test_iptc_gives_title_caption_keywords_and_date() -> None:
    content = iptc(
        (5, "Frühling".encode()), (120, b"caf\xe9 terrace"), (25, b"caf\xe9"), (25, b"spring"),
        (55, b"20080401"),
    )  # fmt: skip
    assert metadata(content) == ImageMetadata(
        "Frühling", "café terrace", ("café", "spring"), "2008-04-01"
    )


def test_png_texts_are_read() -> None:
    info = PngInfo()
    info.add_text("Title", "Plan of the garden")
    info.add_text("Description", "with a pond")
    assert metadata(encoded("PNG", pnginfo=info))[:2] == ("Plan of the garden", "with a pond")


@pytest.mark.parametrize(
    "text", ["OLYMPUS DIGITAL CAMERA", "SONY DSC", "  \n", "IMAGE 0001", "DCIM\\100\\x.jpg", "***"]
)
def test_what_cameras_write_into_every_file_is_no_caption(text: str) -> None:
    def change(exif: Image.Exif) -> None:
        exif[0x010E] = text

    assert metadata(encoded(exif=exif_bytes(change))) == ImageMetadata()


def test_texts_are_bounded_and_on_one_line_without_control_characters() -> None:
    keywords = "".join(f"<rdf:li>{'k' * 500}{i}</rdf:li>" for i in range(100))
    packet = XMP.replace("Old harbor", "word\t \x85line " * 2000)
    packet = packet.replace("<rdf:li>boat</rdf:li>", keywords + "".join(
        f"<rdf:li>n{i}</rdf:li>" for i in range(200)))  # fmt: skip
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", packet)
    found = metadata(encoded("PNG", pnginfo=info))
    assert found.title.startswith("word line word")
    assert len(found.title) <= 2000
    assert len(found.keywords) == 64
    assert max(map(len, found.keywords)) <= 100


@pytest.mark.parametrize(
    "packet",
    [
        XMP.replace("<?xpacket", '<!DOCTYPE x [<!ENTITY a "aaaa">]><?xpacket', 1),
        XMP[:300],
        XMP + " " * (1 << 18),
        "\x00\xff",
    ],
    ids=["entities", "truncated", "too large", "not XML"],
)
def test_metadata_that_cannot_be_used_leave_the_image_and_other_metadata(packet: str) -> None:
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", packet)
    info.add_text("Title", "A title")
    assert metadata(encoded("PNG", pnginfo=info)) == ImageMetadata("A title")


@pytest.mark.parametrize("time", ["0000:00:00 00:00:00", "2023:13:01 00:00:00", "soon", "2023"])
def test_a_time_that_is_none_is_left_out(time: str) -> None:
    def change(exif: Image.Exif) -> None:
        exif.get_ifd(0x8769)[0x9003] = time

    assert metadata(encoded(exif=exif_bytes(change))).taken == ""


def test_damaged_metadata_never_make_a_readable_image_unreadable() -> None:
    exif, chance = exif_bytes(set_exif), random.Random(0)
    for _ in range(300):
        broken = bytearray(exif)
        for _ in range(chance.randint(1, 8)):
            broken[chance.randrange(6, len(broken))] = chance.randrange(256)
        content = encoded(exif=bytes(broken), xmp=XMP.encode())
        assert metadata(content).title == "Old harbor"
