"""Printing of the hits of `dualenc search`, in each of its formats.

  text   the query; of each hit score, name, id and location, and a line with
         the sentence that has the most words of the query
  json   an object a hit, on a line: query_id, query, rank, id, score, name,
         location, snippet, snippet_matches (different words of the query in
         the snippet; 0 where it is the first sentence), text
  tsv    a header and the same columns but snippet_matches and text, quoted as
         csv does where a cell has quotes
  trec   a run file, white space in ids percent-encoded
"""

import csv
import json
import sys

from dualenc_jax.evaluation import trec
from dualenc_jax.retrieval.search import snippet
from dualenc_jax.retriever import Hit
from dualenc_jax.utils.untrusted import printable

FORMATS = ('text', 'json', 'tsv', 'trec')
_COLUMNS = ('query_id', 'query', 'rank', 'id', 'score', 'name', 'location')


class Printer:
  """Prints hits, query by query, to standard output."""

  def __init__(self, form: str, language: str | None):
    """Takes one of `FORMATS`, and the language of words, see `snippet.of`."""
    self._print = getattr(self, f'_{form}')
    self._language = language
    self._writer = csv.writer(sys.stdout, 'excel-tab', lineterminator='\n')
    self._needs_header = form == 'tsv'

  def __call__(self, query_id: str, query: str, hits: list[Hit]) -> None:
    """Prints the hits of a query."""
    if self._needs_header:
      self._needs_header = False
      self._writer.writerow([*_COLUMNS, 'snippet'])
    self._print(query_id, query, hits)
    sys.stdout.flush()

  def _text(self, query_id: str, query: str, hits: list[Hit]) -> None:
    del query_id
    print(query)
    for hit in hits:
      own = hit.passage
      # An id may be the name, or the location, too.
      parts = dict.fromkeys(filter(None, (own.name, own.id, own.location)))
      print(f'  {hit.score:.3f}  {"  ".join(map(_line, parts))}')
      if found := self._snippet(query, hit).text:
        print(f'         {printable(found)}')

  def _json(self, query_id: str, query: str, hits: list[Hit]) -> None:
    for row, hit in zip(_rows(query_id, query, hits), hits):
      found = self._snippet(query, hit)
      row |= {'snippet': found.text, 'snippet_matches': found.matches}
      print(json.dumps(row | {'text': hit.passage.text}))

  def _tsv(self, query_id: str, query: str, hits: list[Hit]) -> None:
    for row, hit in zip(_rows(query_id, query, hits), hits):
      cells = [*row.values(), self._snippet(query, hit).text]
      self._writer.writerow([
          _line(cell) if isinstance(cell, str) else cell for cell in cells
      ])

  def _trec(self, query_id: str, query: str, hits: list[Hit]) -> None:
    del query
    for rank, hit in enumerate(hits, start=1):
      own = trec.field(hit.passage.id)
      print(f'{trec.field(query_id)} Q0 {own} {rank} {hit.score:.9g} dualenc')

  def _snippet(self, query: str, hit: Hit) -> snippet.Snippet:
    name, text = hit.passage.name, hit.passage.text
    # A title is in front of the text that was encoded, and shown already.
    text = text.removeprefix(f'{name} ') if name else text
    return snippet.of(query, text, self._language)


def _rows(query_id: str, query: str, hits: list[Hit]):
  for rank, (score, own) in enumerate(hits, start=1):
    cells = query_id, query, rank, own.id, score, own.name, own.location
    yield dict(zip(_COLUMNS, cells))


def _line(text: str) -> str:
  return printable(' '.join(text.split()))
