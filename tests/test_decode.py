"""From image files to pixels: orientations, transparency, depths and several pictures, against Pillow and by hand."""

import io
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from gaussbias.data import sources
from gaussbias.data.sources import ImageFolder, names
from gaussbias.data.sources.decode import decode, orientation, upright_size
from gaussbias.system.errors import UserError

PICTURE = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40


@pytest.fixture(autouse=True)
def said(caplog):
    """What is said of images, in this test."""
    names.say_once.cache_clear()
    return caplog


def exif(value, kind=3, order="<", count=1):
    """Exif data with an orientation, by hand."""
    start = b"II*\0" if order == "<" else b"MM\0*"
    content = {3: f"{order}HH", 4: f"{order}I", 2: f"{order}4s"}[kind]
    packed = struct.pack(content, *((value, 0) if kind == 3 else (value,)))
    entry = struct.pack(f"{order}HHI", 0x0112, kind, count) + packed
    return start + struct.pack(f"{order}I", 8) + struct.pack(f"{order}H", 1) + entry + struct.pack(f"{order}I", 0)


def png(*chunks, after=()):
    """A PNG of `PICTURE` with chunks before its pixels, and after them."""
    height, width = PICTURE.shape
    raw = b"".join(b"\0" + row.tobytes() for row in PICTURE)
    body = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), *chunks]
    body += [(b"IDAT", zlib.compress(raw)), *after, (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in body:
        data += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return data


def as_profile(data):
    """Exif data as ImageMagick stores them in a PNG: lines of hexadecimal digits, packed."""
    digits = (b"Exif\0\0" + data).hex()
    lines = "\n".join(digits[i : i + 72] for i in range(0, len(digits), 72))
    text = f"\nexif\n{len(digits) // 2:8}\n{lines}\n"
    return b"Raw profile type exif\0\0" + zlib.compress(text.encode())


def pixels(data):
    found, _ = decode(io.BytesIO(data))
    with Image.open(io.BytesIO(data)) as image:
        assert upright_size(image) == found.shape[1:]
    return found[0]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(1, 9))
def test_each_orientation_is_pillows_wherever_it_stands(value, order):
    for chunk in ((b"eXIf", exif(value, order=order)), (b"zTXt", as_profile(exif(value, order=order)))):
        data = png(chunk)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        assert np.array_equal(pixels(data), expected), chunk[0]
    assert np.array_equal(pixels(png()), PICTURE)
    for kind in ("JPEG", "WEBP", "TIFF"):
        buffer = io.BytesIO()
        metadata = Image.Exif()
        metadata[0x0112] = value
        options = {"exif": metadata} | ({"lossless": True} if kind == "WEBP" else {})
        Image.fromarray(PICTURE.repeat(8, 0).repeat(8, 1)).convert("RGB").save(buffer, kind, quality=95, **options)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(buffer.getvalue()))).convert("RGB"))
        assert np.array_equal(decode(io.BytesIO(buffer.getvalue()))[0].transpose(1, 2, 0), expected), kind


def test_an_orientation_in_xmp_counts_where_there_is_none_in_exif():
    xmp = b"XML:com.adobe.xmp\0\0\0\0\0" + b'<x tiff:Orientation="3"/>'
    assert np.array_equal(pixels(png((b"iTXt", xmp))), PICTURE[::-1, ::-1])
    assert np.array_equal(pixels(png((b"iTXt", xmp), (b"eXIf", exif(4)))), PICTURE[::-1])


