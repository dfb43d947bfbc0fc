"""Searches the index of a model; makes MODEL_DIR/index if it does not exist.

  dualenc search --model_dir=my_model "parse an ISO 8601 date"
  dualenc search --model_dir=my_model --queries=queries.jsonl --format=trec

Without a query it reads queries from standard input, one per line. A hit is
shown with its score, name, id and location, and the sentence that has the most
words of the query. Standard error has the parts of a query that the model
cannot read.
"""

import argparse
from collections.abc import Iterator, Sequence
import dataclasses
import logging
import sys

from dualenc_jax.cli import (
  bm25,
  config,
  flags,
  hits as hits_lib,
  queries as queries_lib,
  rerank,
  runtime,
  saved_run,
)
from dualenc_jax.retrieval.index import build_for_model, open_index
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

# Queries of a file that are searched for at a time.
_BATCH = 64
# Notes on queries of a file that are logged one by one.
_LOGGED = 5
_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  # A query that is not UTF-8 is still a query.
  if hasattr(sys.stdin, 'reconfigure'):
    sys.stdin.reconfigure(errors='replace')
  runtime.start()
  queries = _queries(args)
  model = saved_run.load_from_args(args)
  if args.index_dir is not None:
    index = open_index(model, args.index_dir)
  else:
    index = build_for_model.open_own(
        model,
        model.own_passages(),
        saved_run.home(args.model_dir, args.dim, args.passage_prompt),
    )
  retriever = Retriever(model, index, args.candidates)
  words = bm25.words(args)
  if args.hybrid is not None:
    retriever.index_words(**dataclasses.asdict(words))
  teacher = args.rerank and rerank.cross_encoder(args.rerank, args)
  depth = args.rerank_depth if teacher else 0
  show = hits_lib.Printer(args.format, words.language)
  notes = 0
  for batch in queries:
    found = retriever.find(
        [query for _, query in batch], max(args.k, depth), args.hybrid
    )
    for (query_id, query), hits in zip(batch, found):
      for note in retriever.towers.tokenizer.query_warnings(query):
        notes += 1
        if notes <= _LOGGED or args.queries is None:
          _LOG.warning('%r: %s', query[:80], note)
      if teacher:
        hits = rerank.in_new_order(teacher, query, hits, depth)[: args.k]
      show(query_id, query, hits)
  if args.queries is not None and notes > _LOGGED:
    _LOG.warning('There are %d more such notes on queries.', notes - _LOGGED)


def _queries(args: argparse.Namespace) -> Iterator[list[tuple[str, str]]]:
  """Ids and texts of queries, those of a file many at a time."""
  if args.queries is not None:
    if args.query:
      raise UserError('Give queries as arguments, or --queries, not both.')
    found = queries_lib.read(args.queries)
    for start in range(0, len(found), _BATCH):
      yield found[start : start + _BATCH]
    return
  if not all(query.strip() for query in args.query):
    raise UserError('The query is empty. Give some words.')
  # Lines of standard input may be blank.
  given = args.query or filter(None, map(str.strip, sys.stdin))
  for number, query in enumerate(given, start=1):
    yield [(str(number), query)]


def make_parser() -> flags.Parser:
  parser = config.make_parser('search', __doc__)
  parser.add_argument('query', nargs='*', help='text to search for')
  parser.add_argument(
      '--queries', type=flags.path, metavar='FILE',
      help='queries to search for: one per line, or JSONL or TSV with ids',
  )
  parser.add_argument(
      '--format', choices=hits_lib.FORMATS, default='text',
      help='text; json, one object per hit; tsv; or trec, a run file (default'
      ' %(default)s). Queries without ids are numbered from 1',
  )
  saved_run.add_flags(parser)
  parser.add_argument(
      '--index_dir',
      help=flags.INDEX_DIR,
  )
  parser.add_argument(
      '--candidates', type=flags.whole(), metavar='L',
      help=flags.CANDIDATES,
  )
  parser.add_argument(
      '--hybrid', type=bm25.share, metavar='SHARE | rrf',
      help='fuse with BM25: 0 to 1, such as 0.5, the share of the dense scores;'
      ' or rrf, by ranks (default no BM25)',
  )
  bm25.add_flags(parser)
  rerank.add_flags(parser)
  parser.add_argument(
      '--k', type=flags.whole(), default=5,
      help='hits to show (default %(default)s)',
  )
  return parser
