"""Checks for NaN and infinity."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dualenc_jax.utils.errors import UserError

# Rows that are looked at together.
_ROWS = 4096
_NAMED = 5


def check_rows(
    what: str, rows: Any, name: Callable[[int], str] = 'row {}'.format,
    advice: str = 'Look at the checkpoint and at these texts.',
) -> None:
  """Checks the vectors [n, D] of NumPy, JAX or an index, a part at a time.

  `what` names them: 'passage embeddings', `name` a row by its id.

  Raises:
    UserError: rows hold NaN, infinity, or numbers beyond 1e18, whose squares
      have no sum in float32; names the first few.
  """
  for start in range(0, len(rows), _ROWS):
    block = np.asarray(rows[start : start + _ROWS], np.float32)
    with np.errstate(over='ignore', invalid='ignore'):
      squares = np.einsum('nd,nd->n', block, block)
    bad = (start + np.flatnonzero(~np.isfinite(squares))).tolist()
    if bad:
      names = ', '.join(name(row) for row in bad[:_NAMED])
      more = f' and {len(bad) - _NAMED:,} more nearby' if bad[_NAMED:] else ''
      raise UserError(
          f'{what} of {names}{more} hold NaN, infinity or numbers beyond 1e18.'
          f' {advice}'
      )


def check_tensor(
    name: str, tensor: Any, advice: str = 'Look at the checkpoint.'
) -> None:
  """Raises UserError, with its name, if a tensor holds NaN or infinity.

  One of JAX stays on its devices.
  """
  # Neither takes memory, and NaN is below and above nothing.
  if not (tensor.max(initial=0) < np.inf and tensor.min(initial=0) > -np.inf):
    raise UserError(f'{name} holds NaN or infinity. {advice}')
