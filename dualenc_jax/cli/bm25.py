"""Ranks whole corpora by BM25, the baseline that a model has to beat.

  dualenc bm25 msmarco --gin.DATA_ROOT=/data
  dualenc bm25 --tasks=beir/scifact,msmarco --gin.DATA_ROOT=/data
  dualenc bm25 train.jsonl dev.jsonl test.jsonl --split=test

It needs no model. Writes what `dualenc evaluate` writes to
bm25/<task>-<split>, which `dualenc compare` takes as a system.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import pathlib
import shlex

from dualenc_jax.cli import config, data_command, flags, runtime, task_selection
from dualenc_jax.evaluation.results import evaluate, result_files, tables
from dualenc_jax.evaluation.results.baselines import Baselines, BM25Config
from dualenc_jax.retrieval.search import bm25 as bm25_lib, hybrid
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import expect, UserError


def main(argv: Sequence[str]) -> None:
  args = config.parse_args(make_parser(), argv)
  asked = evaluate.parse_metrics(args.metrics, args.k)
  runtime.start_logging()
  inputs, chosen = task_selection.inputs_without_model(args)
  if args.tasks:
    chosen = task_selection.keep_available(chosen, args.skip_missing)
  options = evaluate.Options(
      k=args.k,
      baselines=Baselines(words=words(args)),
      relevance_level=args.relevance_level,
      equal_texts=args.equal_texts is not None,
      metrics=asked,
  )
  output = pathlib.Path(args.output_dir)
  for task, split in chosen:
    folder = output / evaluate.folder_name(task, split, options)
    print(f'{task.label}, split {split}:')
    found = evaluate.evaluate_bm25(
        dataclasses.replace(inputs, task=task),
        split,
        folder,
        shlex.join(['dualenc', 'bm25', *argv]),
        options,
        args.overwrite,
    )
    print(tables.metric_lines({'BM25': found.metrics}))
    print(f'  Written to {folder}.', flush=True)
  tables.write_tables(output, [result_files.read_model(output, 'BM25')])


def make_parser() -> flags.Parser:
  parser = config.make_parser('bm25', __doc__)
  data_command.add_flags(parser)
  add = parser.add_argument
  add('--tasks', type=flags.listed, help='tasks, as for `dualenc evaluate`')
  add('--split', help=flags.SPLIT)
  add('--skip_missing', action='store_true',
      help='leave out --tasks whose files do not exist')
  add('--k', type=flags.whole(), default=1000,
      help='hits per query in the run file (default %(default)s)')
  add('--output_dir', default='bm25',
      help='folder of the results (default %(default)s)')
  add('--overwrite', action='store_true',
      help='replace results of other data in --output_dir')
  flags.add_metrics(parser)
  flags.add_relevance_level(parser)
  flags.add_equal_texts(parser)
  add_flags(parser)
  return parser


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds k1, b and the language of BM25."""
  add = parser.add_argument
  add('--bm25_k1', type=flags.number, default=bm25_lib.K1,
      help='BM25: saturation of repeated words (default %(default)s)')
  add('--bm25_b', type=flags.number, default=bm25_lib.B,
      help='BM25: penalty of long passages (default %(default)s)')
  add('--bm25_language', default=bm25_lib.LANGUAGE,
      help='BM25: language of stop words and stems; none for neither (default'
      ' %(default)s)')


def words(args: argparse.Namespace) -> BM25Config:
  """The BM25 of the flags of `add_flags`."""
  language = None if args.bm25_language == 'none' else args.bm25_language
  return BM25Config(args.bm25_k1, args.bm25_b, language)


def baselines(args: argparse.Namespace) -> Baselines:
  """The baselines of --baselines, --hybrid_weight and the flags of BM25."""
  expected = f'{" and ".join(result_files.BASELINES)}, either, or nothing'
  for name in args.baselines or ():
    expect(name in result_files.BASELINES, '--baselines', name, expected)
  return Baselines(args.baselines, words(args), args.hybrid_weight)


def weight(text: str) -> float | str:
  """The type of a flag that says how BM25 and dense scores are fused."""
  if text == hybrid.RRF:
    return text
  try:
    value = untrusted.parse_number(text)
    hybrid.check_weight(value)
  except (ValueError, UserError):
    raise argparse.ArgumentTypeError(
        f'is {text}; expected {hybrid.RRF} or a number of 0 to 1'
    ) from None
  return value
