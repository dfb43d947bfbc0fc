"""Whether a passage holds an answer, and top-k accuracy, as DPR has them."""

from collections.abc import Callable, Sequence
import unicodedata

import numpy as np

TOP_K = (5, 20, 100)


def has_answer(answers: Sequence[str], text: str) -> bool:
  """Whether the tokens of an answer stand in `text`, one after the other.

  Both are normalised to NFD, and letter case does not matter. As in DPR an
  answer without a token is in every text.
  """
  text = _spaced(text)
  return any(_spaced(answer) in text for answer in answers)


def tokens(text: str) -> list[str]:
  """Tokens of DPR's SimpleTokenizer, after NFD, in lower case.

  A token is a run of letters, digits and marks (Unicode's L, N and M), or
  another character that is no separator or control (Z and C).
  """
  text = unicodedata.normalize('NFD', text).translate(_SPACING)
  return [token.lower() for token in text.split()]


def top_k_accuracy(
    indices: np.ndarray,
    answers: Sequence[Sequence[str]],
    text: Callable[[int], str],
) -> dict[str, float]:
  """Share of the queries with an answer in their k best hits, for each TOP_K.

  Args:
    indices: int [Q, k], corpus rows of the hits, best first; k at least 100
      or all there are.
    answers: of each query.
    text: the text of a corpus row in which answers are looked for.

  Returns:
    'Top-5', 'Top-20' and 'Top-100'.
  """
  first = []
  for hits, strings in zip(indices[:, : max(TOP_K)].tolist(), answers):
    matches = (has_answer(strings, text(hit)) for hit in hits)
    first.append(next((i for i, match in enumerate(matches) if match), np.inf))
  return {f'Top-{k}': float(np.mean(np.array(first) < k)) for k in TOP_K}


def _spaced(text: str) -> str:
  """The tokens with a space before and after each; none has one inside."""
  return ''.join(f' {token}' for token in tokens(text)) + ' '


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
