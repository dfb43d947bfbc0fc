"""Matches of answers in passages, and top-k accuracy, as in DPR."""

from collections.abc import Callable, Iterator, Sequence
import functools
import unicodedata

import numpy as np

TOP_K = (5, 20, 100)
# Texts that are cached for other queries.
_KEPT = 1 << 14


def tokens(text: str) -> list[str]:
  """Tokens of DPR's SimpleTokenizer, after NFD, in lower case.

  A token is a run of letters, digits and marks (Unicode's L, N and M), or
  another character that is not a separator or control (Z and C).
  """
  # Spaces end a word for the lower case of the Greek sigma, too.
  text = unicodedata.normalize('NFD', text).translate(_SPACING)
  return text.lower().split()


def top_k_matches(
    indices: np.ndarray,
    answers: Sequence[Sequence[str]],
    text: Callable[[int], str],
    cuts: Sequence[int] = TOP_K,
) -> dict[str, np.ndarray]:
  """Whether an answer is in the k best hits of each query, for each cut k.

  Indices [Q, k] are corpus rows of the hits, best first; k is the greatest cut
  at least, or all there are. `text` is called for rows down to the first match.

  Returns:
    'Top-5', 'Top-20' and so on: float64 [Q], 0 or 1; the mean is the top-k
    accuracy.
  """
  first = np.full(len(answers), np.inf)
  hits = indices[:, : max(cuts)]
  for q, matches in enumerate(each_hit(hits, answers, text)):
    first[q] = next((i for i, is_one in enumerate(matches) if is_one), np.inf)
  return {f'Top-{k}': (first < k).astype(np.float64) for k in cuts}


def each_hit(
    indices: np.ndarray,
    answers: Sequence[Sequence[str]],
    text: Callable[[int], str],
) -> Iterator[Iterator[bool]]:
  """For each query, lazily, whether each of its hits has an answer.

  A text has an answer if it has its tokens in a row; as in DPR every text has
  an answer without tokens. Arguments are those of `top_k_matches`; a row below
  0 is not a hit.
  """

  @functools.lru_cache(_KEPT)
  def spaced(row: int) -> str:
    return _spaced(text(row))

  for hits, strings in zip(indices, answers):
    wanted = [_spaced(answer) for answer in strings]
    yield (
        row >= 0 and any(answer in spaced(row) for answer in wanted)
        for row in hits.tolist()
    )


def _spaced(text: str) -> str:
  """The tokens with a space before and after each; none has one inside."""
  return ' '.join(['', *tokens(text), ''])


class _Spacing(dict):
  """Table for `str.translate` that sets tokens apart by spaces."""

  def __missing__(self, code: int) -> str:
    category = unicodedata.category(chr(code))[0]
    if category in 'LNM':
      self[code] = chr(code)
    else:
      self[code] = ' ' if category in 'ZC' else f' {chr(code)} '
    return self[code]


_SPACING = _Spacing()
