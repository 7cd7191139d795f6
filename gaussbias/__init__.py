"""Train diffusion denoisers and watch them move between the Gaussian and the memoriser.

Nothing heavy is imported here: `load_denoiser`, `wrap` and `Ruler` are looked up when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaussbias.checkpoints import load_denoiser
    from gaussbias.denoisers import wrap
    from gaussbias.probes import Ruler

__version__ = "0.1.0"
__all__ = ["Ruler", "__version__", "load_denoiser", "wrap"]


def __getattr__(name: str) -> Any:
    """Import a name, and with it torch, on first use."""
    if name == "load_denoiser":
        from gaussbias.checkpoints import load_denoiser

        return load_denoiser
    if name == "wrap":
        from gaussbias.denoisers import wrap

        return wrap
    if name == "Ruler":
        from gaussbias.probes import Ruler

        return Ruler
    raise AttributeError(f"module 'gaussbias' has no attribute {name!r}")
