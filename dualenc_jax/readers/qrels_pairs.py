"""Examples of judged queries: what qrels name is gathered from a source."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.readers import qrels_counts
from dualenc_jax.readers.hard_negatives import HardNegatives, of_query
from dualenc_jax.readers.qrels import Judgement
from dualenc_jax.readers.qrels_ids import IdSet, Row, unique
from dualenc_jax.readers.qrels_join import Documents, Join
from dualenc_jax.readers.qrels_source import CORPUS, Source
from dualenc_jax.readers.text_table import TextTable

JUDGED_IDS = ('passages', 'documents')


@dataclasses.dataclass(frozen=True)
class JudgedPairs:
  """Gathers the texts that the judgements of a split name, and joins them.

  The judgements come first, so that of the corpus only the texts that they, or
  hard negatives, name are kept, on disk; of another passage 8 bytes are.

  Attributes:
    source: queries, passages and judgements.
    what: the data set is called, for messages.
    published: counts by name of a split, as far as they are known.
    tolerance: share by which counts may differ from the published ones.
    advice: what to do about other counts, for the error.
    hard_negatives: of the queries of train, None if there are none.
    strict: whether an id that occurs twice, or a judgement or hard negative
      whose query or passage does not exist, is an error; else these are left
      out and the log says how many.
    judged_ids: of what the judgements are, except those of train: 'passages',
      or 'documents', whose ids are kept without a text and not looked for in
      the corpus.
  """

  source: Source
  what: str
  published: Callable[[str], Mapping[str, int]]
  tolerance: float = 0.0
  advice: str = ''
  hard_negatives: HardNegatives | None = None
  strict: bool = True
  judged_ids: str = 'passages'

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields pairs in the order of the judgements, or the corpus in its own.

    Of train only relevant passages, each with the hard negatives of its query.

    Raises:
      UserError: bad rows, ids that are unknown or occur twice, or other counts
        than the published ones.
    """
    if split == CORPUS:
      for row in self._passages(split):
        yield example(
            passage=row.text,
            passage_id=row.id,
            name=row.name,
            location=row.location,
        )
      return
    qrels = self.source.qrels(split)
    self._compare(
        split,
        queries=len({judgement.query_id for judgement in qrels.judgements}),
        judgements=qrels.rows,
    )
    judged = tuple(
        judgement
        for judgement in qrels.judgements
        if split != 'train' or judgement.grade > 0
    )
    with contextlib.ExitStack() as tables:
      negatives = tables.enter_context(self._negatives(split, judged))
      query_ids = IdSet(judgement.query_id for judgement in judged)
      queries = tables.enter_context(
          _table(self._queries(split), query_ids)
      )
      if self.judged_ids == 'documents' and split != 'train':
        passages, all_there = Documents(), True
      else:
        passage_ids = IdSet(_passage_ids(judged, negatives))
        passages = tables.enter_context(
            _table(self._passages(split), passage_ids)
        )
        all_there = len(passages) == len(passage_ids)
      join = Join(self.what, qrels, judged, queries, passages, negatives)
      if len(queries) < len(query_ids) or not all_there:
        join.check_ids(self.strict)
      yield from join.examples(split == 'train', self.strict)

  def _passages(self, split: str) -> Iterator[Row]:
    count = 0
    for row in unique(self.source.passages, self.strict):
      count += 1
      yield row
    self._compare(split, passages=count)

  def _queries(self, split: str) -> Iterator[Row]:
    return unique(lambda: self.source.queries(split), self.strict)

  def _negatives(
      self, split: str, judged: Sequence[Judgement]
  ) -> TextTable:
    if split != 'train' or self.hard_negatives is None:
      return TextTable(())
    positives = {}
    for judgement in judged:
      positives.setdefault(judgement.query_id, []).append(judgement.passage_id)
    return TextTable(
        (query_id, json.dumps(found))
        for query_id, found in self.hard_negatives.read(positives)
    )

  def _compare(self, split: str, **found: int) -> None:
    published = self.source.comparable(split, self.published(split))
    qrels_counts.compare(
        f'{self.what}, split {split!r}',
        found,
        published,
        self.tolerance,
        self.advice,
    )


def _passage_ids(
    judged: Iterable[Judgement], negatives: TextTable
) -> Iterator[str]:
  for judgement in judged:
    yield judgement.passage_id
  if not len(negatives):
    return
  for query_id in dict.fromkeys(judgement.query_id for judgement in judged):
    for negative in of_query(negatives, query_id):
      if negative.id:
        yield negative.id


def _table(rows: Iterable[Row], needed: IdSet) -> TextTable:
  return TextTable((row.id, row.text) for row in rows if row.id in needed)
