"""Generates queries for a corpus by a trained T5 (docT5query, GenQ, GPL).

  dualenc generate --generator=doc2query --corpus=scifact/ --output_dir=adapted
  dualenc generate --generator=doc2query --corpus=corpus.jsonl
    --queries_per_passage=3 --max_copied=0.8 --output_dir=adapted

--generator is a model_dir of runs/doc2query.gin, a T5X checkpoint, or a Hugging
Face folder. --corpus is a folder in BEIR's layout or a file, as for `dualenc
encode`.

Writes to OUTPUT_DIR, in the form of GPL and BEIR: corpus.jsonl,
qgen-queries.jsonl and qgen-qrels/train.tsv, to train on with
--gin_file=tasks/beir.gin --gin.BEIR_FOLDER=OUTPUT_DIR --gin.BEIR_PREFIX=qgen;
report.md and generated.json; and shards of all generated queries, from which a
killed run continues and other filters start. The queries of a passage depend on
generator, text, id and seed alone.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
import logging
import pathlib
import shlex

from dualenc_jax.checkpoints import checkpoint_reader
from dualenc_jax.cli import config, flags, runtime
from dualenc_jax.pipelines.generation import (
  corpus,
  filters,
  loading as generators,
  output,
)
from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.pipelines.generation.shards import Passage, Shards
from dualenc_jax.pipelines.generation.writer import LENGTHS
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import expect, UserError

_FILTERS = (
    'max_copied', 'min_log_probability', 'round_trip', 'round_trip_depth',
)
_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  rules, sampling = check_flags(args)
  runtime.start(args)
  host = runtime.host(args)
  folder = pathlib.Path(args.output_dir)
  passages, fingerprint = corpus.read(args.corpus, not args.skip_bad_rows)
  chosen, count = corpus.budget(
      passages, args.queries_per_passage, args.passages, args.seed
  )
  generator = generators.load(
      args.generator, args.generator_vocabulary, args.passage_length,
      args.batch_size, dtype=args.dtype,
  )
  written = Shards(
      folder / 'shards', chosen, count, sampling, args.query_length, args.seed
  )
  facts = written.facts({
      'generator': generator.provenance,
      'passage_length': generator.passage_length,
      'corpus': fingerprint,
  })
  # GPL's own layout: what is generated lies beside the corpus.
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
  if not runtime.all_done(args, lambda: not written.missing()):
    print(
        f'{len(written.missing())} of {len(written)} shards are left to other'
        f' hosts; the last of them completes {folder}.'
    )
    return
  counts: Counter[str] = Counter()
  queries = list(
      filters.kept(written.read(), lambda i: chosen[i].text, rules, counts)
  )
  if args.round_trip is not None:
    before, depth = len(queries), args.round_trip_depth or 1
    queries = round_trip(queries, chosen, args.round_trip, depth)
    counts['whose passage is not found'] = before - len(queries)
  if not queries:
    causes = ', '.join(f'{n:,} {cause}' for cause, n in counts.items())
    raise UserError(
        f'No query is left: {causes}. Give other filters; all generated queries'
        f' are in {written.folder}.'
    )
  # Hosts that have joined end together: all filter, and the first writes.
  if args.multihost and host.index:
    return
  facts |= {
      **{name: getattr(args, name) for name in _FILTERS},
      'command': shlex.join(['dualenc', 'generate', *(argv or ())]),
  }
  said = output.write(folder, chosen, queries, counts, facts, not in_place)
  print('\n'.join(said))
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
  add('--skip_bad_rows', action='store_true',
      help='leave out unreadable rows and repeated ids of --corpus')
  add('--output_dir', default='generated',
      help='folder of the results (default %(default)s)')
  add('--queries_per_passage', type=flags.whole(), metavar='N',
      help=f"queries per passage (default GPL's rule: {corpus.BUDGET:,} in all"
      f' and at least {corpus.LEAST} per passage; passages beyond are left out'
      ' at random)')
  add('--passages', type=flags.whole(), metavar='N',
      help='number of passages to draw from the corpus (default as many as the'
      ' rule of --queries_per_passage allows)')
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
  add('--max_copied', type=flags.number, default=1.0, metavar='SHARE',
      help='leave out queries that copy more than this share of their words, in'
      ' one piece, from the passage (default %(default)s; such as 0.8)')
  add('--min_log_probability', type=flags.number, metavar='X',
      help='leave out queries whose mean log-probability per token is lower')
  add('--round_trip', metavar='MODEL',
      help='leave out queries whose passage this dual encoder does not find'
      ' (Promptagator, Dai et al. 2022)')
  add('--round_trip_depth', type=flags.whole(), metavar='K',
      help='lowest rank at which --round_trip may find the passage (default 1)')
  add('--batch_size', type=flags.whole(), metavar='N',
      help='queries that a device generates at once (default 64 on a CPU, else'
      ' 1024)')
  add('--dtype', choices=['float32', 'bfloat16'],
      help='dtype of activations (default as trained; float32 for released'
      ' generators)')
  add('--overwrite', action='store_true',
      help='replace queries of another generator or corpus, and files that'
      ' others have made')
  flags.add_hosts(parser)
  runtime.add_flags(parser)
  return parser


def check_flags(args: argparse.Namespace) -> tuple[filters.Rules, Sampling]:
  """What is asked of queries, and how they are drawn."""
  rules = filters.Rules(args.max_copied, args.min_log_probability)
  sampling = Sampling(args.temperature, args.top_k or None, args.top_p)
  if not args.temperature:
    if args.queries_per_passage not in (None, 1):
      raise UserError(
          '--temperature=0 gives one query per passage: leave out it or'
          f' --queries_per_passage={args.queries_per_passage}.'
      )
    args.queries_per_passage = 1
  if args.overwrite and (args.multihost or args.host_count > 1):
    raise UserError(
        'One host at a time may --overwrite: remove the folder shards of'
        ' --output_dir, and start all hosts without it.'
    )
  expect(
      (args.passage_length or 0) <= LENGTHS[-1], '--passage_length',
      args.passage_length, f'at most {LENGTHS[-1]}: cut passages into parts',
  )
  expect(args.seed < 2**32, '--seed', args.seed, 'less than 2^32')
  flags.check_hosts(args)
  if args.round_trip is None and args.round_trip_depth is not None:
    raise UserError('--round_trip_depth: give --round_trip, or leave it out.')
  model = pathlib.Path(args.round_trip or '')
  if args.round_trip is not None and checkpoint_reader.is_model_dir(model):
    check_dual_encoder('round_trip', model)
  return rules, sampling


def check_dual_encoder(flag: str, model: pathlib.Path) -> None:
  """Raises UserError for a model_dir of something else."""
  kind = checkpoint_reader.kind_of(checkpoint_reader.read_facts(model))
  if kind in (checkpoint_reader.CROSS_ENCODER, checkpoint_reader.GENERATOR):
    raise UserError(f'--{flag} is {model}, a {kind}; expected a dual encoder.')


def round_trip(
    queries: Sequence[Query], passages: Sequence[Passage], model: str,
    depth: int,
) -> list[Query]:
  """Keeps the queries whose passage is among the `depth` best of a model."""
  ids = [passage.id for passage in passages]
  retriever = Retriever.from_dir(model)
  retriever.index([passage.text for passage in passages], ids)
  texts = [query.text for query in queries]
  hits = retriever.search(texts, min(depth, len(ids))).ids
  return [q for q, best in zip(queries, hits) if ids[q.passage] in best]
