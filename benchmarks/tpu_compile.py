"""What the TPU's compiler expects of our programs, on slices that are not here.

  pip install -e '.[tpu-check]'
  python benchmarks/tpu_compile.py --folder=tpu

Of the ring, value and gradient, with 1,024 pairs a chip: milliseconds, memory,
and permutes that the chips wait for. Of search, a block of 131,072 rows a chip
by 2,048 queries, as floats and as codes: milliseconds and memory. Of the train
step of T5.1.1 base, and of the runs of gin/runs/tpu: milliseconds, those of
them that wait for collectives (an estimate by their bytes and the wires), and
the share of the slice's peak that the products of real texts are (MFU). No TPU
is needed; the compiler takes minutes a program. `dualenc check --topology` has
memory and what is sent.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from unittest import mock

import jax
import numpy as np
import tpu_kernels
from tpu_schedule import clock_and_link, peak_flops, Schedule
import workload

from dualenc_jax import losses
from dualenc_jax.cli import saved_run
from dualenc_jax.data import Vocabulary
from dualenc_jax.data.layouts import TextRows
from dualenc_jax.forecast import slices
from dualenc_jax.models import DualEncoder
from dualenc_jax.models.dual_encoder import count_flops
from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.search import search_programs
from dualenc_jax.retrieval.search.search_programs import BLOCK_ROWS
from dualenc_jax.training import memory, Partitioner

_RINGS = 'v5e:4x4,v5e:8x8,v5e:8x16,v5e:16x16'
_STEPS = 'v5e:2x2,v5e:4x4'
_SEARCHES = 'v5e:2x4'
_TESTS = pathlib.Path(__file__).parents[1] / 'tests'
_RUNS = 'large_4x4,xl_8x8,xxl_16x16,million_16x16'
_PAIRS, _SHARD = 512, 1024
_QUERIES, _DIM, _KEPT = 2048, 768, 157
_LOSSES = {
    'softmax': losses.InBatchSoftmax(), 'SamToNe': losses.SamToNe()
}


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  add = parser.add_argument
  add('--folder', type=pathlib.Path, required=True)
  add('--rings', default=_RINGS, help='slices for the ring; "" for none')
  add('--losses', default='softmax', help='of softmax,SamToNe')
  add('--searches', default=_SEARCHES, help='slices for search; "" for none')
  add('--codecs', default='fp32,fp16,int8,pq:96', help='of the searches')
  add('--steps', default=_STEPS, help='slices for the step; "" for none')
  add('--runs', default=_RUNS, help='of gin/runs/tpu; "" for none')
  add('--vocabulary', default='python_code_8k', help="of the runs; T5's, say")
  add('--dropout', type=float, default=0.0)
  args = parser.parse_args()
  args.folder.mkdir(parents=True, exist_ok=True)
  print(slices.check_compiler())
  print('| slice | loss | pairs | ms | MiB | permutes | waited for |')
  print('|---|---|---|---|---|---|---|')
  for name in filter(None, args.rings.split(',')):
    for loss in args.losses.split(','):
      print(ring(name, loss), flush=True)
  print('| slice | search | ms | MiB |\n|---|---|---|---|')
  for name in filter(None, args.searches.split(',')):
    for codec in args.codecs.split(','):
      print(search(name, codec), flush=True)
  print('| step | slice | ms | of which waiting | MFU |\n|---|---|---|---|---|')
  for name in filter(None, args.steps.split(',')):
    print(
        step(
            'runs/finetune.gin', args.folder, 16 * _PAIRS, 'python_code_8k',
            name, args.dropout, f'BATCH_SIZE = {_PAIRS}',
        ),
        flush=True,
    )
  for name in filter(None, args.runs.split(',')):
    # The name ends in that of a slice.
    file, slice_ = f'runs/tpu/{name}.gin', f'v5e:{name.rpartition("_")[2]}'
    pairs = 2**20 if name.startswith('million') else 2**16
    print(
        step(
            file, args.folder, pairs, args.vocabulary, slice_, args.dropout
        ),
        flush=True,
    )


def ring(name: str, loss: str) -> str:
  """A line of the table."""
  # Of the tests; imported once the slice has set JAX up.
  on = slices.find_slice(name)
  sys.path[:0] = [str(_TESTS / 'helpers'), str(_TESTS / 'losses')]
  import loss_programs

  size = _SHARD * len(on.devices)
  program = loss_programs.compile_gradient(
      _LOSSES[loss], 'ring', slices.on_slice(Partitioner(), on), size
  )
  schedule = Schedule(program.as_text())
  permutes = [
      each for each in schedule.transfers()
      if each.kind == 'collective-permute'
  ]
  waited = [each for each in permutes if each.hidden is None]
  milliseconds = 1e3 * schedule.cycles() / clock_and_link(on)[0]
  return (
      f'| {name} | {loss} | {size:,} | {milliseconds:.2f} |'
      f' {loss_programs.temporaries(program) / 2**20:.1f} | {len(permutes)} |'
      f' {len(waited)} |'
  )


def search(name: str, codec: str) -> str:
  """A line of the table: a block, for the hits that top-100 keeps."""
  on = slices.find_slice(name)
  run = search_programs.Programs(tuple(on.devices))
  vectors = np.random.default_rng(0).normal(size=(512, _DIM))
  fitted = compression.spec(codec).fit(vectors.astype(np.float32))
  # Product codes are added up by tables on a CPU alone.
  with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
    program = run.lower(
        BLOCK_ROWS, _QUERIES, _DIM, _KEPT,
        None if codec == 'fp32' else fitted.quantiser,
    ).compile()
  milliseconds = (
      1e3 * Schedule(program.as_text()).cycles() / clock_and_link(on)[0]
  )
  mebibytes = program.memory_analysis().temp_size_in_bytes / 2**20
  return (
      f'| {name} | {codec}, {_QUERIES:,} queries, {BLOCK_ROWS:,} rows a chip |'
      f' {milliseconds:.2f} | {mebibytes:,.0f} |'
  )


def step(
    gin_file: str, folder: pathlib.Path, pairs: int, vocabulary: str,
    slice_: str, dropout: float, *bindings: str,
) -> str:
  """A line of the table: the train step of a file."""
  words = Vocabulary(vocabulary)
  file = folder / f'{words.file.stem}-{pairs}.jsonl'
  if not file.exists():
    write_pairs(file, words, pairs)
  on = slices.find_slice(slice_)
  experiment = saved_run.build_experiment(
      [gin_file],
      [
          'MODEL_DIR = "unused"', f'TRAIN_FILE = "{file}"',
          f'VOCABULARY = "{vocabulary}"',
          f'VOCAB_SIZE = {words.size // 128 * 128 + 128}',
          f'DROPOUT_RATE = {dropout}', *bindings,
      ],
      [],
  )
  partitioner = slices.on_slice(experiment.partitioner, on)
  experiment = dataclasses.replace(experiment, partitioner=partitioner)
  clock, link = clock_and_link(on)
  compiled = memory.compile_step(experiment)
  timed = tpu_kernels.timed(compiled.as_text() or '', on)
  assert not timed.unknown, timed.unknown
  schedule = Schedule(timed.text)
  waited = sum(
      each.times * each.exposed(link, clock) for each in schedule.transfers()
  )
  seconds = schedule.cycles() / clock + waited
  needed = flops(experiment.objective.model, experiment.batches(0))
  share = needed / (seconds * peak_flops(on) * len(on.devices))
  return (
      f'| {gin_file} | {slice_} | {1e3 * seconds:,.1f} |'
      f' {1e3 * waited:,.1f} | {share:.1%} |'
  )


def flops(model: DualEncoder, batch: dict[str, TextRows]) -> float:
  """Operations of a step's matrix products for real tokens, in both passes.

  Dropout, loss, optimizer, recomputation and padding do not count.
  """
  return sum(
      # The backward pass has two products for each of the forward pass.
      3 * count_flops(model, side, int(length))
      for name, side in (('queries', 'query'), ('passages', 'passage'))
      for length in np.ravel(batch[name].lengths) if length
  )


def write_pairs(path: pathlib.Path, vocabulary: Vocabulary, count: int) -> None:
  """Pairs of natural lengths, in words of one token each."""
  rng = np.random.default_rng(0)
  lengths = (
      workload.natural_lengths(rng, count, mean, most)
      for mean, most in ((8, 64), (75, 256))
  )
  words = one_token_each(vocabulary)
  with path.open('w') as f:
    for pair in zip(*lengths):
      # The end of a text is a token, too.
      query, passage = (' '.join(rng.choice(words, n - 1)) for n in pair)
      f.write(json.dumps({'query': query, 'passage': passage}) + '\n')


def one_token_each(vocabulary: Vocabulary) -> np.ndarray:
  """Words that have a token of their own, whatever is before them."""
  pieces = (vocabulary.decode(np.array([n])) for n in range(vocabulary.size))
  words = [word for word in dict.fromkeys(pieces) if word.isalpha()]
  alone = vocabulary.encode([f'{word} {word}' for word in words], 4)
  return np.array(words)[np.diff(alone.offsets) == 3]


if __name__ == '__main__':
  main()
