"""Queries that a model is measured by and has learnt from, or nearly."""

from collections.abc import Mapping, Sequence
import re

import numpy as np

from dualenc_jax.readers.near_duplicates import near_pairs

# Of a result's facts, and what it holds.
FACT = 'seen_queries'
SHAPE = {
    f'{what}{how}': int
    for what in ('queries', 'learnt')
    for how in ('', '_same', '_near')
}
_WORD = re.compile(r'\w+')


def count(queries: Sequence[str], learnt: Sequence[str]) -> dict[str, int]:
  """How many texts both have.

  Args:
    queries: that a model is measured by.
    learnt: those that it has learnt from, generated ones say.

  Returns:
    'queries' and 'learnt', how many there are; 'queries_same' and
    'learnt_same', those with all the words, in any case, of one of the others;
    'queries_near' and 'learnt_near', as of `near_pairs`, these included.
  """
  queries, learnt = ([_key(text) for text in own] for own in (queries, learnt))
  places = near_pairs(queries, learnt)
  found = {}
  for what, own, others, near in (
      ('queries', queries, {*learnt}, places[0]),
      ('learnt', learnt, {*queries}, places[1]),
  ):
    is_same = np.array([text in others for text in own], bool)
    is_near = is_same.copy()
    is_near[near] = True
    found |= {
        what: len(own),
        f'{what}_same': int(is_same.sum()),
        f'{what}_near': int(is_near.sum()),
    }
  return found


def describe(found: Mapping[str, int]) -> str:
  """A sentence on the counts of `count`."""

  def told(what: str, how: str) -> str:
    part, whole = found[f'{what}_{how}'], found[what]
    return f'{part:,} ({part / max(whole, 1):.2%})'

  return (
      f'Of the {found["queries"]:,} queries {told("queries", "same")} are word'
      f' for word among the {found["learnt"]:,} that it has learnt from, and'
      f' {told("queries", "near")} nearly; {told("learnt", "same")} and'
      f' {told("learnt", "near")} of the latter are such.'
  )


def _key(text: str) -> str:
  return ' '.join(_WORD.findall(text.lower())) or text
