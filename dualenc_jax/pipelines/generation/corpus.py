"""The corpus that queries are generated for, and how many each passage gets."""

from collections.abc import Sequence
import logging
import math
from typing import NamedTuple

import numpy as np

from dualenc_jax.data.readers import Texts
from dualenc_jax.utils.errors import UserError

# GPL's rule: so many queries in all, and at least three of a passage.
BUDGET, LEAST = 250_000, 3
_LOG = logging.getLogger(__name__)


class Passage(NamedTuple):
  """A passage of the corpus.

  Attributes:
    id: on one line.
    title: '' without one.
    text: as models read it, the title in front.
  """

  id: str
  title: str
  text: str


def read(path: str) -> tuple[list[Passage], str]:
  """The passages of a corpus that have a text, and a hash of its file."""
  task = Texts(path)
  passages, blank = [], 0
  for row in task.examples('corpus'):
    name, text = row['passage_id'], row['passage']
    if '\t' in name or name.splitlines() != [name]:
      raise UserError(
          f"{row['location']} has the id {name!r}. Expected ids without tabs"
          ' and line ends, which qrels cannot hold.'
      )
    if text.strip():
      passages.append(Passage(name, row['name'], text))
    else:
      blank += 1
  if blank:
    _LOG.info('%s passages are empty, and have no queries.', f'{blank:,}')
  if not passages:
    raise UserError(f'{path} has no passage with text.')
  return passages, task.fingerprint('corpus')


def budget(
    passages: Sequence[Passage], count: int | None, seed: int
) -> tuple[Sequence[Passage], int]:
  """The passages that get queries, and the number of queries of each.

  Args:
    passages: all of them.
    count: queries of a passage; None for GPL's rule, which draws passages at
      random where the corpus has more than its budget serves.
    seed: of the draw.
  """
  if count is not None:
    return passages, count
  most = math.ceil(BUDGET / LEAST)
  if len(passages) > most:
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(passages))[:most])
    passages = [passages[i] for i in rows.tolist()]
  return passages, max(math.ceil(BUDGET / len(passages)), LEAST)
