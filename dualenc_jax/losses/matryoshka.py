"""Matryoshka (Kusupati et al. 2022): embeddings that may be cut short."""

from collections.abc import Sequence
import dataclasses
from typing import Any

from dualenc_jax.losses import loss as loss_lib
from dualenc_jax.losses.loss import (
  Embeddings,
  Loss,
  LossWrapper,
  Params,
  Result,
  Similarity,
)
from dualenc_jax.models.dual_encoder import l2_normalize
from dualenc_jax.utils.errors import expect, UserError

# D, D / 2, D / 4 and D / 8.
_HALVINGS = 4


@dataclasses.dataclass(frozen=True)
class Matryoshka(LossWrapper):
  """A loss over the first components of embeddings, of several dims at once.

    L = sum_d loss(first d components, of length one again)

  Texts are encoded once; each dim's loss has the same parameters. The whole
  embeddings must be among the dims: without them the last components learn
  nothing. Metrics are those of the whole embeddings, and <dim>/loss of each
  dim.

  Attributes:
    dims: different whole numbers, D among them and none above it; None for D
      and its halves down to an eighth, D, D // 2, D // 4, D // 8.
  """

  loss: Loss
  dims: Sequence[int] | None = None

  def __post_init__(self):
    loss_lib.check('Matryoshka.loss', self.loss)
    dims = self.dims
    expect(
        dims is None or dims and min(dims) > 0 and len({*dims}) == len(dims),
        'Matryoshka.dims', dims,
        'different whole numbers, such as (768, 384, 192, 96), or None',
    )

  def chance(self, batch_size: int, num_negatives: int) -> float | None:
    chance = self.loss.chance(batch_size, num_negatives)
    count = _HALVINGS if self.dims is None else len(self.dims)
    return None if chance is None else chance * count

  def trained_dims(self, dim: int) -> tuple[int, ...]:
    return tuple(sorted(self._dims(dim), reverse=True))

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    whole = batch.query.shape[-1]
    value: Any = 0.0
    metrics, losses = {}, {}
    for dim in self._dims(whole):
      part, part_metrics = self.loss(
          params, first_components(batch, dim), similarity
      )
      value += part
      losses[f'{dim}/loss'] = part
      if dim == whole:
        metrics = part_metrics
    return value, {**metrics, **losses, 'loss': value}

  def _dims(self, whole: int) -> Sequence[int]:
    dims = self.dims
    if dims is None:
      dims = [whole // 2**i for i in range(_HALVINGS)]
    if whole not in dims or not 0 < min(dims) <= max(dims) <= whole:
      raise UserError(
          f"Matryoshka.dims are {', '.join(map(str, dims))}, and embeddings"
          f' have {whole} components. Expected {whole} itself and smaller ones,'
          f' such as MATRYOSHKA_DIMS = ({whole}, {whole // 2}).'
      )
    return dims


def first_components(batch: Embeddings, dim: int) -> Embeddings:
  """Returns the first `dim` components, scaled to length one."""
  if dim == batch.query.shape[-1]:
    return batch
  # A missing hard negative is zero, and stays so.
  return batch.map_vectors(lambda x: l2_normalize(x[..., :dim]))
