"""Searches the index of a model; makes MODEL_DIR/index if there is none.

  dualenc search --model_dir=my_model "parse an ISO 8601 date"

Without a query it reads one a line from standard input.
"""

from collections.abc import Iterable, Sequence
import logging
import sys

from dualenc_jax.commands import config, encode, model_dir, runtime
from dualenc_jax.errors import UserError
from dualenc_jax.index import Index, Passage
from dualenc_jax.search.exact_search import ExactSearch

_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  parser = config.make_parser('search', __doc__)
  parser.add_argument('query', nargs='*', help='text to search for')
  model_dir.add_flags(parser)
  parser.add_argument(
      '--index_dir',
      help='what `dualenc encode` wrote; MODEL_DIR/index by default',
  )
  parser.add_argument('--k', type=int, default=5, help='hits to show')
  args = config.parse_args(parser, argv)
  if args.k < 1:
    raise UserError(f'--k is {args.k}; expected at least 1.')
  # A query that is not UTF-8 is still a query.
  if hasattr(sys.stdin, 'reconfigure'):
    sys.stdin.reconfigure(errors='replace')
  runtime.start()
  model = model_dir.load_from_args(args)
  searcher = Searcher(model, open_index(model, args.index_dir))
  for query in args.query or lines(sys.stdin):
    print(query)
    for score, passage in searcher(query, args.k):
      print(f'  {score:.3f}  {describe(passage)}')
    sys.stdout.flush()


def describe(passage: Passage) -> str:
  """Name, or the start of the text, and the location, in one line."""
  text = ' '.join(passage.text.split())
  return f'{passage.name or text[:80]}  {passage.location}'


class Searcher:
  """Encodes queries and ranks an index exactly."""

  def __init__(self, model: model_dir.TrainedModel, index: Index):
    self._model = model
    self._index = index
    self._search = ExactSearch(index.embeddings, index.ids)

  def __call__(self, query: str, k: int) -> list[tuple[float, Passage]]:
    """The k best passages for a text, best first, with their cosines.

    Raises:
      UserError: the query is empty, or k is below 1.
    """
    if not query.strip():
      raise UserError('The query is empty; give some words to search for.')
    model = self._model
    tokens = model.experiment.tokenizer.encode_queries([query])
    embedding = model.embedder.queries(model.params, tokens)
    ranking = self._search.top_k(embedding, k)
    return [
        (float(score), self._index.passage(int(row)))
        for score, row in zip(ranking.scores[0], ranking.indices[0])
    ]


def open_index(model: model_dir.TrainedModel, folder: str | None) -> Index:
  """Opens an index; the model's own is made, or made again, when it is due."""
  expect = {
      'tower': 'passage',
      'dim': encode.embedding_dim(model),
      **encode.of_model(model, 'passage'),
  }
  if folder is not None:
    return Index.open(folder, expect)
  own = encode.default_index(model.experiment.model_dir)
  split = encode.default_split(model)
  if own.exists():
    corpus = model.experiment.cache(split).header
    expect |= {k: corpus[k] for k in ('task', 'split', 'source')}
    try:
      return Index.open(own, expect)
    except UserError as e:
      _LOG.info('The index is made again: %s', e)
  _LOG.info('Encoding the passages of split %s, once.', split)
  source = encode.source_of_split(model, split)
  encode.encode(model, source, own, replace=True).finish()
  return Index.open(own)


def lines(stream: Iterable[str]) -> Iterable[str]:
  """The lines of a stream that are not blank."""
  return (line.strip() for line in stream if line.strip())
