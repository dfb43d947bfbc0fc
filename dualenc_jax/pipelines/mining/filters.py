"""Filters that decide which candidates are hard negatives.

Shapes: Q queries, k candidates.
"""

from collections.abc import Collection, Sequence
import dataclasses

import numpy as np

from dualenc_jax.data.text.ragged import fingerprints, Ragged
from dualenc_jax.evaluation import answer_match
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining.candidates import (
  Candidates,
  Score,
  with_scores,
)
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Rules:
  """Rules for hard negatives.

  In this order: its rank in retrieval, from 1, is `first_rank` to `last_rank`;
  it is not blank; it is not a known positive of the query, by id or by text,
  and has none of the query's answers; no better candidate has its text; and its
  score is at most that of the query's lowest known positive less the share
  `relative_margin` of its absolute value (0.05 for cosines in NV-Retriever,
  2024).
  """

  first_rank: int = 1
  last_rank: int = 100
  relative_margin: float | None = None

  def __post_init__(self):
    if not 1 <= self.first_rank <= self.last_rank:
      raise UserError(
          f'The first rank (--first_rank) is {self.first_rank} and the last'
          f' (--depth) {self.last_rank}; expected 1 or more, in this order.'
      )


@dataclasses.dataclass(frozen=True, eq=False)
class FilteredCandidates:
  """The candidates of a source, and which of them may be taken.

  Attributes:
    candidates: all, with the scores that decided.
    mask: bool [Q, k].
    counts: candidates that each rule left out, in order, and 'left'.
  """

  candidates: Candidates
  mask: np.ndarray
  counts: dict[str, int]


def filter_candidates(
    candidates: Candidates,
    rules: Rules,
    ranked: RetrievalSet,
    score: Score | None = None,
) -> FilteredCandidates:
  """Leaves out the candidates that are not hard negatives.

  The margin applies to the scores of the teacher `score`, which scores the
  candidates that pass the other rules; without a teacher to the source's own.

  Raises:
    UserError: a margin, and no query has a scored positive.
  """
  mask = candidates.passages >= 0
  counts = {'candidates': int(mask.sum())}

  def leave_out(what: str, wanted: np.ndarray) -> None:
    nonlocal mask
    counts[what] = int(np.count_nonzero(mask & ~wanted))
    mask = mask & wanted

  texts, blank = text_fingerprints(ranked)
  repeats = _repeats(candidates.passages, texts)
  ranks = np.arange(1, mask.shape[1] + 1)[None]
  wanted = (ranks >= rules.first_rank) & (ranks <= rules.last_rank)
  leave_out('outside of the ranks', wanted)
  leave_out('blank', texts[candidates.passages] != blank)
  known = _known(candidates.passages, ranked, texts)
  leave_out('known positives', ~known[0])
  leave_out('texts of known positives', ~known[1])
  answers = ranked.all_answers()
  if any(answers):
    left = np.where(mask, candidates.passages, -1)
    leave_out('with an answer', ~_answered(left, ranked, answers))
  leave_out('texts of better candidates', ~repeats)
  if score is not None:
    left = np.where(mask, candidates.passages, -1)
    candidates = with_scores(
        dataclasses.replace(candidates, passages=left), ranked, score
    )
  if rules.relative_margin is not None:
    limit = _limit(candidates, rules.relative_margin)
    # Without a scored positive there is nothing to be below.
    wanted = candidates.scores <= limit[:, None]
    leave_out('within the margin of the positive', wanted)
  counts['left'] = int(mask.sum())
  return FilteredCandidates(candidates, mask, counts)


def score_chosen(
    kept: FilteredCandidates,
    chosen: Sequence[Collection[int]],
    ranked: RetrievalSet,
    score: Score,
) -> FilteredCandidates:
  """The chosen passages of each query alone, with a teacher's scores."""
  passages = kept.candidates.passages
  wanted = [np.isin(row, [*own]) for row, own in zip(passages, chosen)]
  mask = kept.mask & np.array(wanted, bool).reshape(kept.mask.shape)
  left = dataclasses.replace(
      kept.candidates, passages=np.where(mask, passages, -1)
  )
  return FilteredCandidates(with_scores(left, ranked, score), mask, kept.counts)


def _known(
    passages: np.ndarray, ranked: RetrievalSet, texts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Whether candidates are positives of their query, by id and by text."""
  by_id, by_text = (np.zeros(passages.shape, bool) for _ in range(2))
  own = ranked.self_hits
  for query, positives in enumerate(ranked.gold):
    by_id[query] = np.isin(passages[query], positives)
    by_text[query] = np.isin(texts[passages[query]], texts[positives])
    if own is not None:
      by_id[query] |= passages[query] == own[query]
  return by_id, by_text


def _answered(
    passages: np.ndarray, ranked: RetrievalSet, answers: list[list[str]]
) -> np.ndarray:
  """bool [Q, k]: candidates (-1 for none) with one of their query's answers."""
  corpus = ranked.corpus
  found = answer_match.each_hit(
      passages,
      answers,
      lambda i: ranked.answer_text(corpus.texts[i], corpus.name(i)),
  )
  return np.array([[*matches] for matches in found], bool)


def text_fingerprints(ranked: RetrievalSet) -> tuple[np.ndarray, np.uint64]:
  """Fingerprints of the corpus' texts without space around, and of ''."""
  corpus = ranked.corpus
  column = corpus.cache.passage_texts
  assert isinstance(column, Ragged)
  texts = fingerprints(column)[corpus.rows]
  blank = fingerprints(Ragged.from_texts(['']))[0]
  lengths, offsets = column.lengths[corpus.rows], column.offsets[corpus.rows]
  some = np.flatnonzero(lengths)
  first, last = offsets[some], (offsets + lengths - 1)[some]
  # These may begin or end with space, which beyond ASCII is several bytes.
  odd = np.zeros(len(some), bool)
  for ends in (column.values[first], column.values[last]):
    odd |= (ends <= 32) | (ends >= 128)
  odd = some[odd]
  if len(odd):
    own = Ragged.from_texts([corpus.texts[i].strip() for i in odd.tolist()])
    texts[odd] = fingerprints(own)
  return texts, blank


def _repeats(passages: np.ndarray, texts: np.ndarray) -> np.ndarray:
  """bool [Q, k]: candidates with the text of one before them."""
  out = np.zeros(passages.shape, bool)
  for query, own in enumerate(passages):
    real = np.flatnonzero(own >= 0)
    _, first = np.unique(texts[own[real]], return_index=True)
    out[query, np.delete(real, first)] = True
  return out


def _limit(candidates: Candidates, margin: float) -> np.ndarray:
  """The highest score of each query that is far enough below: [Q]."""
  known = [own[~np.isnan(own)] for own in candidates.positives]
  if not any(map(len, known)):
    raise UserError(
        f'A margin needs the scores of positives, which {candidates.name} does'
        ' not give. Leave it out, or give a teacher.'
    )
  lowest = np.array([min(own, default=np.nan) for own in known], np.float32)
  return lowest - np.abs(lowest) * margin
