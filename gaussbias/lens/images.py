"""What is to be known of the images that checkpoints are measured on, and whether they were trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gaussbias.lens.subjects import Subject
from gaussbias.modules import ImageDataModule
from gaussbias.training.others import sides


def about_images(
    images: ImageDataModule,
    fingerprint: str,
    subjects: Sequence[Subject],
    labels: str | None,
    apart: bool = False,
    classes: Sequence[int] | None = None,
    guidance: bool = False,
) -> Iterator[str]:
    """How many images there are and how they are measured, and what does not go with what a checkpoint says.

    Args:
        images: Training and held-out images, and the bank of draws.
        fingerprint: Of the training images.
        subjects: The checkpoints.
        labels: Of class-conditional networks.
        apart: Whether held-out images come from a place of their own, rather than from those of --data.
        classes: Of which classes images are taken alone.
        guidance: Whether networks are evaluated without their labels as well.
    """
    bank, count = images.bank, len(images.images)
    mirrored = "with their mirrored copies" if images.flip else "without mirrored copies"
    yield (
        f"{count:,} training images {mirrored} and {len(images.heldout):,} held-out ones, of {sides(bank.shape)}; "
        f"{bank.blocks * bank.block:,} draws in each pool, {bank.samples:,} samples, seed {bank.seed}"
    )
    if not apart:
        yield (
            f"the {len(images.heldout):,} held-out images are some of --data. If a network was trained on them too, "
            "the pool heldout is no held-out pool: give data.heldout_path=PATH with images that it has not seen"
        )
    if labels == "data":
        yield (
            f"--labels data: each image has its class, and all is measured on {len(bank.parts)} classes, with the "
            "Gaussian, the memoriser and the nearest images of each; values are means over classes"
        )
    elif labels == "mixture":
        yield (
            "--labels mixture: the denoisers of classes are weighted by how likely each class is for the noisy image, "
            "if the classes of --data are normal"
        )
    elif labels is not None and labels.isdecimal() and classes == [int(labels)]:
        yield (
            f"--labels {labels}: only the images of class {labels} are taken, those held out among them, "
            "which may have been trained on; --labels data with probes.per_class=true holds out what a run of ours did"
        )
    elif labels is not None and labels.isdecimal():
        yield (
            f"--labels {labels}: the Gaussian, the memoriser and the nearest images are those of all of --data; give "
            f"images of class {labels} alone for a comparison with them"
        )
    for subject in subjects if guidance or labels == "none" else ():
        if subject.trained_on.drops_labels is False:
            yield (
                f"warning: {subject.name} was always told the class of its images, so it has not learnt what it says "
                f"without one, {'with which guidance compares' if guidance else 'as --labels none has it'}"
            )
    if labels is not None and classes:  # of a network of all classes, which knows their images alone
        return
    for subject in subjects:
        yield from _mismatch(subject, images, fingerprint, apart)


def _mismatch(subject: Subject, images: ImageDataModule, fingerprint: str, apart: bool) -> Iterator[str]:
    """What a checkpoint says of its training images and these are not."""
    said, count = subject.trained_on, len(images.images)
    if said.fingerprint not in (None, fingerprint):
        yield f"warning: {subject.name} was trained on other images than these; give its run folder as --data"
    if said.counts and count not in said.counts:
        total = count if apart else count + len(images.heldout)
        text = (
            f"warning: {subject.name} says that it was trained on {said.counts[-1]:,} images, and {count:,} are taken"
        )
        if total in said.counts:
            yield f"{text} for them; give data.heldout_path=PATH with others, so that none of --data is held out"
        else:
            yield f"{text} for them; give just those as --data, and others as data.heldout_path=PATH"
    if said.flip is not None and said.flip != images.flip:
        how = "with" if said.flip else "without"
        yield (
            f"warning: {subject.name} says that it was trained {how} mirrored copies; set "
            f"data.flip={str(said.flip).lower()}"
        )
