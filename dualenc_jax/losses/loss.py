"""What a loss is, and the two functions through which all are used."""

from collections.abc import Mapping
import functools
from typing import Any, Protocol

import jax
from jax.sharding import AxisType, PartitionSpec

from dualenc_jax.errors import UserError
from dualenc_jax.losses import metrics as metrics_lib
from dualenc_jax.losses.blocks import Block
from dualenc_jax.losses.embeddings import Embeddings
from dualenc_jax.losses.similarity import Similarity

Params = Mapping[str, Any]
# The loss, float32 [], and metrics, each float32 [].
Result = tuple[jax.Array, dict[str, jax.Array]]


class Loss(Protocol):
  """What any loss has; no base class is needed.

  One that also has `query_blocks()`, as `InBatchSoftmax` has, is counted at the
  start of a run: how many negatives a query has.
  """

  def init(self) -> Params:
    """The parameters of the loss by name; {} of most."""

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    """Computes the loss of a global batch.

    Args:
      params: what `init` returned, as trained so far.
      batch: the embeddings of B pairs, float32.
      similarity: how to compare them; its temperature is a number or
        float32 [].

    Returns:
      The loss, float32 [], and metrics, each float32 [], `loss` among them.
    """


def check(name: str, loss: Any) -> None:
  """Raises UserError, with the name of the setting, for what is no loss."""
  if isinstance(loss, type):
    raise UserError(
        f'{name} is the class {loss.__name__}; expected an object of it. In'
        ' gin, write the reference with ().'
    )
  if not callable(loss) or not hasattr(loss, 'init'):
    raise UserError(
        f'{name} is {loss!r}; expected a loss. In gin, write'
        ' LOSS = @losses.SamToNe().'
    )


def init(loss: Loss, similarity: Similarity) -> dict[str, Any]:
  """The parameters of a loss and of a learnt temperature, by name.

  Raises:
    UserError: both have a parameter of the same name.
  """
  shared, own = similarity.init(), loss.init()
  if clash := shared.keys() & own.keys():
    raise UserError(
        f'{type(loss).__name__} and Similarity both learn {", ".join(clash)}.'
        ' Give one of them a number for its temperature.'
    )
  return {**shared, **own}


def evaluate(
    loss: Loss, similarity: Similarity, params: Params, batch: Embeddings
) -> Result:
  """Computes a loss of a global batch, and what is logged of any batch.

  Args:
    loss: any loss.
    similarity: what it is given, with the temperature as trained so far.
    params: what `init` returned, as trained so far.
    batch: the embeddings of B pairs.

  Returns:
    The loss, float32 [], and metrics, each float32 []: those of the loss, the
    temperature, and mean similarities.

  Raises:
    UserError: arrays of the batch do not belong together, an anchor has one
      candidate only, duplicates are to be masked and the batch has no
      fingerprints, or the batch does not divide among the devices.
  """
  # On a mesh whose axes are in the types of arrays, XLA places these, too.
  if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
    automatic = jax.sharding.auto_axes(
        functools.partial(evaluate, loss, similarity),
        out_sharding=PartitionSpec(),
    )
    return automatic(params, batch)
  batch.check()
  # Once and for all, or the parts of a bfloat16 gradient would be rounded one
  # by one.
  batch, similarity = batch.in_float32(), similarity.at(params)
  value, metrics = loss(params, batch, similarity)
  return value, {**metrics_lib.of_batch(batch, similarity), **metrics}


def query_blocks(loss: Loss) -> tuple[Block, ...]:
  """Negatives of the queries; () of a loss that does not say."""
  return getattr(loss, 'query_blocks', tuple)()
