"""What was found about a checkpoint, in its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from gaussbias.catalogue import Entry, write_extra
from gaussbias.config import Config, to_yaml
from gaussbias.lens.subjects import Subject
from gaussbias.probes import Measured, PicturesProbe, ProbeBank
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write
from gaussbias.system.run_folder import RunFolder
from gaussbias.tables.levels import write_csv

ABOUT = "checkpoint.json"
REMEDY = "give another --out, or remove it"
FORMAT = "gaussbias.lens/4"


@dataclass(frozen=True)
class Looked:
    """What was found about a checkpoint.

    Attributes:
        subject: The checkpoint.
        folder: Where it lies.
        values: By logged name.
        measurement: File of the blocks of each value.
        samples: File of its samples.
        surrogate: Run folder of its linear surrogate, if there is one.
        audits: What audits of its samples found, in words.
    """

    subject: Subject
    folder: Path
    values: dict[str, float]
    measurement: Path
    samples: Path
    surrogate: Path | None
    audits: tuple[str, ...] = ()


def key_of(subject: Subject, bank: ProbeBank, images: str, config: Config, fitted: bool, audits: object = None) -> str:
    """What results depend on, as a hash.

    Args:
        subject: The checkpoint.
        bank: The draws.
        images: The fingerprint of the training images.
        config: With further probes and theories, and how a surrogate is fitted.
        fitted: Whether one is.
        audits: Of samples.
    """
    surrogate = (repr(config.linear), config.train.batch_size, config.run.seed) if fitted else None
    further = config.probes.theories, config.probes.theory_samples, config.probes.also
    guided = (tuple(config.probes.guidance),) if config.probes.guidance else ()
    about = (FORMAT, *guided, subject.digest, sorted(bank.hashes.items()), images, surrogate, further, repr(audits))
    return hashlib.sha256(repr(about).encode()).hexdigest()


def write_looked(
    config: Config,
    subject: Subject,
    folder: Path,
    key: str,
    measured: Measured,
    pictures: PicturesProbe,
    entries: Iterable[Entry],
    fitted: Path | None,
    audits: Sequence[str] = (),
) -> Looked:
    """Write what was found; what says that it is whole comes last."""
    measurement, samples = _files(folder, measured.name)
    kimg = float("nan") if subject.kimg is None else subject.kimg
    try:
        measured.write(measurement)
        write_csv(measurement.with_suffix(".csv"), config, measured.row)
        pictures.write(samples, kimg)
        write(RunFolder(folder).config, to_yaml(config))
        about = {
            "format": FORMAT,
            "key": key,
            "path": str(subject.path.absolute()),
            "kind": subject.kind,
            "kimg": subject.kimg,
            "parameters": subject.parameters,
            "notes": subject.notes,
            "name": measured.name,
            "surrogate": fitted is not None,
            "audits": list(audits),
            "values": {name: value for name, value in measured.row.items() if value == value},
        }
        write_extra(folder, entries)
        write(folder / ABOUT, json.dumps(about, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        raise UserError(f"--out: cannot write to {folder}: {reason(error)}") from None
    return Looked(subject, folder, measured.row, measurement, samples, fitted, tuple(audits))


def read_looked(subject: Subject, folder: Path, key: str) -> Looked:
    """What was found before."""
    try:
        about: Mapping[str, Any] = json.loads((folder / ABOUT).read_text())
        same = about["key"] == key
        values = {str(name): float(value) for name, value in about["values"].items()}
        name, fitted, audits = str(about["name"]), bool(about["surrogate"]), tuple(map(str, about["audits"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--out: cannot read {folder / ABOUT}: {reason(error)}; remove {folder}") from None
    if not same:
        raise UserError(
            f"--out: {folder} holds what was found with another checkpoint, images, draws or options, or by another "
            f"version; {REMEDY}"
        )
    measurement, samples = _files(folder, name)
    return Looked(subject, folder, values, measurement, samples, folder / "surrogate" if fitted else None, audits)


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    """Of the blocks of each value, and of the samples."""
    places = RunFolder(folder)
    return places.measured / f"{name}.safetensors", places.samples / f"{name}.safetensors"
