"""The sentence of a passage that shows why the passage was found."""

import re
import textwrap
from typing import NamedTuple

from dualenc_jax.retrieval.search.bm25 import LANGUAGE, split_words

# Characters that a line of a terminal, or two, has room for.
LONGEST = 240
_SENTENCES = re.compile(r'(?<=[.!?])[\'")\]]*\s+|(?<=[。！？])|\n\s*\n')


class Snippet(NamedTuple):
  """A sentence, on one line of at most `LONGEST` characters; '...' is a cut.

  `matches` counts the words of the query in it, each once; with 0 it is the
  first sentence.
  """

  text: str
  matches: int


def find_snippet(
    query: str, text: str, language: str | None = LANGUAGE, name: str = ''
) -> Snippet:
  """Finds the first of the sentences with most different words of the query.

  Words are BM25's: stems, without a language's stop words. A sentence ends at
  `.`, `!` or `?` before white space, or at an empty line; a longer one, such as
  code, is cut into lines. A `name` in front of the text, its title, is left
  out.
  """
  text = text.removeprefix(f'{name} ') if name else text
  wanted = {*split_words(query, language)}
  # All words of a question may be stop words.
  if not wanted:
    language, wanted = None, {*split_words(query)}
  best = Snippet('', -1)
  for sentence in _sentences(text):
    matches = len(wanted.intersection(split_words(sentence, language)))
    if matches > best.matches:
      best = Snippet(sentence, matches)
  short = textwrap.shorten(best.text, LONGEST, placeholder='...')
  return Snippet(short, max(best.matches, 0))


def _sentences(text: str):
  for sentence in _SENTENCES.split(text):
    long = len(sentence) > LONGEST
    for part in sentence.splitlines() if long else [sentence]:
      if part := ' '.join(part.split()):
        yield part
