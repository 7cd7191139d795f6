"""Where images can come from, and what each source needs; what reads them is imported when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SourceKind:
    """A kind of images, `data.source`.

    Attributes:
        opens: What opens it, as `package.module:function`; it returns a `gaussbias.data.sources.Source`.
        takes: The arguments of that function, of `path`, `key` (the configuration key to name in messages),
            `resolution` and `layout`.
        path: Whether it needs a file or folder.
        suffixes: What the names of its files end with, if that tells.
    """

    opens: str
    takes: tuple[str, ...] = ()
    path: Literal["never", "optional", "always"] = "never"
    suffixes: tuple[str, ...] = ()


SOURCES = {
    "digits": SourceKind("gaussbias.data.sources.digits:digits"),
    "cifar10": SourceKind("gaussbias.data.sources.cifar10:cifar10", ("path", "key"), "optional", (".tar.gz",)),
    "idx": SourceKind("gaussbias.data.sources.idx:idx", ("path", "key"), "always", ("-ubyte", "-ubyte.gz")),
    "edm_zip": SourceKind("gaussbias.data.sources.edm_zip:EDMZip", ("path", "key"), "always", (".zip",)),
    "folder": SourceKind("gaussbias.data.sources.folder:ImageFolder", ("path", "resolution", "key"), "always"),
    "array": SourceKind("gaussbias.data.sources.arrays:array", ("path", "key", "layout"), "always", (".npy", ".npz")),
    "parquet": SourceKind(
        "gaussbias.data.sources.parquet:ParquetImages", ("path", "resolution", "key"), "always", (".parquet",)
    ),
    "hub": SourceKind("gaussbias.data.sources.hub:HubImages", ("path", "resolution", "key"), "always"),
    "gaussian": SourceKind("gaussbias.data.sources.gaussian:gaussian"),
}
"""By name: a source of a file of its own takes a line here."""


def source_kind(name: str) -> SourceKind | None:
    """What a value of `data.source` means: a name, or `package.module:function` of the user's; `None` for others.

    The user's function is called with the path (`None` without one), and returns images (N, C, H, W), these and
    their labels (N,), or a `Source`.
    """
    if ":" in name:
        return SourceKind(name, ("path",), "optional")
    return SOURCES.get(name)
