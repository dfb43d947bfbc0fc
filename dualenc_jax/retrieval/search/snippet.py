"""The sentence of a passage that shows why the passage was found."""

import re
from typing import NamedTuple

from dualenc_jax.retrieval.search.bm25 import LANGUAGE, split_words

# Characters that a line of a terminal, or two, has room for.
LONGEST = 240
# Characters that are kept in front of the first word of the query.
_BEFORE = 40
_SENTENCES = re.compile(r'(?<=[.!?])[\'")\]]*\s+|(?<=[。！？])|\n\s*\n')


class Snippet(NamedTuple):
  """A sentence, on one line of at most `LONGEST` characters; '...' is a cut.

  `matches` counts the words of the query in it, each once; with 0 it is the
  first sentence.
  """

  text: str
  matches: int


def find_snippet(
    query: str, text: str, language: str | None = LANGUAGE
) -> Snippet:
  """Finds the first of the sentences with most different words of the query.

  Words are BM25's: stems, without a language's stop words. A sentence ends at
  `.`, `!` or `?` before white space, or at an empty line; a longer one, such as
  code, is cut into lines.
  """
  wanted = {*split_words(query, language)}
  # All words of a question may be stop words.
  if not wanted:
    language, wanted = None, {*split_words(query)}
  best = Snippet('', -1)
  for sentence in _sentences(text):
    matches = len(wanted.intersection(split_words(sentence, language)))
    if matches > best.matches:
      best = Snippet(sentence, matches)
  return Snippet(_cut(best.text, wanted, language), max(best.matches, 0))


def _sentences(text: str):
  for sentence in _SENTENCES.split(text):
    long = len(sentence) > LONGEST
    for part in sentence.splitlines() if long else [sentence]:
      if part := ' '.join(part.split()):
        yield part


def _cut(text: str, wanted: set[str], language: str | None) -> str:
  """At most `LONGEST` characters, from a little before the first match."""
  if len(text) <= LONGEST:
    return text
  start = 0
  for found in re.finditer(r'\S+', text):
    if wanted.intersection(split_words(found[0], language)):
      start = found.start()
      break
  start = min(start - _BEFORE, len(text) - LONGEST)
  start = text.find(' ', start) + 1 if start > 0 else 0
  part = text[start : start + LONGEST]
  cut = start + LONGEST < len(text)
  if cut:
    part = part.rsplit(' ', 1)[0]
  return '...' * bool(start) + part + '...' * cut
