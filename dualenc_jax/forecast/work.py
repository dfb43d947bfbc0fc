"""Operations of the matrix products that real texts need."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.data.text.text_rows import TextRows
from dualenc_jax.models import DualEncoder
from dualenc_jax.models.cost import flops

# The backward pass has two products for each of the forward pass.
_PASSES = 3
_SIDES = {'queries': 'query', 'passages': 'passage'}


class Work(NamedTuple):
  """The cost of texts.

  Attributes:
    tokens: tokens of the texts.
    slots: tokens of their rows, padding included.
    flops: operations for the tokens.
    slot_flops: operations as if all slots were tokens, each row a text.
  """

  tokens: int
  slots: int
  flops: float
  slot_flops: float


def of_texts(
    model: DualEncoder, side: str, lengths: np.ndarray, rows: np.ndarray
) -> Work:
  """The cost of encoding texts, without norms, softmax and lookups.

  Args:
    model: the dual encoder.
    side: 'query' or 'passage'.
    lengths: tokens of the texts, int [n].
    rows: tokens of the rows that hold them, int [R], padding included.
  """

  def total(lengths: np.ndarray) -> float:
    each, count = np.unique(lengths, return_counts=True)
    # Python's numbers, as int32 is too small for a text of a large model.
    found = zip(each.tolist(), count.tolist())
    return sum(flops(model, side, n) * c for n, c in found if n)

  return Work(
      int(np.sum(lengths)), int(np.sum(rows)), total(lengths), total(rows)
  )


def work(model: DualEncoder, batch: Mapping[str, Any]) -> Work:
  """The cost of a step for a batch of pairs, forward and backward.

  Dropout, loss, optimizer and recomputation do not count, either.
  """
  found = Work(0, 0, 0.0, 0.0)
  for name, side in _SIDES.items():
    texts = batch.get(name)
    if not isinstance(texts, TextRows):
      continue
    for group in texts.groups:
      rows = np.full(group.tokens[..., 0].size, group.tokens.shape[-1])
      own = of_texts(model, side, group.lengths, rows)
      found = Work(
          found.tokens + own.tokens,
          found.slots + own.slots,
          found.flops + _PASSES * own.flops,
          found.slot_flops + _PASSES * own.slot_flops,
      )
  return found
