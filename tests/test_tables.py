"""Tables of images, in the layout of Hugging Face's data sets: what they give, and what is refused."""

import io
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from gaussbias.config import load
from gaussbias.data import kept, origins, read
from gaussbias.data.images import downsample
from gaussbias.data.sources import labels_of, open_source
from gaussbias.system.errors import UserError


def table(path, images, labels=None, name="image", cell=lambda data, i: {"bytes": data, "path": f"{i}.png"}, **more):
    """A Parquet file as Hugging Face's are, in groups of 7 rows."""
    cells = [cell(encoded(image), i) for i, image in enumerate(images)]
    columns = {name: cells, **({} if labels is None else {"label": labels}), **more}
    pq.write_table(pa.table(columns), path, row_group_size=7)
    return path


def encoded(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def colours():
    return np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)


@pytest.mark.parametrize("bare", [False, True], ids=["struct", "bytes"])
def test_parquet_files_are_read_in_any_order(bare, colours, tmp_path):
    cell = (lambda data, i: data) if bare else (lambda data, i: {"bytes": data, "path": None})
    file = table(tmp_path / "x.parquet", colours, list(range(20)), "img" if bare else "image", cell)
    source = open_source("parquet", file, None, "data.path")
    order = torch.tensor([19, 3, 3, 0, 8])
    assert torch.equal(source.read(order), torch.from_numpy(colours).permute(0, 3, 1, 2)[order])
    assert labels_of(source, "parquet", "data.path").tolist() == list(range(20))


def test_a_folder_of_parquet_files_is_their_rows_in_the_order_of_names(colours, tmp_path):
    (tmp_path / "data").mkdir()
    table(tmp_path / "data" / "train-00001.parquet", colours[12:])
    table(tmp_path / "data" / "train-00000.parquet", colours[:12])
    source = open_source("parquet", tmp_path, 3, "data.path")
    expected = downsample(torch.from_numpy(colours).permute(0, 3, 1, 2), 3)
    assert torch.equal(source.read(torch.arange(20)), expected)
    with pytest.raises(UserError, match="expected a column label or labels"):
        labels_of(source, "parquet", "data.path")


def test_splits_are_kept_apart(colours, tmp_path):
    for name in ("train-00000", "test-00000"):
        table(tmp_path / f"{name}.parquet", colours)
    with pytest.raises(UserError, match=r"expected the files of one split in .*, found those of test and train"):
        open_source("parquet", tmp_path, None, "data.path")
    (tmp_path / "test-00000.parquet").rename(tmp_path / "more.parquet")
    keys = ["data.source=parquet", f"data.path={tmp_path}", f"data.heldout_path={tmp_path / 'more.parquet'}"]
    with pytest.raises(UserError, match=r"expected other images than those of data\.path"):
        read(load(None, keys).data)


def test_grey_tables_have_one_channel_and_others_three(colours, tmp_path):
    grey = open_source("parquet", table(tmp_path / "g.parquet", colours[..., 0]), None, "data.path")
    assert grey.read(torch.arange(3)).shape == (3, 1, 6, 6)
    mixed = [*colours[:1, ..., 0], *colours[1:]]
    both = open_source("parquet", table(tmp_path / "m.parquet", mixed), None, "data.path")
    images = both.read(torch.tensor([0, 5]))
    assert images.shape == (2, 3, 6, 6)
    assert torch.equal(images[0, 0], torch.from_numpy(mixed[0]))
    late = open_source(
        "parquet", table(tmp_path / "l.parquet", [*colours[:16, ..., 0], *colours[16:]]), None, "data.path"
    )
    with pytest.raises(
        UserError,
        match=r"shape 1 x 6 x 6, but row 17 of .* has 3 x 6 x 6; the first 16 rows are grey",
    ):
        late.read(torch.tensor([1, 17]))


