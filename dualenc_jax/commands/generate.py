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
from collections.abc import Iterator, Sequence
import logging
import math
import pathlib
import shlex
import time

import numpy as np

from dualenc_jax.commands import config, flags, generated_by_models, runtime
from dualenc_jax.errors import expect, UserError
from dualenc_jax.generation import filters, output
from dualenc_jax.generation.generator import Generator
from dualenc_jax.generation.sampling import Sampling
from dualenc_jax.generation.shards import Passage, Shards
from dualenc_jax.generation.writer import LENGTHS
from dualenc_jax.interop import generators
from dualenc_jax.parallel.host import Host
from dualenc_jax.readers import Texts

# GPL's rule: so many queries in all, and at least three of a passage.
BUDGET, _LEAST = 250_000, 3
# Passages, at least, that tell how long it will take.
_SAMPLE = 16
_FILTERS = 'max_copied', 'min_log_probability', *generated_by_models.FLAGS
_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  rules, sampling = check_flags(args)
  runtime.start(args)
  host = runtime.host(args)
  folder = pathlib.Path(args.output_dir)
  passages, fingerprint = corpus(args)
  chosen, count = budget(passages, args)
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
  written.check(facts, args.overwrite)
  if written.missing():
    for line in forecast(generator, written, host):
      _LOG.info('%s', line)
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
  found = filters.kept(written.read(), lambda i: chosen[i].text, rules, counts)
  queries = generated_by_models.kept(list(found), chosen, args, counts)
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
  # GPL's own layout: what is generated lies beside the corpus.
  source = pathlib.Path(args.corpus).expanduser()
  source = source / output.CORPUS if source.is_dir() else source
  in_place = source.resolve() == (folder / output.CORPUS).resolve()
  said = output.write(
      folder, args.prefix, chosen, queries, counts, facts, not in_place
  )
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
  add('--prefix', default='qgen',
      help='prefix of the file names (default %(default)s)')
  add('--queries_per_passage', type=flags.whole(), metavar='N',
      help=f"queries per passage (default GPL's rule: {BUDGET:,} in all and at"
      f' least {_LEAST} per passage; passages beyond that are left out at'
      ' random)')
  add('--passages', type=flags.whole(), metavar='N',
      help='number of passages to draw from the corpus (default as many as the'
      ' rule of --queries_per_passage allows)')
  add('--passage_length', type=flags.whole(2),
      help='maximum tokens read of a passage (default as trained; 512 for'
      ' released generators)')
  add('--query_length', type=flags.whole(2), default=64,
      help='maximum tokens of a query, EOS included (default %(default)s)')
  add('--temperature', type=float, default=1.0,
      help='sampling temperature; 0 is greedy (default %(default)s)')
  add('--top_k', type=flags.whole(0), default=25,
      help='sample from the K most probable tokens; 0 for all (default'
      ' %(default)s)')
  add('--top_p', type=float, default=0.95,
      help='of these, sample from the fewest that have this probability'
      ' together (default %(default)s)')
  add('--seed', type=flags.whole(0), default=0,
      help='random seed (default %(default)s)')
  add('--max_copied', type=float, default=1.0, metavar='SHARE',
      help='leave out queries that copy more than this share of their words, in'
      ' one piece, from the passage (default %(default)s; such as 0.8)')
  add('--min_log_probability', type=float, metavar='X',
      help='leave out queries whose mean log-probability per token is lower')
  generated_by_models.add_flags(parser)
  add('--batch_size', type=flags.whole(), metavar='N',
      help='queries that a device generates at once (default 64 on a CPU, else'
      ' 1024)')
  add('--dtype', choices=['float32', 'bfloat16'],
      help='dtype of activations (default as trained; float32 for released'
      ' generators)')
  add('--overwrite', action='store_true',
      help='replace existing queries of another generator or corpus')
  flags.add_hosts(parser)
  runtime.add_flags(parser)
  return parser


def check_flags(args: argparse.Namespace) -> tuple[filters.Rules, Sampling]:
  """What is asked of queries, and how they are drawn."""
  rules = filters.Rules(args.max_copied, args.min_log_probability)
  sampling = Sampling(args.temperature, args.top_k or None, args.top_p)
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
  generated_by_models.check(args)
  return rules, sampling


def corpus(args: argparse.Namespace) -> tuple[list[Passage], str]:
  """The passages with something in them, and a hash of the file."""
  task = Texts(args.corpus, not args.skip_bad_rows)
  passages, blank = [], 0
  for row in task.examples('corpus'):
    name, text = row['passage_id'], row['passage']
    if '\t' in name or name.splitlines() != [name]:
      raise UserError(
          f"{row['location']} has the id {name!r}. Expected ids without tabs"
          ' and line ends, which qrels cannot hold.'
      )
    if text.strip():
      passages.append(Passage(name, row['name'], text))
    else:
      blank += 1
  if blank:
    _LOG.info('%s passages are empty, and have no queries.', f'{blank:,}')
  if not passages:
    raise UserError(f'{args.corpus} has no passage with text.')
  return passages, task.fingerprint('corpus')


def budget(
    passages: Sequence[Passage], args: argparse.Namespace
) -> tuple[Sequence[Passage], int]:
  """Which passages have queries, and how many each."""
  count, most = args.queries_per_passage, args.passages
  if not args.temperature:
    if count not in (None, 1):
      raise UserError(
          '--temperature=0 gives one query per passage, but'
          f' --queries_per_passage is {count}. Leave one out.'
      )
    count = 1
  if count is None:
    if most is None:
      most = math.ceil(BUDGET / _LEAST)
    size = min(len(passages), most)
    count = max(math.ceil(BUDGET / size), _LEAST)
  if most is not None and most < len(passages):
    rng = np.random.default_rng(args.seed)
    rows = np.sort(rng.permutation(len(passages))[:most])
    passages = [passages[i] for i in rows.tolist()]
  return passages, count


def forecast(
    generator: Generator, written: Shards, host: Host
) -> Iterator[str]:
  """Lines on how much there is to do, and about how long that takes."""
  passages, count = written.passages, written.count
  yield (
      f'{len(passages):,} passages, {count:,} queries each:'
      f' {len(passages) * count:,} queries.'
  )
  own = [i for i in written.missing() if i % host.count == host.index]
  left = sum(len(written.some(i)) for i in own) * count
  # Two rounds of all that the devices write at once.
  size = max(2 * generator.writer.at_once // count, _SAMPLE)
  if left <= 8 * count * size:
    return
  some = passages[:: max(len(passages) // size, 1)][:size]
  sources, _ = generator.read([passage.text for passage in some])
  ids = [passage.id for passage in some]

  def seconds(seed: int) -> float:
    start = time.perf_counter()
    for _ in generator.write(
        sources, ids, count, written.sampling, written.length, seed
    ):
      pass
    return time.perf_counter() - start

  seconds(0)  # Compiles.
  speed = count * len(some) / seconds(1)
  yield (
      f'About {left / speed / 60:.1f} minutes here ({speed:.0f} queries a'
      f' second, by those of {len(some)} passages).'
  )
