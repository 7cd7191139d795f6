"""What every reader of checkpoints gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from gaussbias.denoisers import Denoiser

FORMAT = "gaussbias.denoiser/1"
"""The format of the descriptions beside weights."""


@dataclass(frozen=True)
class TrainedOn:
    """What a checkpoint says of its training images.

    Attributes:
        counts: Any of these numbers of images; EDM stores one that counts mirrored copies as well or does not. Empty:
            it does not say.
        flip: Whether mirrored copies were trained on; `None`: it does not say.
        fingerprint: Of these images, in a run of ours.
        drops_labels: Of a network with classes, whether some images came without theirs; `None`: it does not say.
    """

    counts: tuple[int, ...] = ()
    flip: bool | None = None
    fingerprint: str | None = None
    drops_labels: bool | None = None


@dataclass(frozen=True)
class Loaded:
    """A denoiser from a file, in eval mode, on the CPU.

    Attributes:
        denoiser: The denoiser.
        kind: What it was read from, in words.
        shape: (C, H, W) of its images.
        kimg: How many thousands of images it was trained with; `None` if that is not known.
        notes: What is left out or of note, a sentence each.
        identity: What the denoiser is beside its weights, as text: two with the same text and weights are the same.
        trained_on: How many images it was trained on, and whether with mirrored copies, as far as the file says.
    """

    denoiser: Denoiser
    kind: str
    shape: tuple[int, ...]
    kimg: float | None = None
    notes: list[str] = field(default_factory=list)
    identity: str = ""
    trained_on: TrainedOn = TrainedOn()

    @property
    def parameters(self) -> int:
        """Number of weights; 0 for a denoiser that is not a network."""
        return sum(parameter.numel() for parameter in self.denoiser.parameters())
