"""Checkpoints of this and of other libraries, in one form, `weights.Weights`.

`read` detects the form of a folder and reads it, `load` makes a model of it;
`conversion.convert` writes any form. Training saves its own checkpoints in
`training/checkpoints.py`; tensors in files are in `utils/tensor_files/`.
"""

from typing import Any

__all__ = ['load', 'read']


def __getattr__(name: str) -> Any:
  # All readers are imported with it.
  if name in __all__:
    from dualenc_jax.checkpoints import formats

    return getattr(formats, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