def test_what_stands_after_the_pixels_does_not_turn_them():
    """As PNG has it; nor does it where something before them is of another kind."""
    xmp = (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x/>")
    for late in ((b"eXIf", exif(6)), (b"zTXt", as_profile(exif(6)))):
        assert np.array_equal(pixels(png(after=[late])), PICTURE)
        assert np.array_equal(pixels(png(xmp, after=[late])), PICTURE)


@pytest.mark.parametrize(
    "data",
    [
        exif(6, kind=4),
        exif(b"6\0\0\0", kind=2, count=2),
        exif(6, count=2),
        exif(0),
        exif(9),
        exif(6)[:14],
        b"II*\0\xff\xff\xff\xff",
        b"II",
        b"",
        b"XX*\0" + exif(6)[4:],
    ],
)
def test_an_orientation_that_is_none_is_ignored(data, tmp_path):
    """In a folder as in a zip."""
    for chunk in ((b"eXIf", data), (b"zTXt", as_profile(data))):
        with Image.open(io.BytesIO(png(chunk))) as image:
            assert orientation(image) == 1
        (tmp_path / "a.png").write_bytes(png(chunk))
        assert ImageFolder(tmp_path).read(torch.tensor([0]))[0, 0].tolist() == PICTURE.tolist()


def test_a_profile_that_is_no_hexadecimal_is_ignored():
    for text in (b"\nexif\n       2\nzz\n", b"\nexif\n       2\nabc\n", b"x"):
        assert np.array_equal(pixels(png((b"tEXt", b"Raw profile type exif\0" + text))), PICTURE)


def test_what_is_transparent_is_put_on_white_and_said(tmp_path, said):
    """Whatever colour there is below; opaque pixels stay as they are."""
    colours = np.random.default_rng(0).integers(0, 256, (4, 4, 4), dtype=np.uint8)
    colours[0, :, 3], colours[1, :, 3] = 0, 255
    share = colours[..., 3:].astype(float) / 255
    expected = colours[..., :3] * share + 255 * (1 - share)
    Image.fromarray(colours).save(tmp_path / "a.png")
    source = ImageFolder(tmp_path)
    got = source.read(torch.tensor([0]))[0].numpy().transpose(1, 2, 0)
    assert np.abs(got - expected).max() <= 1
    assert np.array_equal(got[0], np.full((4, 3), 255))
    assert np.array_equal(got[1], colours[1, :, :3])
    assert f"1 of 1 images from {tmp_path} are transparent somewhere, and were put on white: a.png" in said.text


def test_each_kind_of_transparency(tmp_path):
    grey = np.array([[0, 100], [200, 255]], np.uint8)
    kinds = {}
    for name, image, options in (
        ("grey with an alpha", Image.fromarray(np.stack([grey, np.array([[0, 255], [255, 255]], np.uint8)], -1)), {}),
        ("a transparent grey", Image.fromarray(grey), {"transparency": 0}),
        ("a transparent colour", Image.fromarray(grey).convert("RGB"), {"transparency": (0, 0, 0)}),
        ("a palette", Image.fromarray(grey).convert("P"), {"transparency": 0}),
    ):
        buffer = io.BytesIO()
        image.save(buffer, "PNG", **options)
        found, transparent = decode(io.BytesIO(buffer.getvalue()), grey=True)
        assert transparent, name
        kinds[name] = found[0].tolist()
    assert kinds == {name: [[255, 100], [200, 255]] for name in kinds}
    buffer = io.BytesIO()
    Image.fromarray(grey).convert("RGBA").save(buffer, "PNG")
    found, transparent = decode(io.BytesIO(buffer.getvalue()))
    assert not transparent
    assert found[0].tolist() == grey.tolist()


def refused(text, call, *arguments):
    with pytest.raises(UserError, match=text) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)


def several(path, kind, count):
    frames = [Image.fromarray(np.full((4, 4), 50 * i, np.uint8)) for i in range(count)]
    options = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(path, kind, save_all=True, append_images=frames[1:], **options)


@pytest.mark.parametrize(("ending", "kind"), [("tif", "TIFF"), ("gif", "GIF"), ("png", "PNG"), ("webp", "WEBP")])
def test_several_pictures_in_a_file_are_refused(ending, kind, tmp_path):
    several(tmp_path / f"a.{ending}", kind, 3)
    refused(
        rf"a\.{ending}: expected one picture, got 3 \(frames or pages\)", ImageFolder(tmp_path).read, torch.tensor([0])
    )
    several(tmp_path / f"a.{ending}", kind, 1)
    assert ImageFolder(tmp_path).read(torch.tensor([0])).shape[-2:] == (4, 4)


