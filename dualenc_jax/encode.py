"""Embeds a corpus with the passage tower into an index to search.

  dualenc encode --model_dir=my_model
  dualenc encode --model_dir=my_model --split=test --index_dir=my_index
"""

from collections.abc import Sequence
import pathlib
import sys
from typing import Any

import tqdm

from dualenc_jax import cli
from dualenc_jax import config
from dualenc_jax import model_dir
from dualenc_jax import runtime
from dualenc_jax.retrieval.corpus import Corpus
from dualenc_jax.retrieval.index import IndexWriter
from dualenc_jax.retrieval.index import Passage


def main(argv: Sequence[str] | None = None) -> None:
  parser = config.make_parser('encode', __doc__)
  model_dir.add_flags(parser)
  parser.add_argument(
      '--split', help='of the task; all, else corpus, else train by default'
  )
  parser.add_argument('--index_dir', help='MODEL_DIR/index by default')
  args = config.parse_args(parser, argv)
  runtime.start()
  model = model_dir.load_from_args(args)
  folder = pathlib.Path(args.index_dir or default_index(args.model_dir))
  count = encode(model, args.split or default_split(model), folder)
  print(f'{count:,} passages in {folder}.')


def default_index(folder: str) -> pathlib.Path:
  """Where the index of a model_dir is."""
  return pathlib.Path(folder) / 'index'


def default_split(model: model_dir.TrainedModel) -> str:
  """The split whose passages are everything there is to search."""
  splits = model.experiment.task.splits()
  return next((s for s in ('all', 'corpus') if s in splits), splits[0])


def encode(
    model: model_dir.TrainedModel, split: str, folder: pathlib.Path
) -> int:
  """Writes the index of a split's distinct passages; returns their number."""
  experiment = model.experiment
  cache = experiment.cache(split)
  corpus = Corpus.from_cache(cache)
  rows = corpus.rows
  batches = model.embedder.batches(
      'encode_passage', model.params, cache.passage_tokens, rows
  )
  dim = embedding_dim(model)
  with (
      IndexWriter(
          folder,
          dim,
          'passage',
          provenance={
              **provenance(model),
              'task': experiment.task.name,
              'split': split,
              'source': cache.header['source'],
          },
      ) as writer,
      tqdm.tqdm(
          total=len(rows), unit='passage', desc='Encoding', disable=None
      ) as bar,
  ):
    for positions, embeddings in batches:
      writer.append(
          embeddings,
          [
              Passage(
                  corpus.ids[i],
                  cache.names.text(rows[i]),
                  cache.locations.text(rows[i]),
                  cache.passage_texts.text(rows[i]),
              )
              for i in positions
          ],
      )
      bar.update(len(positions))
    writer.commit()
  return len(rows)


def provenance(model: model_dir.TrainedModel) -> dict[str, Any]:
  """What a query must have in common with an index to be compared with it."""
  wanted = ('run_id', 'checkpoint_step', 'vocabulary', 'passage_length')
  return {k: v for k, v in model.provenance.items() if k in wanted}


def embedding_dim(model: model_dir.TrainedModel) -> int:
  """D of the passage tower."""
  dual_encoder = model.experiment.model
  projection = dual_encoder.passage_projection or dual_encoder.projection
  return projection.features


if __name__ == '__main__':
  sys.exit(cli.run(main))