def test_tables_that_are_no_images_are_one_line(colours, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no table")
    named = table(tmp_path / "named.parquet", colours, cell=lambda data, i: {"bytes": None, "path": f"{i}.png"})
    damaged = table(tmp_path / "damaged.parquet", colours, cell=lambda data, i: {"bytes": data[:40], "path": ""})
    for said, path in (
        ("expected files whose names end with .parquet", tmp_path / "empty"),
        ("expected a Parquet file at", tmp_path / "text.parquet"),
        ("expected a column image or img in .*, found picture", table(tmp_path / "p.parquet", colours, name="picture")),
        ("expected the bytes of an image in row 0 of .*, found the name of a file", named),
        ("row 0 of .* does not decode", damaged),
        ("found no rows", table(tmp_path / "none.parquet", [], image=pa.array([], pa.binary()))),
        ("expected a file, found none", tmp_path / "nothing.parquet"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            open_source("parquet", path, None, "data.path").read(torch.tensor([0]))
        assert "\n" not in str(caught.value)
    text = table(tmp_path / "words.parquet", colours, ["cat"] * 20)
    with pytest.raises(UserError, match="expected the number of a class in each row of the column label"):
        labels_of(open_source("parquet", text, None, "data.path"), "parquet", "data.path")


class HubRows:
    """What `datasets.load_dataset` gives, as far as it is used."""

    _fingerprint = "f00d"

    def __init__(self, columns):
        self.columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row):
        return {name: values[row] for name, values in self.columns.items()}

    def cast_column(self, name, kind):
        assert kind == "not decoded"
        return self

    def select_columns(self, names):
        return HubRows({name: self.columns[name] for name in names})


def test_data_sets_of_the_hub_are_read_through_its_library(colours, monkeypatch):
    asked = []

    def load_dataset(name, split):
        asked.append((name, split))
        if name == "nothing/there":
            raise FileNotFoundError("no such data set\non the hub")
        cells = [{"bytes": encoded(image), "path": None} for image in colours]
        return HubRows({"img": cells, "label": [3] * 20})

    library = types.ModuleType("datasets")
    library.__version__ = "4.1.0"
    library.load_dataset, library.Image = load_dataset, lambda decode: "decoded" if decode else "not decoded"
    monkeypatch.setitem(sys.modules, "datasets", library)
    source = open_source("hub", Path("someone/images:test"), None, "data.path")
    assert torch.equal(source.read(torch.tensor([4, 1])), torch.from_numpy(colours).permute(0, 3, 1, 2)[[4, 1]])
    assert labels_of(source, "hub", "data.path").tolist() == [3] * 20
    open_source("hub", Path("someone/images"), None, "data.path")
    assert asked == [("someone/images", "test"), ("someone/images", "train")]
    with pytest.raises(UserError, match=r"got nothing/there: no such data set on the hub"):
        open_source("hub", Path("nothing/there"), None, "data.path")
    with pytest.raises(UserError, match=r"expected other images than those of data\.path"):
        read(load(None, ["data.source=hub", "data.path=a/b", "data.heldout_path=a/b:train"]).data)
    library.__version__ = "3.6.0"
    with pytest.raises(UserError, match="hub needs the library datasets from version 4 on"):
        open_source("hub", Path("someone/images"), None, "data.path")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="hub needs the library datasets"):
        open_source("hub", Path("someone/images"), None, "data.path")


def test_parquet_without_its_library_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"parquet needs PyArrow; install it with pip install 'gaussbias\[parquet\]'"):
        open_source("parquet", tmp_path, None, "data.path")


def test_tables_are_kept_decoded_and_their_rows_have_numbers(colours, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MANY", 10)
    file = table(tmp_path / "x.parquet", colours)
    keys = ["data.source=parquet", f"data.path={file}", "data.n_heldout=4", f"data.cache={tmp_path / 'kept'}"]
    first, second = (read(load(None, keys).data) for _ in range(2))
    assert len(list((tmp_path / "kept").glob("*.npy"))) == 1
    plain = read(load(None, [*keys, "data.cache=null"]).data)
    for a, b, c in zip(first, second, plain, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(b, c)
    numbers = [int(name) for name in origins(load(None, keys).data)]
    assert torch.equal(plain[0], torch.from_numpy(colours).permute(0, 3, 1, 2)[numbers])
