"""Searches the index of a model; makes MODEL_DIR/index if there is none.

  dualenc search --model_dir=my_model "parse an ISO 8601 date"

Without a query it reads one a line from standard input.
"""

from collections.abc import Sequence
import dataclasses
import sys

from dualenc_jax.commands import (
  bm25,
  config,
  flags,
  model_dir,
  rerank,
  runtime,
)
from dualenc_jax.errors import UserError
from dualenc_jax.index import binding, of_model
from dualenc_jax.retriever import Retriever


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  # A query that is not UTF-8 is still a query.
  if hasattr(sys.stdin, 'reconfigure'):
    sys.stdin.reconfigure(errors='replace')
  runtime.start()
  model = model_dir.load_from_args(args)
  if args.index_dir is not None:
    index = binding.open_index(model, args.index_dir)
  else:
    index = of_model.open_own(
        model,
        model.experiment,
        model_dir.home(args.model_dir, args.dim, args.passage_prompt),
    )
  retriever = Retriever(model, index, args.candidates)
  if args.hybrid is not None:
    retriever.index_words(**dataclasses.asdict(bm25.words(args)))
  teacher = args.rerank and rerank.cross_encoder(args.rerank, args)
  for query in args.query or filter(None, map(str.strip, sys.stdin)):
    if not query.strip():
      raise UserError('The query is empty; give some words to search for.')
    print(query)
    depth = args.rerank_depth if teacher else 0
    hits = retriever.find([query], max(args.k, depth), args.hybrid)[0]
    if teacher:
      hits = rerank.in_new_order(teacher, query, hits, depth)[: args.k]
    for hit in hits:
      print(f'  {hit.score:.3f}  {hit.passage.describe()}')
    sys.stdout.flush()


def make_parser() -> flags.Parser:
  parser = config.make_parser('search', __doc__)
  parser.add_argument('query', nargs='*', help='text to search for')
  model_dir.add_flags(parser)
  parser.add_argument(
      '--index_dir',
      help='what `dualenc encode` wrote; MODEL_DIR/index by default, with --dim'
      ' MODEL_DIR/dim-<dim>/index',
  )
  parser.add_argument(
      '--candidates', type=flags.whole(), metavar='L',
      help='of an index of --codec=binary, which are scored again; by default'
      ' as encoded, 1000',
  )
  parser.add_argument(
      '--hybrid', type=bm25.share, metavar='SHARE | rrf',
      help='search by BM25, too: 0 to 1, such as 0.5, is the share of'
      ' the dense scores; rrf fuses the ranks',
  )
  bm25.add_flags(parser)
  rerank.add_flags(parser)
  parser.add_argument('--k', type=flags.whole(), default=5, help='hits to show')
  return parser
