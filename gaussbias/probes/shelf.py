"""Values of theories on the draws of a probe bank, in files: what a run keeps of them, and finds again."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gaussbias.moments import Eigenmoments
from gaussbias.probes.bank import DrawBatch, ProbeBank
from gaussbias.system.files import complete, reason

log = logging.getLogger("gaussbias")
FORMAT, END = "gaussbias.theory/1", ".values.safetensors"
SAME = 1e-3
"""Largest difference, in data units, from a value that is kept to the same value made again."""


class Shelf:
    """Keeps values of denoisers that stay what they are, a file for each of them, each pool and each block.

    Files are those of the draws and training images whose hash they carry. Whether a denoiser still is what it was is
    tried once: the first draw of the first file that is read is denoised again; if it is not, all files of that name
    are removed. What cannot be written is said once, and made again whenever it is asked for. Several processes share a
    folder, since each has other blocks.

    Args:
        folder: Where files go; made when there is one.
        bank: The draws.
        moments: Of the training images.

    Attributes:
        failed: Whether something could not be written.
    """

    def __init__(self, folder: Path, bank: ProbeBank, moments: Eigenmoments) -> None:
        self.folder, self.bank = folder, bank
        parts = (moments.mean, moments.eigenvalues)
        self._images = hashlib.sha256(b"".join(part.cpu().double().numpy().tobytes() for part in parts)).hexdigest()
        self._same: dict[str, bool] = {}  # of names that files were found of
        self._made: set[Path] = set()
        self.failed = False

    def find(self, name: str, batch: DrawBatch, first: Callable[[], Tensor]) -> Tensor | None:
        """Values (S, m, C, H, W) at the draws of a batch, of a pool whose points do not move, if they are kept.

        Args:
            name: Of the denoiser.
            batch: The draws.
            first: Makes the values of the first draw (S, 1, C, H, W).
        """
        file = self._file(name, batch)
        if not self._same.get(name, True) and file not in self._made:
            return None
        kept = self._read(file, batch)
        if kept is None and file.exists():
            self._forget(name)
        if kept is not None and file not in self._made and name not in self._same:
            self._same[name] = bool((kept[:, :1] - first()).abs().max() <= SAME)
            if not self._same[name]:
                kept = None
                self._forget(name)
        return kept

    def has(self, name: str, batch: DrawBatch) -> bool:
        """Whether there is a file of a batch, right or not."""
        return self._file(name, batch).exists()

    def keep(self, name: str, batch: DrawBatch, values: Tensor) -> None:
        """Write values (S, m, C, H, W) at the draws of a batch."""
        file, about = self._file(name, batch), self._about(batch.pool)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with complete(file) as temporary:
                save_file({"values": values.cpu().contiguous()}, temporary, about)
            self._made.add(file)
        except (OSError, SafetensorError) as error:
            if not self.failed:
                log.warning(
                    "%s could not be written (%s); values of theories will be computed again", file, reason(error)
                )
            self.failed = True

    def _forget(self, name: str) -> None:
        """Remove the files of a denoiser of the blocks of this process that another one has made."""
        for pool in self.bank.names:
            for number in self.bank.numbers(pool):
                file = self._place(name, pool, number)
                if file not in self._made:
                    with suppress(OSError):
                        file.unlink(missing_ok=True)

    def _about(self, pool: str) -> dict[str, str]:
        return {"format": FORMAT, "draws": self.bank.hash(pool), "images": self._images}

    def _place(self, name: str, pool: str, block: int) -> Path:
        of = "" if self.bank.label is None else f"-class_{self.bank.label}"
        return self.folder / f"{quote(name, safe='')}-{pool}{of}-{block}{END}"

    def _file(self, name: str, batch: DrawBatch) -> Path:
        return self._place(name, batch.pool, batch.block)

    def _read(self, file: Path, batch: DrawBatch) -> Tensor | None:
        try:
            with safe_open(file, "pt") as opened:
                if opened.metadata() != self._about(batch.pool):
                    return None
                kept: Tensor = opened.get_tensor("values").to(batch.x0.device)
        except (OSError, SafetensorError, KeyError, TypeError):
            return None
        return kept if kept.shape == (len(batch.sigmas), *batch.x0.shape) else None


def clear(folder: Path) -> None:
    """Remove what was kept, once nothing asks for it any more; what else lies there stays."""
    with suppress(OSError):
        for file in folder.glob(f"*{END}"):
            file.unlink()
        folder.rmdir()
