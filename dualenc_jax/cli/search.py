"""Searches the index of a model; makes MODEL_DIR/index if it does not exist.

  dualenc search --model_dir=my_model "parse an ISO 8601 date"
  dualenc search --model_dir=my_model --queries=queries.jsonl --format=trec

Without a query it reads queries from standard input, one per line. A hit is
shown with its score, name, id and location, and the sentence that has the most
words of the query. Standard error has the parts of a query that the model
cannot read. Other formats:

  json   an object per hit and line: query_id, query, rank, id, score, name,
         location, snippet, snippet_matches (different words of the query in
         the snippet; 0 where it is the first sentence), text
  trec   a run file, with white space in ids percent-encoded
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import json
import logging
import sys

from dualenc_jax.cli import (
  bm25,
  config,
  flags,
  queries as queries_lib,
  rerank,
  runtime,
  saved_run,
)
from dualenc_jax.evaluation import trec
from dualenc_jax.parallel import hosts
from dualenc_jax.retrieval.index import (
  build_for_model,
  index as index_lib,
  open_index,
)
from dualenc_jax.retrieval.search import snippet
from dualenc_jax.retriever import Hit, Retriever
from dualenc_jax.utils.errors import SourceUnavailable, UserError
from dualenc_jax.utils.untrusted import escape

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
  if args.multihost and not (args.query or args.queries):
    raise UserError(
        '--multihost needs the same queries on all hosts: give them as'
        ' arguments, or --queries.'
    )
  runtime.start(args)
  host = runtime.host()
  queries = _queries(args)
  model = saved_run.load_from_args(args, per_host=True)
  index = _open_index(args, model, host)
  retriever = Retriever(model, index, args.candidates)
  words = bm25.words(args)
  # Hybrid search is the first host's alone.
  is_idle = args.hybrid is not None and host.index > 0
  if args.hybrid is not None and not is_idle:
    retriever.index_words(**dataclasses.asdict(words))
  teacher = args.rerank and rerank.load_cross_encoder(args.rerank, args)
  depth = args.rerank_depth if teacher else 0
  show = _FORMATS[args.format]
  notes = 0
  for batch in () if is_idle else queries:
    found = retriever.find(
        [query for _, query in batch], max(args.k, depth), args.hybrid
    )
    if host.index:
      continue
    for (query_id, query), hits in zip(batch, found):
      for note in retriever.towers.tokenizer.query_warnings(query):
        notes += 1
        if notes <= _LOGGED or args.queries is None:
          _LOG.warning('%r: %s', query[:80], note)
      if teacher:
        hits = rerank.reorder(teacher, query, hits, depth)[: args.k]
      show(query_id, query, hits, words.language)
      sys.stdout.flush()
  if args.queries is not None and notes > _LOGGED:
    _LOG.warning('There are %d more such notes on queries.', notes - _LOGGED)
  hosts.wait_for_all()


def _open_index(
    args: argparse.Namespace, model: saved_run.TrainedModel, host: hosts.Host
) -> index_lib.Index:
  """The index of --index_dir; else that of the model, made where it is due."""
  folder = args.index_dir
  if folder is None:
    home = saved_run.results_dir(
        args.model_dir, args.dim, args.passage_prompt
    )
    try:
      passages = model.own_passages()
    except UserError as e:
      folder = build_for_model.default_index_dir(home)
      # A file that a flag names must be there.
      named = args.gin_file or args.gin_bindings
      if named or not isinstance(e, SourceUnavailable) or not folder.exists():
        raise UserError(
            f'{e} An index that exists is searched without the data: give'
            ' --index_dir.'
        ) from e
      _LOG.warning(
          '%s is searched as it is, and not compared with the data: %s',
          folder, e.__cause__ or e,
      )
    else:
      return build_for_model.open_task_index(model, passages, home, host)
  index = open_index(model, folder, host=host)
  index_lib.agree(index)
  return index


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
  add = parser.add_argument
  add('query', nargs='*', help='text to search for')
  add('--queries', type=flags.path, metavar='FILE',
      help='queries to search for: one per line, or JSONL or TSV with ids')
  add('--format', choices=[*_FORMATS], default='text',
      help='text; json, one object per hit; or trec, a run file (default'
      ' %(default)s). Queries without ids are numbered from 1')
  saved_run.add_flags(parser)
  add('--index_dir',
      help=flags.INDEX_DIR)
  add('--candidates', type=flags.whole(), metavar='L',
      help=flags.CANDIDATES)
  add('--hybrid', type=bm25.weight, metavar='SHARE | rrf',
      help='fuse with BM25: 0 to 1, such as 0.5, the share of the dense scores;'
      ' or rrf, by ranks (default no BM25)')
  bm25.add_flags(parser)
  rerank.add_flags(parser)
  add('--k', type=flags.whole(), default=5,
      help='hits to show (default %(default)s)')
  runtime.add_flags(parser)
  return parser


def _print_text(
    query_id: str, query: str, hits: Sequence[Hit], language: str | None
) -> None:
  del query_id
  print(query)
  for hit in hits:
    own = hit.passage
    # An id may be the name, or the location, too.
    parts = dict.fromkeys(filter(None, (own.name, own.id, own.location)))
    print(f'  {hit.score:.3f}  {"  ".join(map(_line, parts))}')
    if text := _snippet(query, hit, language).text:
      print(f'         {escape(text)}')


def _print_json(
    query_id: str, query: str, hits: Sequence[Hit], language: str | None
) -> None:
  for rank, hit in enumerate(hits, start=1):
    score, own = hit
    best = _snippet(query, hit, language)
    print(json.dumps({
        'query_id': query_id,
        'query': query,
        'rank': rank,
        'id': own.id,
        'score': score,
        'name': own.name,
        'location': own.location,
        'snippet': best.text,
        'snippet_matches': best.matches,
        'text': own.text,
    }))


def _print_trec(
    query_id: str, query: str, hits: Sequence[Hit], language: str | None
) -> None:
  del query, language
  for rank, hit in enumerate(hits, start=1):
    own = trec.field(hit.passage.id)
    print(f'{trec.field(query_id)} Q0 {own} {rank} {hit.score:.9g} dualenc')


_FORMATS: dict[str, Callable[[str, str, Sequence[Hit], str | None], None]] = {
    'text': _print_text,
    'json': _print_json,
    'trec': _print_trec,
}


def _snippet(query: str, hit: Hit, language: str | None) -> snippet.Snippet:
  own = hit.passage
  # The name is shown already.
  return snippet.find_snippet(query, own.text, language, own.name)


def _line(text: str) -> str:
  return escape(' '.join(text.split()))
