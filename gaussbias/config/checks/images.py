"""Where images come from, and how many."""

from __future__ import annotations

from gaussbias.config.sections import DataConfig
from gaussbias.config.sources import SOURCES, source_kind
from gaussbias.system.errors import UserError
from gaussbias.system.functions import check_function


def check_images(data: DataConfig) -> None:
    """Raise `UserError` for sources that are none or lack their files, and for too few images."""
    if data.n_train is not None and data.n_train < 2:
        raise UserError(f"data.n_train: expected at least 2 images (a covariance), got {data.n_train}")
    if data.classes is not None and (
        not data.classes or len(set(data.classes)) < len(data.classes) or min(data.classes) < 0
    ):
        raise UserError(f"data.classes: expected numbers of classes from 0, each once, got {data.classes}")
    kind = source_kind(data.source)
    if kind is None:
        raise UserError(
            f"data.source: expected one of {', '.join(SOURCES)}, or package.module:function, got {data.source!r}"
        )
    if data.source not in SOURCES:
        check_function(data.source, "data.source")
    if kind.path == "always" and data.path is None:
        raise UserError(
            f"data.path: expected the file or folder of the images of data.source={data.source}, got null; "
            "give data.path=PATH"
        )
    if data.layout is not None and "layout" not in kind.takes:
        raise UserError(
            f"data.layout: expected null for data.source={data.source}, whose images have their channels in one place, "
            f"got {data.layout}"
        )
    for name in ("path", "heldout_path") if kind.path == "never" else ():
        given = getattr(data, name)
        if given is not None:
            raise UserError(f"data.{name}: data.source={data.source} reads no file, got {given}; set data.source too")
