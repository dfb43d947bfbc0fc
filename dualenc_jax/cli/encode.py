"""Embeds a corpus with the passage tower into an index to search.

  dualenc encode --model_dir=my_model
  dualenc encode --model_dir=my_model --split=test --index_dir=my_index
  dualenc encode --model_dir=my_model --corpus=scifact/ --index_dir=my_index
  dualenc encode --model_dir=my_model --dim=64
  dualenc encode --model_dir=my_model --tower=query --corpus=queries.tsv
    --index_dir=my_queries

--corpus is a folder in BEIR's layout or a file: JSONL, JSON, CSV, Parquet or a
folder of save_to_disk with _id (or id), text (or passage, contents) and perhaps
title, or TSV of id, text and perhaps title. An index is made shard by shard;
after a kill the same command continues. Several machines share the work with
--multihost.
"""

import argparse
from collections.abc import Sequence
import dataclasses

from dualenc_jax.checkpoints import transforms
from dualenc_jax.cli import (
  config,
  flags,
  runtime,
  saved_run,
  task_selection,
)
from dualenc_jax.data.readers import rows, Texts
from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.index import build_for_model, header as header_lib
from dualenc_jax.retrieval.index.build_for_model import (
  default_split,
  TextSource,
)
from dualenc_jax.utils.errors import UserError


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  check_flags(args)
  runtime.start(args)
  names = args.tasks or ()
  model = saved_run.load_from_args(
      args, per_host=True, before=task_selection.gin_files(names),
      passages_alone=args.tower == 'passage',
  )
  if args.codec is not None:
    chosen = compression.spec(args.codec)
    chosen.check(model.dim)
    transforms.warn_untrained_codec(chosen, model, args.model_dir)
  experiment, split, is_own = model.experiment, args.split, False
  skip = rows.OF_TASKS
  if args.corpus is not None:
    skip = '--skip_bad_rows'
    texts = Texts(args.corpus, not args.skip_bad_rows)
    experiment = dataclasses.replace(experiment, task=texts)
    split = 'queries' if args.tower == 'query' else 'corpus'
  else:
    if names or experiment.task is None:
      task, _ = task_selection.select_one(
          task_selection.select(experiment, names, split)
      )
      experiment = dataclasses.replace(experiment, task=task)
    default = default_split(experiment.task)
    split = split or default
    # The model's own index follows the model.
    is_own = args.index_dir is None and split == default and not names
  codec, folder = args.codec, args.index_dir
  if folder is None:
    home = saved_run.results_dir(args.model_dir, args.dim, args.passage_prompt)
    folder = build_for_model.default_index_dir(home)
  if is_own and not args.overwrite:
    codec = build_for_model.keep_codec(model, folder, codec)
  is_query = args.tower == 'query'
  texts_of = TextSource.queries if is_query else TextSource.passages
  with rows.skipped_by(skip):
    cache = experiment.cache(split)
  build = build_for_model.encode(
      model,
      texts_of(cache),
      folder,
      codec,
      args.shard_size,
      args.overwrite or is_own,
      runtime.host(),
  )
  build_for_model.finish(build)
  what = 'queries' if is_query else 'passages'
  print(f'{build.header.passages:,} {what} in {build.folder}.')


def make_parser() -> flags.Parser:
  parser = config.make_parser('encode', __doc__)
  saved_run.add_flags(parser)
  add = parser.add_argument
  add('--tasks', type=flags.listed, help=flags.ONE_TASK)
  add('--split',
      help='split of the task (default all, else corpus, else train)')
  add('--corpus', metavar='PATH',
      help="a BEIR folder or a file in place of the task's texts; see above")
  add('--tower', choices=header_lib.TOWERS, default='passage',
      help='tower to encode with: query encodes the queries of the split, or'
      ' of a file (default %(default)s)')
  add('--skip_bad_rows', action='store_true',
      help='leave out unreadable rows and repeated ids of --corpus')
  add('--index_dir', help=flags.INDEX_DIR)
  add('--overwrite', action='store_true',
      help='replace an existing index of something else')
  add('--codec',
      help='form of the stored embeddings: fp32, fp16, bf16, int8, pca:256,'
      ' pq:96, opq:96, binary, ...; see docs/compression.md (default the'
      " model's own, else fp32)")
  add('--shard_size', type=flags.whole(), default=header_lib.SHARD_SIZE,
      help='rows per shard (default %(default)s)')
  runtime.add_flags(parser)
  return parser


def check_flags(args: argparse.Namespace) -> None:
  """Raises UserError for flags that do not go together."""
  unused = 'passage_prompt' if args.tower == 'query' else 'prompt'
  if getattr(args, unused) is not None:
    raise UserError(
        f'--{unused} has no effect: --tower={args.tower} encodes other texts.'
    )
  if args.codec is not None:
    compression.spec(args.codec)
  if args.corpus is not None and (args.split or args.tasks):
    raise UserError('Give --corpus, or --tasks and --split: a file has none.')
  other = args.corpus or args.tasks or args.tower == 'query'
  if args.index_dir is None and other:
    raise UserError(
        'Give --index_dir: MODEL_DIR/index is for the passages of the model\'s'
        ' task.'
    )
