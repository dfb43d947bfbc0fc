"""Operations of the matrix products of a step that is fed with real texts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.models import DualEncoder
from dualenc_jax.models.cost import flops
from dualenc_jax.text.text_rows import TextRows

# The backward pass has two products for each of the forward pass.
_PASSES = 3
_SIDES = {'queries': 'query', 'passages': 'passage'}


class Work(NamedTuple):
  """Of a batch.

  Attributes:
    tokens: of its texts.
    slots: of its rows, padding counted.
    flops: operations of a step for the tokens, forward and backward.
    slot_flops: as if all slots were tokens, each row a text.
  """

  tokens: int
  slots: int
  flops: float
  slot_flops: float


def work(model: DualEncoder, batch: Mapping[str, Any]) -> Work:
  """What a batch of pairs costs in the towers of a dual encoder.

  Norms, softmax, lookups, dropout, the loss, the optimizer and what is computed
  twice to save memory do not count.
  """
  found = Work(0, 0, 0.0, 0.0)
  for name, side in _SIDES.items():
    texts = batch.get(name)
    if not isinstance(texts, TextRows):
      continue
    for group in texts.groups:
      lengths, count = np.unique(group.lengths, return_counts=True)
      rows, length = group.tokens[..., 0].size, group.tokens.shape[-1]
      # Python's numbers, as int32 is too small for a text of a large model.
      pairs = zip(lengths.tolist(), count.tolist())
      own = sum(flops(model, side, n) * c for n, c in pairs if n)
      found = Work(
          found.tokens + int(np.sum(lengths * count)),
          found.slots + rows * length,
          found.flops + _PASSES * own,
          found.slot_flops + _PASSES * rows * flops(model, side, length),
      )
  return found
