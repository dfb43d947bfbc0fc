"""Judgements and the texts of their ids, joined to examples."""

from collections.abc import Iterator, Sequence
import dataclasses
import logging
import math
from typing import Any

from dualenc_jax.data.columns import TEACHER_SCORES
from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers.hard_negatives import of_query
from dualenc_jax.data.readers.qrels import Judgement, Qrels
from dualenc_jax.data.readers.rows import collected, Faults, LENIENT
from dualenc_jax.data.readers.texts_by_id import TextTable
from dualenc_jax.utils.errors import UserError

_LOG = logging.getLogger(__name__)


class Documents:
  """Stands for the texts of judged documents: '' each."""

  def __contains__(self, name: str) -> bool:
    return True

  def get(self, name: str) -> str:
    del name
    return ''


@dataclasses.dataclass(frozen=True, eq=False)
class Join:
  """The judgements of a split with the texts that exist, by id.

  Attributes:
    what: name of the data set, for messages.
    judged: those of the judgements to make examples of.
    passages: those of hard negatives, too.
    negatives: hard negatives by query id, for `hard_negatives.of_query`.
    strict: whether a judgement or hard negative that names what does not
      exist, and a blank passage to train on, is an error; else it is left out
      and counted. Within `rows.collecting` it is collected.
    scored: whether examples have a teacher's scores.
  """

  what: str
  qrels: Qrels
  judged: Sequence[Judgement]
  queries: TextTable
  passages: TextTable | Documents
  negatives: TextTable
  strict: bool
  scored: bool = False

  def check_ids(self) -> None:
    """Raises UserError, or logs, where some name what does not exist."""
    found = {
        'judgements': [
            f'{name} at {self.qrels.location(judgement)}'
            for judgement in self.judged
            if (name := self._unknown(judgement))
        ],
        'hard negatives': [
            f'passage {negative.id!r} of query {query_id!r}'
            for query_id in dict.fromkeys(j.query_id for j in self.judged)
            for negative in of_query(self.negatives, query_id).negatives
            if negative.id and negative.id not in self.passages
        ],
    }
    if (bad := collected()) is not None:
      for kind, places in found.items():
        for place in places:
          bad.add(f'{kind} name what does not exist', place)
      return
    message = f'{self.what}: ' + '; '.join(
        f'{len(places):,} {kind} name queries or passages that do not exist,'
        f' the first {places[0]}'
        for kind, places in found.items()
        if places
    )
    if self.strict:
      raise UserError(
          f'{message}. Expected all ids in the queries and the corpus.'
          f' {LENIENT} leaves out the others.'
      )
    _LOG.warning('%s. They are left out.', message)

  def examples(self, training: bool) -> Iterator[dict[str, Any]]:
    """Yields a pair for each judgement whose query and passage exist.

    A hard negative with the text of the pair's passage is left out; the log
    says how many. A blank passage is an error in training, if `strict`.
    """
    empty = Faults(self.strict, 'judgements')
    repeats = 0
    for judgement in self.judged:
      query = self.queries.get(judgement.query_id)
      passage = self.passages.get(judgement.passage_id)
      location = self.qrels.location(judgement)
      if query is None or passage is None:
        continue
      if training and not passage:
        name = repr(judgement.passage_id)
        error = f'passage {name} is blank, and cannot be trained on'
        empty.add('the passage is blank', location, error)
        continue
      mined = of_query(self.negatives, judgement.query_id)
      negatives, scores = [], []
      for negative in mined.negatives:
        text = self.passages.get(negative.id) if negative.id else negative.text
        if text == passage:
          repeats += 1
        elif text:
          negatives.append(text)
          scores.append(negative.score)
      extra = {}
      if self.scored:
        own = mined.scores.get(judgement.passage_id, math.nan)
        extra[TEACHER_SCORES.name] = [own, *scores]
      yield example(
          query=query,
          passage=passage,
          negatives=negatives,
          query_id=judgement.query_id,
          passage_id=judgement.passage_id,
          location=location,
          relevance=judgement.grade,
          **extra,
      )
    empty.warn(self.what)
    if repeats:
      _LOG.warning(
          '%s: left out %d hard negatives with the text of their positive.',
          self.what, repeats,
      )

  def _unknown(self, judgement: Judgement) -> str:
    """The first of a judgement's ids that does not exist, or ''."""
    if judgement.query_id not in self.queries:
      return f'query {judgement.query_id!r}'
    if judgement.passage_id not in self.passages:
      return f'passage {judgement.passage_id!r}'
    return ''