def test_depths_are_what_they_are():
    """A PPM of 16 bits is refused, as all are; a BMP of 5, 6 and 5 bits has fewer than 8."""
    for head in (b"P6 2 1 65535\n", b"P6 2 1 1023\n"):
        refused("expected 8 bits a channel, got more", decode, io.BytesIO(head + bytes(12)))
    refused("expected 8 bits a channel, got more", decode, io.BytesIO(b"P3 2 1 65535\n1 2 3 4 5 6\n"))
    refused("expected 8 bits a channel, got more", decode, io.BytesIO(b"P5 2 1 65535\n" + bytes(4)))
    assert decode(io.BytesIO(b"P6 2 1 255\n" + bytes(range(6))))[0].tolist() == [[[0, 3]], [[1, 4]], [[2, 5]]]
    assert decode(io.BytesIO(b"P5 2 1 15\n\x0f\x05"))[0].tolist() == [[[255, 85]]]
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    header = struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 16, 3, 4, 0, 0, 0, 0)
    row = struct.pack("<HH", 0xF800, 0x07E0)
    bmp = b"BM" + struct.pack("<IHHI", 14 + 40 + 12 + 4, 0, 0, 14 + 40 + 12) + header + masks + row
    assert decode(io.BytesIO(bmp))[0].tolist() == [[[255, 0]], [[0, 255]], [[0, 0]]]


def test_files_that_are_left_out_are_counted(tmp_path, said):
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    for name in ("b.heic", "c.heic", "labels.csv", "README", ".hidden.png", "Thumbs.db"):
        (tmp_path / name).write_text("x")
    (tmp_path / "lost.png").symlink_to(tmp_path / "nowhere")
    ImageFolder(tmp_path)
    (line,) = [line for line in said.messages if "left out" in line]
    assert line.startswith(f"data.path: 1 of 7 files in {tmp_path} are images; left out: 2 .heic, ")
    assert {part.strip() for part in line.split("left out: ")[1].split(",")} == {
        *("2 .heic", "1 .csv", "1 without an ending", "1 hidden", "1 links to nowhere (lost.png)")
    }
    said.clear()
    ImageFolder(tmp_path)
    assert not said.messages  # once is enough
    for name in ("b.heic", "c.heic", "labels.csv", "README", ".hidden.png", "lost.png"):
        (tmp_path / name).unlink()
    names.say_once.cache_clear()
    ImageFolder(tmp_path)
    assert not said.messages


def test_names_of_files_cannot_command_a_terminal(tmp_path, said):
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    for i in range(9):
        (tmp_path / f"x.\x1b[31mred{i}").write_text("x")
    ImageFolder(tmp_path)
    (line,) = said.messages
    assert "\x1b" not in line
    assert "1 .?[31mred" in line
    assert line.endswith(", 3 others")


def test_zips_say_what_is_left_out_and_why_they_cannot_be_read(tmp_path, said):
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, "PNG")
    for number, extra in enumerate(([], ["notes.txt", "b.heic"])):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as archive:
            archive.writestr("00000/a.png", buffer.getvalue())
            archive.writestr("dataset.json", "{}")
            for name in extra:
                archive.writestr(name, "x")
        said.clear()
        sources.EDMZip(tmp_path / f"{number}.zip")
        assert len(said.messages) == number
    assert "1 of 3 files in" in said.text
    whole = (tmp_path / "0.zip").read_bytes()
    first, central = whole.index(b"PK\x03\x04"), whole.index(b"PK\x01\x02")
    for name, local, place, value, text in (
        ("encrypted", 6, 8, 1, r"is encrypted \('.*'\); zip its files again without a password"),
        ("deflate64", 8, 10, 9, r"is compressed by method 9 \(9 is deflate64\), which Python cannot read"),
    ):
        changed = bytearray(whole)
        changed[first + local] = changed[central + place] = value
        for ending, read in (("zip", sources.EDMZip), ("npz", sources.array)):
            (tmp_path / f"{name}.{ending}").write_bytes(changed)
            refused(text, read, tmp_path / f"{name}.{ending}")
