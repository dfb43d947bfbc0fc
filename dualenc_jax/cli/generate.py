"""Generates queries for a corpus by a trained T5 (docT5query, GenQ, GPL).

  dualenc generate --generator=doc2query --corpus=scifact/ --output_dir=adapted
  dualenc generate --generator=doc2query --corpus=corpus.jsonl
    --queries_per_passage=3 --output_dir=adapted

--generator is a model_dir of runs/doc2query.gin, a T5X checkpoint, or a Hugging
Face folder. --corpus is a folder in BEIR's layout or a file, as for `dualenc
encode`.

Writes to OUTPUT_DIR, in the form of GPL and BEIR: corpus.jsonl,
qgen-queries.jsonl and qgen-qrels/train.tsv, to train on with
--gin_file=tasks/beir.gin --gin.BEIR_FOLDER=OUTPUT_DIR --gin.BEIR_PREFIX=qgen;
generated.json with counts; and shards of all generated queries, from which a
killed run continues. The queries of a passage depend on generator, text, id and
seed alone.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
import logging
import pathlib
import shlex

from dualenc_jax.cli import config, flags, runtime
from dualenc_jax.data.readers import rows
from dualenc_jax.parallel import hosts
from dualenc_jax.pipelines.generation import (
  corpus,
  generator as generators,
  output,
  shards,
)
from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.pipelines.generation.writer import LENGTHS
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import expect, UserError

_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  sampling = _check_flags(args)
  runtime.start(args)
  host = runtime.host()
  folder = pathlib.Path(args.output_dir)
  with rows.skipped_by(None):
    passages, fingerprint = corpus.read(args.corpus)
  chosen, count = corpus.budget(passages, args.queries_per_passage, args.seed)
  generator = generators.load(
      args.generator, args.generator_vocabulary, args.passage_length,
      args.batch_size,
  )
  written = shards.Shards(
      folder / 'shards', chosen, count, sampling, args.query_length, args.seed
  )
  facts = written.facts({
      'generator': generator.provenance,
      'passage_length': generator.passage_length,
      'corpus': fingerprint,
  })
  # In GPL's own layout the generated files lie beside the corpus.
  source = pathlib.Path(args.corpus).expanduser()
  source = source / output.CORPUS if source.is_dir() else source
  in_place = source.resolve() == (folder / output.CORPUS).resolve()
  if not (args.overwrite or written.folder.exists()):
    made = output.names(not in_place)
    json_file.check_own(folder, output.FACTS, made, {}, dict)
  written.check(facts, args.overwrite)
  cut = written.write(generator, host)
  if cut:
    _LOG.info(
        '%s passages have more than %d tokens; what follows is not read.',
        f'{cut:,}', generator.passage_length,
    )
  hosts.wait_for_shards(lambda: not written.missing(), written.folder)
  counts: Counter[str] = Counter()
  queries = list(shards.keep_distinct(written.read(), counts))
  if not queries:
    causes = ', '.join(f'{n:,} {cause}' for cause, n in counts.items())
    raise UserError(
        f'No query is left: {causes}. All are in {written.folder}; give another'
        ' generator.'
    )
  # Joined hosts end together, so that all filter and the first writes.
  if host.index:
    return
  facts['command'] = shlex.join(['dualenc', 'generate', *(argv or ())])
  output.write(folder, chosen, queries, counts, facts, not in_place)
  print('\n'.join(output.count_table(chosen, queries, counts)))
  print(f'Written to {folder}.')


def make_parser() -> flags.Parser:
  parser = config.make_parser('generate', __doc__)
  add = parser.add_argument
  add('--generator', required=True, metavar='MODEL',
      help='a query generator; see above')
  add('--generator_vocabulary', metavar='FILE',
      help="the generator's SentencePiece file, if none is beside it")
  add('--corpus', required=True, metavar='PATH',
      help='the passages; see above')
  add('--output_dir', default='generated',
      help='folder of the results (default %(default)s)')
  add('--queries_per_passage', type=flags.whole(), metavar='N',
      help=f"queries per passage (default GPL's rule: {corpus.BUDGET:,} in all"
      f' and at least {corpus.LEAST} per passage; passages beyond are left out'
      ' at random)')
  add('--passage_length', type=flags.whole(2),
      help='maximum tokens read of a passage (default as trained; 512 for'
      ' released generators)')
  add('--query_length', type=flags.whole(2), default=64,
      help='maximum tokens of a query, EOS included (default %(default)s)')
  add('--temperature', type=flags.number, default=1.0,
      help='sampling temperature; 0 is greedy (default %(default)s)')
  add('--top_k', type=flags.whole(0), default=25,
      help='sample from the K most probable tokens; 0 for all (default'
      ' %(default)s)')
  add('--top_p', type=flags.number, default=0.95,
      help='sample from the fewest of them that together have this probability'
      ' (default %(default)s)')
  add('--seed', type=flags.whole(0), default=0,
      help='random seed (default %(default)s)')
  add('--batch_size', type=flags.whole(), metavar='N',
      help='queries that a device generates at once (default 64 on a CPU, else'
      ' 1024)')
  add('--overwrite', action='store_true',
      help='replace queries of another generator or corpus, and files that'
      ' others have made')
  runtime.add_flags(parser)
  return parser


def _check_flags(args: argparse.Namespace) -> Sampling:
  """How tokens are drawn; UserError for flags that do not go together."""
  if not args.temperature:
    if args.queries_per_passage not in (None, 1):
      raise UserError(
          '--temperature=0 gives one query per passage: leave out it or'
          f' --queries_per_passage={args.queries_per_passage}.'
      )
    args.queries_per_passage = 1
  if args.overwrite and args.multihost:
    raise UserError(
        'One host at a time may --overwrite: remove the folder shards of'
        ' --output_dir, and start all hosts without it.'
    )
  expect(
      (args.passage_length or 0) <= LENGTHS[-1], '--passage_length',
      args.passage_length, f'at most {LENGTHS[-1]}: cut passages into parts',
  )
  expect(args.seed < 2**32, '--seed', args.seed, 'less than 2^32')
  return Sampling(args.temperature, args.top_k or None, args.top_p)
