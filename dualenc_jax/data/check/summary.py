"""The counts of an inspection: plain data, ready for JSON."""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from dualenc_jax.data.readers.rows import Occurrences

PERCENTILES = (5, 25, 50, 75, 95, 99)


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Token lengths before truncation, EOS included.

  Attributes:
    limit: longest that texts are cut to.
    truncated: share of texts that are cut.
    unknown: share of the tokens that the vocabulary has no piece for.
  """

  mean: float
  percentiles: Mapping[int, int]
  longest: int
  limit: int
  truncated: float
  unknown: float

  @classmethod
  def count(cls, tokens: np.ndarray, limit: int, unknown: int) -> 'Lengths':
    """Counts texts with `tokens` [n] tokens, `unknown` of them unknown."""
    percentiles = np.zeros(len(PERCENTILES), int)
    if len(tokens):
      percentiles = np.percentile(tokens, PERCENTILES, method='inverted_cdf')
    return cls(
        mean=float(tokens.mean()) if len(tokens) else 0.0,
        percentiles=dict(zip(PERCENTILES, percentiles.tolist())),
        longest=int(tokens.max(initial=0)),
        limit=limit,
        truncated=float((tokens > limit).mean()) if len(tokens) else 0.0,
        unknown=unknown / max(int(tokens.sum(dtype=np.int64)), 1),
    )


@dataclasses.dataclass(frozen=True)
class Texts:
  """The queries, passages or hard negatives of a split.

  Attributes:
    most_repeated: times that the most frequent text occurs.
    found: the names of `findings.TEXT_RULES`, and texts_of_several_ids.
  """

  count: int
  distinct: int
  most_repeated: int
  found: Mapping[str, Occurrences]
  lengths: Lengths

  @property
  def unique(self) -> float:
    """Share of unique texts, as in SamToNe's table 3."""
    return self.distinct / self.count if self.count else 1.0


@dataclasses.dataclass(frozen=True)
class Sample:
  """A row for the model: (kind, text cut, tokens kept, tokens before)."""

  place: str
  texts: Sequence[tuple[str, str, int, int]]


@dataclasses.dataclass(frozen=True)
class Split:
  """A split of a task.

  Attributes:
    name: the split's, with its task in front for a part of a mixture.
    split: its name within the task.
    error: why it cannot be read to its end, or None.
    corpus: the split that the queries are ranked over, None for this one.
    rows: rows that were read and not refused.
    pairs: rows of a query and a relevant passage.
    distinct_pairs: pairs of different texts.
    judged_irrelevant: rows of a query and a passage of grade 0 or less.
    lone_queries: rows without a passage.
    lone_passages: rows without a query, those of a corpus.
    found: the names of `findings.PAIR_RULES`.
    refused: rows that the reader leaves out or stops at, by reason.
  """

  name: str
  split: str
  error: str | None
  corpus: str | None
  rows: int
  pairs: int
  distinct_pairs: int
  judged_irrelevant: int
  lone_queries: int
  lone_passages: int
  queries: Texts
  passages: Texts
  negatives: Texts
  fewest_negatives: int
  most_negatives: int
  without_negatives: int
  found: Mapping[str, Occurrences]
  refused: Mapping[str, Occurrences]
  samples: Sequence[Sample]

  @property
  def num_refused(self) -> int:
    return sum(found.count for found in self.refused.values())

  @property
  def mean_negatives(self) -> float:
    """Hard negatives of a pair."""
    return self.negatives.count / max(self.pairs, 1)

  @property
  def kinds(self) -> Sequence[tuple[str, Texts]]:
    """(kind, texts) of the kinds that occur."""
    names = 'query', 'passage', 'negative'
    kinds = zip(names, (self.queries, self.passages, self.negatives))
    return [(kind, texts) for kind, texts in kinds if texts.count]


@dataclasses.dataclass(frozen=True)
class Overlap:
  """Distinct texts and pairs that a held-out and a train split share."""

  held_out: str
  train: str
  queries: Occurrences
  passages: Occurrences
  pairs: Occurrences


@dataclasses.dataclass(frozen=True)
class Inspection:
  """The counts of all splits of a task.

  Attributes:
    options: those that are set, by task: more than one in a mixture.
    vocabulary: the one that lengths are counted with.
    query_length, passage_length: most tokens, EOS included.
  """

  task: str
  options: Mapping[str, Mapping[str, object]]
  vocabulary: str
  vocabulary_size: int
  query_length: int
  passage_length: int
  splits: Sequence[Split]
  overlaps: Sequence[Overlap]
