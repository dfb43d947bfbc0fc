"""Embeds a corpus with the passage tower into an index to search.

  dualenc encode --model_dir=my_model
  dualenc encode --model_dir=my_model --split=test --index_dir=my_index
  dualenc encode --model_dir=my_model --corpus=scifact/ --index_dir=my_index
  dualenc encode --model_dir=my_model --tower=query --corpus=queries.tsv
    --index_dir=my_queries

--corpus is a folder in BEIR's layout or a file, plain or .gz: JSONL with _id
(or id), text (or passage, contents) and perhaps title, or TSV of id, text and
perhaps title. An index is made shard by shard; after a kill the same command
goes on where it was. Several machines share the work with --multihost, or,
each with the same command and a shared folder, with --host_index and
--host_count.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import os
import pathlib
import time
from typing import Any

import jax

from dualenc_jax.commands import config, model_dir, runtime
from dualenc_jax.data import Cache, Task
from dualenc_jax.errors import UserError
from dualenc_jax.index import encoding, Header, header as header_lib, IndexBuild
from dualenc_jax.index.source import Source

_POLL_SECONDS = 2.0


def main(argv: Sequence[str] | None = None) -> None:
  parser = config.make_parser('encode', __doc__)
  model_dir.add_flags(parser)
  add_flags(parser)
  runtime.add_flags(parser)
  args = config.parse_args(parser, argv)
  check_flags(args)
  runtime.start(args.multihost)
  host = encoding.Host(args.host_index, args.host_count)
  if args.multihost:
    host = encoding.Host(jax.process_index(), jax.process_count())
  model = model_dir.load_from_args(args, hosts_apart=True)
  if args.corpus is not None:
    source = source_of_file(model, args.corpus, args.tower, args.on_bad_row)
  else:
    split = args.split or default_split(model)
    source = source_of_split(model, split, args.tower)
  # The model's own index follows the model.
  is_own = args.index_dir is None and args.split in (
      None, default_split(model)
  )
  build = encode(
      model,
      source,
      args.index_dir or default_index(args.model_dir),
      args.dtype,
      args.shard_size,
      args.overwrite or is_own,
      host,
  )
  is_complete = build.finish()
  # Hosts that have joined end together: the others die with the first one.
  while args.multihost and not is_complete:
    time.sleep(_POLL_SECONDS)
    is_complete = build.finish()
  texts = 'queries' if args.tower == 'query' else 'passages'
  if is_complete:
    print(f'{build.header.passages:,} {texts} in {build.folder}.')
  else:
    print(
        f'{len(build.missing())} of {build.header.shards} shards are left to'
        f' other hosts; the last of them completes {build.folder}.'
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds what to encode, how it is kept, and which part this process does."""
  parser.add_argument(
      '--split', help='of the task; all, else corpus, else train by default'
  )
  parser.add_argument(
      '--corpus',
      metavar='PATH',
      help='a BEIR folder, JSONL or TSV in place of the task; see above',
  )
  parser.add_argument(
      '--tower',
      choices=header_lib.TOWERS,
      default='passage',
      help='query encodes queries: those of the split, or a file of them',
  )
  parser.add_argument(
      '--on_bad_row',
      choices=('error', 'skip'),
      default='error',
      help='skip leaves out rows of --corpus that cannot be read',
  )
  parser.add_argument('--index_dir', help='MODEL_DIR/index by default')
  parser.add_argument(
      '--overwrite',
      action='store_true',
      help='make a new index although there is one of something else',
  )
  parser.add_argument(
      '--dtype',
      choices=header_lib.DTYPES,
      default='float32',
      help='of the embeddings on disk; float32 by default',
  )
  parser.add_argument(
      '--shard_size',
      type=int,
      default=header_lib.SHARD_SIZE,
      help=f'rows of a shard; {header_lib.SHARD_SIZE} by default',
  )
  parser.add_argument(
      '--host_index', type=int, default=0, help='of this machine, from 0 on'
  )
  parser.add_argument(
      '--host_count', type=int, default=1, help='machines that share the work'
  )


