"""Ranks a whole corpus exactly for every query of a split, and measures it.

  dualenc evaluate --model_dir=my_model
  dualenc evaluate --model_dir=my_model --tasks=msmarco,multireqa
    --gin.DATA_ROOT=/data
  dualenc evaluate --model_dir=my_model --tasks=beir/scifact,beir/nfcorpus ...

The corpus is the task's own for that split, if it has one, else the passages of
the split. A name in --tasks stands for all data sets of a benchmark (beir) or
for one (beir/scifact); each is measured on its own split.

Writes metrics.json, per_query.tsv, run.trec, examples.jsonl and config.gin to
MODEL_DIR/evaluation/<task>-<split>; the same for BM25, for model and BM25 fused
and for --codecs to the folders bm25, hybrid and codecs there; and the papers'
tables of all evaluations of the model to MODEL_DIR/evaluation/tables.md and
tables.tex. --dim writes to MODEL_DIR/dim-<dim>/evaluation, --prompt to
prompt-<name>/evaluation there:
`dualenc compare MODEL_DIR MODEL_DIR/dim-<dim> MODEL_DIR/prompt-<name>`.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import pathlib
import shlex
from typing import Any

from dualenc_jax.checkpoints import transforms
from dualenc_jax.cli import (
  bm25,
  config,
  flags,
  rerank,
  runtime,
  saved_run,
  task_selection,
)
from dualenc_jax.evaluation.results import (
  codecs,
  evaluate,
  result_files,
  tables,
)
from dualenc_jax.parallel import hosts
from dualenc_jax.retrieval.encoding import shared_teacher
from dualenc_jax.retrieval.search import hybrid
from dualenc_jax.utils.errors import UserError


def main(argv: Sequence[str]) -> None:
  args = config.parse_args(make_parser(), argv)
  check_flags(args)
  runtime.start(args)
  if args.output_dir is None:
    home = saved_run.results_dir(
        args.model_dir, args.dim, args.prompt, args.passage_prompt
    )
    output = evaluate.default_output(home)
  else:
    output = pathlib.Path(args.output_dir)
  names = args.tasks or ()
  model = saved_run.load_from_args(
      args, per_host=True, before=task_selection.gin_files(names)
  )
  chosen = task_selection.select(model.experiment, names, args.split)
  if names:
    chosen = task_selection.keep_available(chosen, args.skip_missing)
  measured = _codecs(args)
  for codec in measured:
    transforms.warn_untrained_codec(codec, model, args.model_dir)
  of_all = evaluate.Options(
      args.k,
      args.index_dir and pathlib.Path(args.index_dir),
      args.max_passage,
      bm25.baselines(args),
      shared_teacher.share(
          rerank.load_teacher(args.rerank, args), runtime.host()
      ),
      args.rerank_depth,
      measured,
      args.candidates,
      args.relevance_level,
      args.equal_texts is not None,
      evaluate.parse_metrics(args.metrics, args.k),
      args.time_codecs,
      runtime.host(),
  )
  for task, split in chosen:
    options = of_all
    name = evaluate.folder_name(task, split, options)
    if options.index_dir and len(chosen) > 1:
      options = dataclasses.replace(options, index_dir=options.index_dir / name)
    # A single set is written right where the user says.
    alone = args.output_dir is not None and len(chosen) == 1
    folder = output if alone else output / name
    print(f'{task.label}, split {split}:')
    found = evaluate.evaluate(
        model,
        dataclasses.replace(model.experiment, task=task),
        split,
        folder,
        config.operative_config(),
        shlex.join(['dualenc', 'evaluate', *argv]),
        options,
    )
    if of_all.host.index:
      continue
    means = {name or 'model': own.metrics for name, own in found.items()}
    print(tables.metric_lines(means))
    if args.rerank:
      both = found[''].scores, found[evaluate.RERANK_FOLDER].scores
      for line in rerank.verdict(*both):
        print(line)
    print(f'  Written to {folder}.', flush=True)
  if args.output_dir is None and not of_all.host.index:
    tables.write_tables(output, result_files.read_all(home))
    print(f'Tables: {output / "tables.md"}, {output / "tables.tex"}.')
  hosts.wait_for_all()


def check_flags(args: argparse.Namespace) -> None:
  """Raises UserError for values that no flag has, or that need another."""
  if args.equal_texts and args.max_passage:
    raise UserError('Give --equal_texts or --max_passage, not both.')
  if args.candidates is not None and args.index_dir is None:
    raise UserError(
        '--candidates needs an index: give --index_dir, too, or'
        f' --codecs=binary:{args.candidates}.'
    )
  if args.tasks is not None and not args.tasks:
    raise UserError('--tasks names no task; leave it out.')
  runtime.check_multihost(args, 'time_codecs', needs_index=True)
  evaluate.parse_metrics(args.metrics, args.k)
  if args.time_codecs and not args.codecs:
    raise UserError('--time_codecs needs --codecs: give it, too.')
  _codecs(args)


def _codecs(args: argparse.Namespace) -> list[Any]:
  return [codecs.parse(name) for name in dict.fromkeys(args.codecs or ())]


def make_parser() -> flags.Parser:
  parser = config.make_parser('evaluate', __doc__)
  saved_run.add_flags(parser)
  add = parser.add_argument
  add('--tasks', type=flags.listed,
      help='tasks such as msmarco,beir/scifact,multireqa (default that of'
      ' --gin_file, else the one that the model was trained on)')
  add('--split', help=flags.SPLIT)
  add('--skip_missing', action='store_true',
      help='leave out --tasks whose files do not exist')
  add('--k', type=flags.whole(), default=1000,
      help='hits per query in the run file (default %(default)s)')
  add('--index_dir',
      help='folder for the embeddings of the corpus, for corpora larger than'
      ' the memory; an index of `dualenc encode` is used as it is')
  add('--candidates', type=flags.whole(), metavar='L',
      help=flags.CANDIDATES)
  add('--max_passage', nargs='?', const='#', metavar='SEPARATOR',
      help='rank documents by their best passage; the id of a passage is its'
      " document's id, a separator (default #) and a number")
  add('--codecs', type=flags.listed,
      help='also measure compressed embeddings, such as'
      ' fp16,int8,pca:256,pq:96,opq:96,binary, and hnsw:32, a graph by faiss;'
      ' see docs/compression.md')
  add('--time_codecs', action='store_true',
      help='also time the search of each of --codecs')
  add('--output_dir', help='folder of the results (default see above)')
  flags.add_metrics(parser)
  flags.add_relevance_level(parser)
  flags.add_equal_texts(parser)
  bm25.add_flags(parser)
  add('--no_baselines', dest='baselines', action='store_const', const=[],
      help='measure the model alone')
  add('--baselines', type=flags.listed,
      help='baselines to measure (default bm25,hybrid below half a million'
      ' passages)')
  add('--hybrid_weight', type=bm25.weight,
      help='fusion with BM25: 0 to 1, the share of the dense z-scores, or rrf,'
      ' by ranks (default: chosen on the validation split, or'
      f' {hybrid.WEIGHT} where there is no other)')
  rerank.add_flags(parser)
  runtime.add_flags(parser)
  return parser
