"""Train diffusion denoisers and watch them move between the Gaussian and the memoriser.

Nothing heavy is imported here: `load_denoiser` is looked up when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaussbias.checkpoints import load_denoiser

__version__ = "0.1.0"
__all__ = ["__version__", "load_denoiser"]


def __getattr__(name: str) -> Any:
    """Import `load_denoiser` (and with it torch) on first use."""
    if name == "load_denoiser":
        from gaussbias.checkpoints import load_denoiser

        return load_denoiser
    raise AttributeError(f"module 'gaussbias' has no attribute {name!r}")
