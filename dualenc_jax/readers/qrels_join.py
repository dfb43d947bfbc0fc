"""Judgements, and the texts that they name, joined to examples."""

from collections.abc import Iterator, Sequence
import dataclasses
import logging
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.errors import UserError
from dualenc_jax.readers import bad_rows, hard_negatives
from dualenc_jax.readers.qrels import Judgement, Qrels
from dualenc_jax.readers.rows import LENIENT
from dualenc_jax.readers.text_table import TextTable


class Documents:
  """Stands for the texts of what is judged, where documents are: '' each."""

  def __contains__(self, name: str) -> bool:
    return True

  def get(self, name: str) -> str:
    del name
    return ''


@dataclasses.dataclass(frozen=True, eq=False)
class Join:
  """The judgements of a split with their texts.

  Attributes:
    what: the data set is called, for messages.
    qrels: where the judgements are from.
    judged: those of them to make examples of.
    queries: texts by id; those that are there.
    passages: the same, of hard negatives, too.
    negatives: hard negatives by query id, for `hard_negatives.of_query`.
  """

  what: str
  qrels: Qrels
  judged: Sequence[Judgement]
  queries: TextTable
  passages: TextTable | Documents
  negatives: TextTable

  def check_ids(self, strict: bool) -> None:
    """Counts judgements and hard negatives that name what is not there.

    Args:
      strict: whether they are an error; else they are logged. Within
        `bad_rows.collecting` they are collected.

    Raises:
      UserError: there are some; names the first.
    """
    judgements = [
        f'{name} at {self.qrels.location(judgement)}'
        for judgement in self.judged
        if (name := self._unknown(judgement))
    ]
    negatives = [
        f'passage {negative.id!r} of query {query_id!r}'
        for query_id in dict.fromkeys(j.query_id for j in self.judged)
        for negative in hard_negatives.of_query(self.negatives, query_id)
        if negative.id and negative.id not in self.passages
    ]
    found = {'judgements': judgements, 'hard negatives': negatives}
    collected = bad_rows.collected()
    if collected is not None:
      for kind, places in found.items():
        for place in places:
          collected.add(f'{kind} name what is not there', place)
      return
    message = f'{self.what}: ' + '; '.join(
        f'{len(places):,} {kind} name queries or passages that are not there,'
        f' the first {places[0]}'
        for kind, places in found.items()
        if places
    )
    if strict:
      raise UserError(
          f'{message}. Expected all ids in the queries and the corpus. Leave'
          f' out what names others with {LENIENT}.'
      )
    logging.getLogger(__name__).warning('%s. These are left out.', message)

  def examples(self, training: bool, strict: bool) -> Iterator[dict[str, Any]]:
    """Yields a pair for each judgement whose query and passage exist.

    A hard negative with the text of the pair's passage is left out; the log
    says how many.

    Args:
      training: whether the pairs are to train on.
      strict: whether to train on a pair with a blank passage is an error; else
        it is left out and counted. Within `bad_rows.collecting` it is
        collected.

    Raises:
      UserError: such a pair.
    """
    collected = bad_rows.collected()
    empty = repeats = 0
    for judgement in self.judged:
      query = self.queries.get(judgement.query_id)
      passage = self.passages.get(judgement.passage_id)
      if query is None or passage is None:
        continue
      if training and not passage:
        empty += 1
        place = self.qrels.location(judgement)
        if collected is not None:
          collected.add('the passage is blank', place)
        elif strict:
          raise UserError(
              f'{place}: passage {judgement.passage_id!r} is blank, and cannot'
              ' be trained on. Take the judgement out, or leave such ones out'
              f' with {LENIENT}.'
          )
        continue
      negatives = [
          self.passages.get(negative.id) if negative.id else negative.text
          for negative in hard_negatives.of_query(
              self.negatives, judgement.query_id
          )
      ]
      repeats += negatives.count(passage)
      yield example(
          query=query,
          passage=passage,
          negatives=[text for text in negatives if text and text != passage],
          query_id=judgement.query_id,
          passage_id=judgement.passage_id,
          location=self.qrels.location(judgement),
          relevance=judgement.grade,
      )
    log = logging.getLogger(__name__)
    if empty:
      log.warning('%s: left out %d pairs of empty passages.', self.what, empty)
    if repeats:
      log.warning(
          '%s: left out %d hard negatives with the text of their positive.',
          self.what,
          repeats,
      )

  def _unknown(self, judgement: Judgement) -> str:
    """The first of a judgement's ids that is not there, or ''."""
    if judgement.query_id not in self.queries:
      return f'query {judgement.query_id!r}'
    if judgement.passage_id not in self.passages:
      return f'passage {judgement.passage_id!r}'
    return ''
