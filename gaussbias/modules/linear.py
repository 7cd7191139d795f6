"""The linear surrogate of a denoiser: one affine map per noise level, distilled from it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gaussbias.data.images import to_unit
from gaussbias.denoisers import Denoiser, LinearDenoiser, at_levels
from gaussbias.modules.evaluate import evaluate
from gaussbias.modules.summing import SummingModule
from gaussbias.moments import Eigenmoments
from gaussbias.numerics.seeding import Normals
from gaussbias.surrogate import QUARTERS, AffineFit, Pool, Sums, fewest_draws, fit_affine
from gaussbias.system.errors import TrainingError

GROWTH = 2.0
"""Between two trials whether an error is small enough the draws grow at most so much ..."""
LEAST_GROWTH = 1.2
"""... and at least so much."""
FIRST_TRIAL = 0.5
"""The first trial comes after so many draws per dimension."""
LAST = 0.75
"""The held-out error of `gradient` is the loss after this share of the draws: each batch is new when it is seen."""
SURE = 2.0
"""Standard errors by which a predicted error has to be below the one asked for."""
LEARNING_RATES = {60.0: 5e-5, 6.0: 5e-4, 0.25: 5e-3, 0.05: 5e-2, 0.0: 5e-1}
"""Those that the authors' code names, to pick from for each noise level by hand; and the sigma from which each is the
best one on a network of 8 x 8 pixels (benchmarks/surrogate.py)."""


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
        antithetic: Evaluate at `x0 - sigma eps` as well: two draws an image.
        symmetrize: For `exact`: replace W by `(W + W^T) / 2`.
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
        antithetic: bool = False,
        symmetrize: bool = False,
        learning_rates: Sequence[float] | None = None,
        seed: int = 0,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        d = len(train.mean)
        if method not in ("exact", "gradient"):
            raise ValueError(f"Expected `method` to be exact or gradient but got {method}.")
        least = fewest_draws(d, shrink) * (1 + antithetic)
        if method == "exact" and draws < least:
            raise ValueError(
                f"Expected `draws` to be at least {least} for {d} dimensions "
                f"{'with' if shrink else 'without'} shrinkage but got {draws}."
            )
        self._teacher = [teacher.eval().requires_grad_(False)]  # in a list: it is no part of this module's state
        self.teacher_hash = _hash(teacher)
        self.pool = Pool(train if pool is None else pool, train)
        self.levels, self.draws, self.batch_size, self.method = list(sigmas), draws, batch_size, method
        self.shrink, self.target_error, self.symmetrize = shrink, target_error, symmetrize
        self.antithetic, self.seed = antithetic, seed
        rates = [learning_rate(sigma) for sigma in sigmas] if learning_rates is None else list(learning_rates)
        if len(rates) != len(self.levels):
            raise ValueError(f"Expected {len(self.levels)} `learning_rates`, one per level, but got {len(rates)}.")
        self.learning_rates = rates
        self.denoiser = LinearDenoiser(
            torch.tensor(self.levels, dtype=torch.float64),
            torch.full((len(self.levels), d, d), torch.nan),
            torch.full((len(self.levels), d), torch.nan),
            train.shape,
        )
        self.drawn, self.next_trial = 0, self._first_trial()  # of the present level
        self.fits: list[dict[str, float]] = []
        if method == "exact":
            self.sums = Sums(d)
        else:
            self.weight = nn.Parameter(torch.zeros(d, d))
            self.bias = nn.Parameter(torch.zeros(d))
            recent = torch.zeros(2, dtype=torch.float64)  # sum of losses, and of draws
            self.register_buffer("recent", recent, persistent=False)
        self.save_hyperparameters({"config": config or {}}, logger=False)

    recent: Tensor

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
        return math.ceil(self.draws / self.draws_per_step)

    @property
    def draws_per_level(self) -> int:
        """Draws for each level, in whole batches, at most."""
        return self.steps_per_level * self.draws_per_step

    @property
    def draws_per_step(self) -> int:
        """Draws in one step, over all devices."""
        return self.batch_size * (1 + self.antithetic)

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
            self._add(x, output)
        else:
            result = {"loss": self._descend(x, output)}
        self.count_step()
        self.drawn += self.draws_per_step
        if self.drawn >= self.draws:
            self._finish(self._fit() if self.method == "exact" else None)
        elif self.target_error is not None and self.drawn >= self.next_trial:
            fit = self._fit()
            if self._close_enough(fit):
                self._finish(fit)
        return result

    def _draw(self, batch: dict[str, Any], sigma: float) -> tuple[Tensor, Tensor]:
        """Noisy images, and the teacher's values at them, (b, C, H, W); for antithetic draws both signs in turn."""
        x0 = to_unit(batch["images"])
        rows = slice(self.global_rank * len(x0), (self.global_rank + 1) * len(x0))
        random = Normals(self.seed, "linear", int(batch["step"]), device=self.device)
        eps = random(self.batch_size, *x0.shape[1:], rows=rows)
        x = x0 + sigma * eps
        if self.antithetic:
            x = torch.stack([x, x0 - sigma * eps], 1).flatten(0, 1)
        with torch.no_grad():
            return x, at_levels(self.teacher, x[None], torch.tensor([sigma], dtype=torch.float64))[0]

    def _add(self, x: Tensor, output: Tensor) -> None:
        """Add draws to the sums; both signs to one quarter, which is a function of the global position in the level."""
        c, y = self.pool.along(x), self.pool.along(output)
        signs = 1 + self.antithetic
        first = (self.drawn + self.global_rank * len(c)) // signs
        quarters = (torch.arange(len(c)) // signs + first) % QUARTERS  # on the host, which knows how many they are
        for quarter in range(QUARTERS):
            mine = (quarters == quarter).nonzero()[:, 0].to(c.device, non_blocking=True)
            self.sums.update(quarter, c[mine], y[mine])

    def _descend(self, x: Tensor, output: Tensor) -> Tensor:
        """The mean squared error and its gradient, over all ranks."""
        d = len(self.bias)
        loss = (x.flatten(1) / math.sqrt(d) @ self.weight.T + self.bias - output.flatten(1)).square().mean()
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        for parameter in (self.weight, self.bias):
            assert parameter.grad is not None
            parameter.grad.copy_(self.trainer.strategy.reduce(parameter.grad, reduce_op="mean"))
        if self.drawn + self.draws_per_step > LAST * self.draws:
            self.recent[0] += loss.detach().double() * len(x)
            self.recent[1] += len(x)
        return loss.detach()

    def _first_trial(self) -> int:
        d = len(self.pool.mean)
        return max(math.ceil(FIRST_TRIAL * d), fewest_draws(d, self.shrink) * (1 + self.antithetic))

    def _close_enough(self, fit: AffineFit) -> bool:
        """Whether a fit has the error asked for; if not, when to look again."""
        assert self.target_error is not None
        # ranks that differ in round-off still have to decide alike
        reached = self.trainer.strategy.broadcast(fit.weight_error + SURE * fit.weight_error_se)
        if reached <= self.target_error:
            return True
        growth = min(GROWTH, max(LEAST_GROWTH, reached / self.target_error))
        self.next_trial = math.ceil(growth * self.drawn)
        return False

    def _fit(self) -> AffineFit:
        """The fit to the draws of all ranks; every rank comes here."""
        sigma, sums = self.levels[self.level], self.sums
        if self.trainer.world_size > 1:
            sums = Sums(len(self.pool.mean)).to(self.device)
            for name, value in self.sums.named_buffers():
                getattr(sums, name).copy_(self.over_ranks(value))
        if not bool(torch.isfinite(sums.squares.sum())):
            raise TrainingError(
                f"a value of the teacher at sigma {sigma:g} is not finite; nothing of this level was kept"
            )
        return fit_affine(sums, self.pool, sigma, self.shrink, self.symmetrize, self.antithetic)

    def _finish(self, fit: AffineFit | None) -> None:
        """Keep the map of the level, and begin the next one; after the last one training ends."""
        level = self.level
        if fit is not None:
            weights, bias = self.pool.in_pixels(fit.weights, fit.bias)
            about = {name: float(value) for name, value in vars(fit).items() if name not in ("weights", "bias")}
            self.sums.reset()
        else:
            weights, bias = self.weight.detach().double() / math.sqrt(len(self.bias)), self.bias.detach().double()
            about = self._about_gradient(level, weights)
            self._restart(level)
        self.denoiser.weights[level], self.denoiser.biases[level] = weights.float(), bias.float()
        self.fits.append({"sigma": self.levels[level], **about})
        self.drawn, self.next_trial = 0, self._first_trial()
        if self.level == len(self.levels):
            self.trainer.should_stop = True

    def _about_gradient(self, level: int, weights: Tensor) -> dict[str, float]:
        gaussian, _ = self.pool.in_pixels(*self.pool.gaussian(self.levels[level]))
        total, count = self.over_ranks(self.recent).tolist()
        return {
            "draws": float(self.drawn),
            "heldout_error": total / count if count else math.nan,
            "weight_nmse": float((weights - gaussian).square().sum() / gaussian.square().sum()),
        }

    def _restart(self, level: int) -> None:
        """From 0, with the next level's learning rate."""
        for parameter in (self.weight, self.bias):
            parameter.data.zero_()
        self.recent.zero_()
        optimizer: Any = self.trainer.optimizers[0]
        optimizer.state.clear()
        if level + 1 < len(self.levels):
            optimizer.param_groups[0]["lr"] = self.learning_rates[level + 1]

    def validation_step(self, batch: dict[str, Any], batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
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
    """Of its weights."""
    digest = hashlib.sha256()
    for name, value in sorted(teacher.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def learning_rate(sigma: float) -> float:
    """Of `LEARNING_RATES` the one for a noise level.

    >>> learning_rate(80.0), learning_rate(0.002)
    (5e-05, 0.5)
    """
    return next(rate for least, rate in LEARNING_RATES.items() if sigma >= least)