def check_flags(args: argparse.Namespace) -> None:
  """Raises UserError for flags that do not go together."""
  if args.shard_size < 1:
    raise UserError(f'--shard_size is {args.shard_size}; expected at least 1.')
  if not 0 <= args.host_index < args.host_count:
    raise UserError(
        f'--host_index is {args.host_index} and --host_count'
        f' {args.host_count}; expected an index from 0 to the count less one.'
    )
  if args.multihost and args.host_count > 1:
    raise UserError(
        'Give --multihost, or --host_index and --host_count: hosts that join'
        ' know their number.'
    )
  if args.corpus is not None and args.split is not None:
    raise UserError('Give --corpus or --split: a file has no splits.')
  if args.index_dir is None and (args.corpus or args.tower == 'query'):
    raise UserError(
        'Give --index_dir: MODEL_DIR/index is for the passages of the task.'
    )


def default_index(folder: str) -> pathlib.Path:
  """Where the index of a model_dir is."""
  return pathlib.Path(folder) / 'index'


def default_split(model: model_dir.TrainedModel) -> str:
  """The split whose passages are everything there is to search."""
  task = model.experiment.task
  splits = task.splits()
  if not splits:
    raise UserError(
        f'Task {task.name!r} has no splits: its files are not there. Say where'
        ' they are, as with --gin.DATA_ROOT, or give a --corpus.'
    )
  return next((s for s in ('all', 'corpus') if s in splits), splits[0])


def source_of_split(
    model: model_dir.TrainedModel, split: str, tower: str = 'passage'
) -> Source:
  """The texts of a split of the model's task, tokenised."""
  return _source(model.experiment.cache(split), tower)


def source_of_file(
    model: model_dir.TrainedModel,
    path: str,
    tower: str = 'passage',
    on_bad_row: str = 'error',
) -> Source:
  """The texts of a file or folder, tokenised.

  Args:
    model: whose tokenizer.
    path: as of `Texts`.
    tower: that encodes them.
    on_bad_row: as of `Texts`.
  """
  task = Task('texts', {'path': path, 'on_bad_row': on_bad_row})
  experiment = dataclasses.replace(model.experiment, task=task)
  split = 'queries' if tower == 'query' else 'corpus'
  return _source(experiment.cache(split), tower)


def _source(cache: Cache, tower: str) -> Source:
  return Source.queries(cache) if tower == 'query' else Source.passages(cache)


def encode(
    model: model_dir.TrainedModel,
    source: Source,
    folder: str | os.PathLike[str],
    dtype: str = 'float32',
    shard_size: int = header_lib.SHARD_SIZE,
    replace: bool = False,
    host: encoding.Host = encoding.Host(),
) -> IndexBuild:
  """Makes this host's shards of an index, those that are not there yet.

  Args:
    model: whose towers.
    source: of the texts.
    folder: of the index.
    dtype: of the embeddings on disk.
    shard_size: rows of a shard.
    replace: as of `IndexBuild`.
    host: which part is this process's.

  Returns:
    The index, to `finish`.
  """
  header = make_header(model, source, dtype, shard_size)
  build = IndexBuild(folder, header, replace)
  encoding.encode(
      build,
      source,
      lambda rows: model.embedder.batches(
          f'encode_{source.tower}', model.params, source.tokens, rows
      ),
      host,
  )
  return build


def make_header(
    model: model_dir.TrainedModel, source: Source, dtype: str, shard_size: int
) -> Header:
  """What an index of a source will say about itself."""
  provenance = model.provenance
  corpus = source.cache.header
  return Header(
      passages=len(source),
      dim=embedding_dim(model),
      tower=source.tower,
      tokens=provenance[f'{source.tower}_length'],
      dtype=dtype,
      shard_size=shard_size,
      provenance={
          **of_model(model, source.tower),
          'model_dir': provenance['model_dir'],
          'compute_dtype': provenance['dtype'],
          **{k: corpus[k] for k in ('task', 'options', 'split', 'source')},
      },
  )


def of_model(model: model_dir.TrainedModel, tower: str) -> dict[str, Any]:
  """What the vectors of a tower must have in common to be compared."""
  wanted = (
      'run_id',
      'checkpoint_step',
      'vocabulary',
      f'{tower}_length',
      f'{tower}_prefix',
  )
  return {k: v for k, v in model.provenance.items() if k in wanted}


def embedding_dim(model: model_dir.TrainedModel) -> int:
  """D of both towers."""
  return model.experiment.model.projection.features
