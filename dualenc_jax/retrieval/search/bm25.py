"""BM25, the baseline on words, by the bm25s library; identifiers are split.

Words are those of `data.text.words`; one that is made of parts (`snake_case`,
`camelCase`, `ISO8601`) counts as each part and as the whole. Stop words go
(NLTK's), and words are cut to their stems (Snowball's), both by language.
"""

from collections.abc import Iterable, Iterator, Sequence
import functools
import logging
import math
import re

import numpy as np
import Stemmer

from dualenc_jax.data.text.words import fold, split
from dualenc_jax.retrieval.search import ranking
from dualenc_jax.utils.errors import did_you_mean_or_known, expect, UserError

# bm25s's defaults; SciFact and the standard library prefer them to 0.9, 0.4.
K1 = 1.5
B = 0.75
LANGUAGE = 'english'

_BOUNDARY = re.compile(
    r'_+'
    r'|(?<=[a-z])(?=[A-Z])'  # camel|Case
    r'|(?<=[A-Z])(?=[A-Z][a-z])'  # HTTP|Server
    r'|(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)'  # ISO|8601
)


def split_words(text: str, language: str | None = None) -> list[str]:
  """The words of a text, whatever their case, and parts of its identifiers.

  With a language its stop words are left out, and its stemmer cuts the others.
  """
  found = []
  for word in split(text):
    parts = [part for part in _BOUNDARY.split(word) if part]
    found.extend(parts)
    if len(parts) > 1:
      found.append(word.strip('_'))
  if language == 'turkish':
    found = [word.replace('İ', 'i').replace('I', 'ı') for word in found]
  found = fold(found)
  if language is None:
    return found
  stop_words, stemmer = _load_language(language)
  return stemmer.stemWords([w for w in found if w not in stop_words])


class BM25:
  """Passages, ready to be scored by BM25.

  The score of a passage p for a query is the sum over its words w of
  idf(w) tf / (tf + k1 (1 - b + b |p| / mean |p|)), where tf counts w in p, and
  idf(w) = log(1 + (N - n + 0.5) / (n + 0.5)) of n passages with w.
  """

  def __init__(
      self, passages: Sequence[str], k1: float = K1, b: float = B,
      language: str | None = LANGUAGE,
  ):
    """Counts the words of all N texts.

    Args:
      passages: N texts, at least one with a word.
      k1: 0 or more; the higher, the longer repeated words go on to count.
      b: 0 to 1; how much long passages are held back.
      language: language of stop words and stems, one of PyStemmer's; None for
        neither.
    """
    # Importing bm25s starts a JAX backend, which must not happen before the
    # program has chosen its devices.
    import bm25s

    # It sets its own logger to DEBUG.
    logging.getLogger('bm25s').setLevel(logging.WARNING)
    check_parameters(k1, b, language)
    self._language = language
    corpus = [split_words(text, language) for text in passages]
    if not any(corpus):
      raise UserError(
          'no passage holds a word that is not a stop word'
          f' (language {language}).'
      )
    self._model = bm25s.BM25(k1=k1, b=b)
    self._model.index(corpus, show_progress=False)

  def scores(self, query: str) -> np.ndarray:
    """Scores float32 [N]; 0 for a passage without a word of the query."""
    tokens = self._model.get_tokens_ids(split_words(query, self._language))
    return self._model.get_scores_from_ids(tokens)

  def rank(
      self, queries: Sequence[str], passage_ids: Sequence[str], k: int
  ) -> ranking.Ranking:
    """Ranks the passages with a word of each of Q queries: [Q, min(k, N)].

    Among equal scores the passage with the greatest id comes first.
    """
    ranking.check_k(k)
    places = ranking.id_places(passage_ids)
    return ranking.concatenate([
        ranking.rank_scores(scores, places, k)
        for scores in self.matched_scores(queries)
    ])

  def matched_scores(self, queries: Iterable[str]) -> Iterator[np.ndarray]:
    """Yields the scores of each query, float32 [N]; -inf without a word."""
    return map(mask_unmatched, map(self.scores, queries))


def mask_unmatched(scores: np.ndarray) -> np.ndarray:
  """Scores of BM25 [N] with -inf for 0: a passage without a word is no hit."""
  return np.where(scores > 0, scores, np.float32(-np.inf))


def check_parameters(k1: float, b: float, language: str | None) -> None:
  """Raises UserError for a `k1` or `b` that BM25 cannot have."""
  expect(0 <= k1 < math.inf, 'BM25: k1', k1, 'a number of 0 or more')
  expect(0 <= b <= 1, 'BM25: b', b, '0 to 1')
  if language is not None and language not in Stemmer.algorithms():
    raise UserError(
        f'BM25: no stemmer exists for {language!r}.'
        + did_you_mean_or_known(language, Stemmer.algorithms())
    )


@functools.cache
def _load_language(language: str) -> tuple[frozenset[str], Stemmer.Stemmer]:
  """Stop words, none where bm25s has no list of them, and the stemmer."""
  from bm25s import stopwords

  # Its list of that name has 33 words; on CISI nDCG@10 is .374 by it, .360 by
  # none and .400 by this one, of 179.
  name = 'EN_PLUS' if language == 'english' else language.upper()
  entries = ' '.join(getattr(stopwords, f'STOPWORDS_{name}', ()))
  # Split as texts are: "don't" is of two words.
  return frozenset(split_words(entries)), Stemmer.Stemmer(language)
