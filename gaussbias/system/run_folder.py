"""What is where in a run folder."""

from __future__ import annotations

from pathlib import Path


class RunFolder:
    """The names in a run folder (docs/interface.md).

    Args:
        path: The folder, which need not be there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config(self) -> Path:
        """All keys of the configuration; where it is, is a run."""
        return self.path / "config.yaml"

    @property
    def attempts(self) -> Path:
        """A line for each time that the run was begun or continued."""
        return self.path / "attempts.jsonl"

    @property
    def lock(self) -> Path:
        """Held by whoever is at work."""
        return self.path / ".lock"

    @property
    def done(self) -> Path:
        """Which attempt came to the end."""
        return self.path / "done.json"

    @property
    def history(self) -> Path:
        """Every logged value."""
        return self.path / "history.csv"

    @property
    def moments(self) -> Path:
        """Mean and covariance of the training images."""
        return self.path / "moments.safetensors"

    @property
    def checkpoints(self) -> Path:
        """What the run goes on from."""
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.checkpoints / "last.ckpt"

    @property
    def denoiser(self) -> Path:
        """The network's averaged weights."""
        return self.path / "denoiser.safetensors"

    @property
    def linear(self) -> Path:
        """The maps of a linear surrogate."""
        return self.path / "linear.safetensors"

    @property
    def gaussian(self) -> Path:
        """What points to the moments of a run of the Gaussian."""
        return self.path / "gaussian.json"

    @property
    def surrogate(self) -> Path:
        """What the pictures of a surrogate show."""
        return self.path / "surrogate.safetensors"

    @property
    def probes(self) -> Path:
        """What the blocks contribute to each value, a file for each measurement."""
        return self.path / "probes"

    @property
    def samples(self) -> Path:
        """The samples of each measurement."""
        return self.path / "samples"

    @property
    def measured(self) -> Path:
        """What was measured afterwards."""
        return self.path / "measured"

    @property
    def figures(self) -> Path:
        """Pictures."""
        return self.path / "figures"

    @property
    def sample_figures(self) -> Path:
        """Pictures of the samples of each measurement."""
        return self.figures / "samples"

    @property
    def timed(self) -> tuple[Path, ...]:
        """Folders whose files are named by their times in kimg."""
        return self.probes, self.samples, self.sample_figures

    @property
    def theories(self) -> Path:
        """Values of theories on the draws of the probes, until the run is done."""
        return self.path / ".theories"

    @property
    def averages(self) -> Path:
        """Averages of the weights, of which others are made afterwards."""
        return self.path / "averages"

    @property
    def guidance(self) -> Path:
        """What the parts of the term of guidance look like."""
        return self.path / "guidance.safetensors"

    @property
    def wandb(self) -> Path:
        """The run's files for Weights & Biases."""
        return self.path / "wandb"

    @property
    def tensorboard(self) -> Path:
        """The run's files for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def wandb_id(self) -> Path:
        """The id of its W&B run."""
        return self.wandb / "run_id"
