"""The linear surrogate of a denoiser: one affine map per noise level, distilled from it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gaussbias.data.images import to_unit
from gaussbias.denoisers import Denoiser, LinearDenoiser, at_levels
from gaussbias.modules import exact, gradient
from gaussbias.modules.gradient import GradientFit
from gaussbias.modules.summing import SummingModule
from gaussbias.moments import Eigenmoments
from gaussbias.numerics.seeding import Normals
from gaussbias.probes import Batch, evaluate
from gaussbias.surrogate import AffineFit, Pool, Sums, fewest_draws


class LinearModule(SummingModule):
    """Fits the affine maps closest to a teacher in mean square, level after level.

    Each batch gives draws `x = x0 + sigma eps` of the present level, at which the teacher is evaluated, in float32 and
    eval mode. `eps` of the whole global batch is a function of (seed, step), and each rank takes its rows. Until a
    level is fitted, its map is not a number.

    Args:
        teacher: The denoiser to distil.
        train: Moments of the training images, whose Gaussian denoiser fits shrink to.
        pool: Moments of the images in the batches; those of the training images if not given.
        sigmas: Noise levels, in the order in which they are fitted.
        draws: Draws for each level; with `target_error` at most so many.
        batch_size: Images in one step, over all devices.
        method: `exact` (`gaussbias.surrogate`), or `gradient`: Adam on W and b from 0, on the mean squared error,
            inputs divided by sqrt(d), as in the authors' code.
        shrink: For `exact`: shrink to the Gaussian denoiser; else least squares.
        target_error: For `exact`: end a level once the predicted `||W - W_L||_F^2 / ||W||_F^2` is below it by two
            standard errors.
        learning_rates: For `gradient`, one per level; `learning_rate` of each if not given.
        seed: Of the noise.
        config: Stored in checkpoints.

    Raises:
        ValueError: For too few draws, or a pool of images that do not differ.
    """

    def __init__(
        self,
        teacher: Denoiser,
        train: Eigenmoments,
        sigmas: Sequence[float],
        draws: int,
        pool: Eigenmoments | None = None,
        batch_size: int = 128,
        method: str = "exact",
        shrink: bool = True,
        target_error: float | None = None,
        learning_rates: Sequence[float] | None = None,
        seed: int = 0,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        d = len(train.mean)
        if method not in ("exact", "gradient"):
            raise ValueError(f"Expected `method` to be exact or gradient but got {method}.")
        least = fewest_draws(d, shrink)
        if method == "exact" and draws < least:
            raise ValueError(
                f"Expected `draws` to be at least {least} for {d} dimensions "
                f"{'with' if shrink else 'without'} shrinkage but got {draws}."
            )
        self._teacher = [teacher.eval().requires_grad_(False)]  # in a list: it is no part of this module's state
        self.teacher_hash = _hash(teacher)
        self.pool = Pool(train if pool is None else pool, train)
        self.levels, self.draws, self.batch_size, self.method = list(sigmas), draws, batch_size, method
        self.shrink, self.target_error, self.seed = shrink, target_error, seed
        rates = [gradient.learning_rate(sigma) for sigma in sigmas] if learning_rates is None else list(learning_rates)
        if len(rates) != len(self.levels):
            raise ValueError(f"Expected {len(self.levels)} `learning_rates`, one per level, but got {len(rates)}.")
        self.learning_rates = rates
        self.denoiser = LinearDenoiser(
            torch.tensor(self.levels, dtype=torch.float64),
            torch.full((len(self.levels), d, d), torch.nan),
            torch.full((len(self.levels), d), torch.nan),
            train.shape,
        )
        self.drawn, self.next_trial = 0, exact.first_trial(len(self.pool.mean), self.shrink)  # of the present level
        self.fits: list[dict[str, float]] = []
        if method == "exact":
            self.sums = Sums(d)
        else:
            self.weight, self.bias = gradient.parameters(d)
            recent = torch.zeros(2, dtype=torch.float64)  # sum of losses, and of draws
            self.register_buffer("recent", recent, persistent=False)
        self.save_hyperparameters({"config": config or {}}, logger=False)

    recent: Tensor

    @property
    def descent(self) -> GradientFit:
        """What `gradient` fits with."""
        return GradientFit(self.weight, self.bias, self.recent)

    @property
    def teacher(self) -> Denoiser:
        """The denoiser that is distilled."""
        return self._teacher[0]

    @property
    def level(self) -> int:
        """The one that is being fitted."""
        return len(self.fits)

    @property
    def steps_per_level(self) -> int:
        """Steps for each level, at most."""
        return math.ceil(self.draws / self.batch_size)

    @property
    def draws_per_level(self) -> int:
        """Draws for each level, in whole batches, at most."""
        return self.steps_per_level * self.batch_size

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam for `gradient`; for `exact` none that does anything."""
        if self.method == "exact":
            return super().configure_optimizers()
        return torch.optim.Adam([self.weight, self.bias], lr=self.learning_rates[0])

    def on_fit_start(self) -> None:
        """Move the teacher, which Lightning does not know."""
        self.teacher.to(self.device)

    def on_train_start(self) -> None:
        """A run that was finished before it was planned to is not gone on with."""
        self.trainer.should_stop = self.level == len(self.levels)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor] | None:
        """Take the draws of a batch of `images` (b, C, H, W), this rank's rows of the global batch of `step`."""
        x, output = self._draw(batch, self.levels[self.level])
        result = None
        if self.method == "exact":
            exact.add(self.sums, self.pool, x, output, self.drawn + self.global_rank * len(x))
        else:
            result = {"loss": self._descend(x, output)}
        self.count_step()
        self.drawn += self.batch_size
        if self.drawn >= self.draws:
            self._finish(self._fit() if self.method == "exact" else None)
        elif self.target_error is not None and self.drawn >= self.next_trial:
            fit = self._fit()
            if self._close_enough(fit):
                self._finish(fit)
        return result

    def _draw(self, batch: dict[str, Any], sigma: float) -> tuple[Tensor, Tensor]:
        """Noisy images, and the teacher's values at them, (b, C, H, W)."""
        x0 = to_unit(batch["images"])
        rows = slice(self.global_rank * len(x0), (self.global_rank + 1) * len(x0))
        random = Normals(self.seed, "linear", int(batch["step"]), device=self.device)
        eps = random(self.batch_size, *x0.shape[1:], rows=rows)
        x = x0 + sigma * eps
        with torch.no_grad():
            return x, at_levels(self.teacher, x[None], torch.tensor([sigma], dtype=torch.float64))[0]

    def _descend(self, x: Tensor, output: Tensor) -> Tensor:
        """The mean squared error and its gradient, over all ranks."""
        loss = self.descent.loss(x, output)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        for parameter in (self.weight, self.bias):
            assert parameter.grad is not None
            parameter.grad.copy_(self.trainer.strategy.reduce(parameter.grad, reduce_op="mean"))
        if self.drawn + self.batch_size > gradient.LAST * self.draws:
            self.descent.remember(loss, len(x))
        return loss.detach()

    def _close_enough(self, fit: AffineFit) -> bool:
        """Whether a fit has the error asked for; if not, when to look again."""
        assert self.target_error is not None
        # ranks that differ in round-off still have to decide alike
        reached: float = self.trainer.strategy.broadcast(exact.sure_error(fit))
        if reached > self.target_error:
            self.next_trial = exact.next_trial(self.drawn, reached, self.target_error)
        return reached <= self.target_error

    def _fit(self) -> AffineFit:
        """The fit to the draws of all ranks; every rank comes here."""
        over_ranks = self.over_ranks if self.trainer.world_size > 1 else None
        return exact.fit(self.sums, self.pool, self.levels[self.level], self.shrink, over_ranks)

    def _finish(self, fit: AffineFit | None) -> None:
        """Keep the map of the level, and begin the next one; after the last one training ends."""
        level = self.level
        if fit is not None:
            weights, bias = self.pool.in_pixels(fit.weights, fit.bias)
            about = {name: float(value) for name, value in vars(fit).items() if name not in ("weights", "bias")}
            self.sums.reset()
        else:
            weights, bias = self.descent.map()
            about = self._about_gradient(level, weights)
            following = self.learning_rates[level + 1] if level + 1 < len(self.levels) else None
            self.descent.restart(self.trainer.optimizers[0], following)
        self.denoiser.weights[level], self.denoiser.biases[level] = weights.float(), bias.float()
        self.fits.append({"sigma": self.levels[level], **about})
        self.drawn, self.next_trial = 0, exact.first_trial(len(self.pool.mean), self.shrink)
        if self.level == len(self.levels):
            self.trainer.should_stop = True

    def _about_gradient(self, level: int, weights: Tensor) -> dict[str, float]:
        gaussian, _ = self.pool.in_pixels(*self.pool.gaussian(self.levels[level]))
        return {
            "draws": float(self.drawn),
            "heldout_error": gradient.heldout_error(self.over_ranks(self.recent)),
            "weight_nmse": float((weights - gaussian).square().sum() / gaussian.square().sum()),
        }

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Evaluate the surrogate on a batch of the probe bank."""
        return evaluate(self.denoiser, batch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the sums of all ranks, and what is known of the levels that are done; every rank comes here."""
        checkpoint["progress"] = {
            "teacher": self.teacher_hash,
            "fits": self.fits,
            "drawn": self.drawn,
            "next_trial": self.next_trial,
        }
        if self.method == "gradient":
            checkpoint["sums"] = {"recent": self.over_ranks(self.recent)}
        elif self.drawn:  # else they are 0
            checkpoint["sums"] = {name: self.over_ranks(value) for name, value in self.sums.named_buffers()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Give the sums to the first rank; the others begin at 0."""
        done = checkpoint["progress"]
        self.fits, self.drawn, self.next_trial = list(done["fits"]), done["drawn"], done["next_trial"]
        for name, value in checkpoint.get("sums", {}).items() if self.global_rank == 0 else ():
            getattr(self if self.method == "gradient" else self.sums, name).copy_(value)


def _hash(teacher: Denoiser) -> str:
    """A hash of the weights of a teacher."""
    digest = hashlib.sha256()
    for name, value in sorted(teacher.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
