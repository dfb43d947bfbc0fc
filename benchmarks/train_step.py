"""Times a training step on synthetic tokens; see benchmarks/README.md.

Alone it measures our step. With --peer_python, the Python of an environment
that has sentence-transformers, or with --batches, it alternates processes of
ours and theirs.
"""

import argparse
from collections.abc import Callable
import copy
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import workload

from dualenc_jax import losses, models, objectives, training
from dualenc_jax.commands import runtime
from dualenc_jax.data import Grouped, layouts, Packed, Padded, Ragged
from dualenc_jax.data.picks import Pool
from dualenc_jax.text import text_rows
from dualenc_jax.training import step as step_lib

LAYOUTS = {'padded': Padded(), 'grouped': Grouped(), 'packed': Packed()}
LOSSES = {'softmax': losses.InBatchSoftmax, 'samtone': losses.SamToNe}
PEER = pathlib.Path(__file__).with_name('train_step_peer.py')
OURS = 'dualenc_jax'
# Flags that the peer does not have.
_OURS_ONLY = (
    *('loss', 'layout', 'json', 'batches'),
    *('peer_python', 'rounds', 'plain_malloc'),
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--loss', choices=LOSSES, default='softmax')
  parser.add_argument('--layout', choices=LAYOUTS, default='padded')
  parser.add_argument(
      '--batches', type=int, nargs='+', help='several sizes of --batch'
  )
  workload.add_flags(parser)
  harness.add_flags(parser)
  args = parser.parse_args()
  if args.batches:
    print(json.dumps(several_sizes(args)))
    return
  if args.peer_python:
    print(json.dumps(in_turns(args)))
    return
  if jax.default_backend() == 'cpu':
    runtime.keep_freed_memory()  # As every command does.
  figures = measure(args, *build(args))
  if not args.json:
    print(
        f'{figures["device"]}, {args.model}, {args.layout}, batch {args.batch},'
        f' {args.query_length} + {args.passage_length} tokens, {args.dtype};'
        f' compiled in {figures["compile_seconds"]:.1f} s,'
        f' {figures["compiled_bytes"] / 1e6:.0f} MB'
    )
    workload.show(OURS, figures)
  print(json.dumps(figures))


def several_sizes(args: argparse.Namespace) -> dict[int, harness.Figures]:
  """`in_turns` for each of --batches, and a table of all."""
  args.peer_python = harness.peer_python(args.peer_python)
  results = {}
  for batch in args.batches:
    if not args.json:
      print(f'Batch {batch}, {args.micro_batch} at once', flush=True)
    one = copy.copy(args)
    one.batch, one.batches = batch, None
    try:
      results[batch] = in_turns(one)
    except subprocess.CalledProcessError as e:
      # Out of memory, say; what is measured so far is kept.
      print(f'Batch {batch} failed: {e}', file=sys.stderr)
  rows = []
  for batch, result in results.items():
    for side in result['rounds']:
      f = result[side]
      names = 'peak_rss_bytes', 'device_peak_bytes', 'compiled_bytes'
      sizes = [f'{f[n] / 1e9:.2f} GB' if f.get(n) else '' for n in names]
      rows.append(' | '.join([
          f'{batch} | {side} | {f["examples_per_second"]:.1f}',
          f'{f["step_core_seconds"]:.2f} | {f["mfu_on_real_tokens"]:.1%}',
          *sizes,
          f'{f["ours_over_this_examples_per_second"]:.2f}',
          f'{f["ours_over_this_examples_per_core_second"]:.2f}',
      ]))
  if not args.json:
    print(harness.table(
        'batch | side | examples/s | core seconds a step | MFU on real tokens'
        ' | resident | on the device | compiled plan | ours over this, clock'
        ' | by cores', rows
    ))
  return results


def in_turns(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides `rounds` times; prints each, then ratios.

  Returns:
    The flags, all rounds, and medians by side, for JSON.
  """
  names = [name for name in vars(args) if name not in _OURS_ONLY]
  flags = harness.flags(args, names)
  own = harness.flags(args, ['loss', 'layout'])
  sides = {OURS: [sys.executable, __file__, '--json', *own, *flags]}
  if args.peer_python:
    sides['sentence-transformers'] = [args.peer_python, str(PEER), *flags]
  if not args.plain_malloc:
    sides |= {
        f'{name}, tuned malloc': harness.tuned(command)
        for name, command in sides.items()
    }
  results: dict[str, list[harness.Figures]] = {name: [] for name in sides}
  for _ in range(args.rounds):
    for name, command in list(sides.items()):
      try:
        results[name].append(_figures(command))
      except subprocess.CalledProcessError as e:
        if name == OURS:
          raise
        # Out of memory, say; the others go on.
        print(f'{name} failed and is left out: {e}', file=sys.stderr)
        del sides[name], results[name]
        continue
      if not args.json:
        workload.show(name, results[name][-1])
  # The machine has one ceiling: that of the faster library.
  key = 'ceiling_flops_per_second'
  ceiling = max(f[key] for rounds in results.values() for f in rounds)
  summary = {}
  for name, rounds in results.items():
    summary[name] = harness.medians(rounds) | {key: ceiling}
    for share in ('mfu', 'mfu_on_real_tokens'):
      summary[name][share] = statistics.median(
          f[share] * f[key] / ceiling for f in rounds
      )
    for rate in ('examples_per_second', 'examples_per_core_second'):
      summary[name][f'ours_over_this_{rate}'] = harness.ratio(
          rounds, results[OURS], rate
      )
  if not args.json:
    print(f'Medians of {args.rounds} rounds:')
    for name, figures in summary.items():
      workload.show(name, figures)
      print(
          '  ours over this:'
          f' {figures["ours_over_this_examples_per_second"]:.2f} by the clock,'
          f' {figures["ours_over_this_examples_per_core_second"]:.2f} by core'
          ' seconds'
      )
  return {'flags': vars(args), 'rounds': results, **summary}


def _figures(command: list[str]) -> harness.Figures:
  """The JSON on the last line that a side prints."""
  done = subprocess.run(
      command, env=os.environ, stdout=subprocess.PIPE, text=True, check=True
  )
  return json.loads(done.stdout.splitlines()[-1])


def build(
    args: argparse.Namespace,
) -> tuple[models.DualEncoder, training.Optimizer]:
  """The SDE and the optimizer, as the shipped gin files have them."""
  sizes = workload.MODELS[args.model]
  model = models.DualEncoder(
      token_embedder=models.TokenEmbedder(sizes.vocab_size, sizes.features),
      encoder=models.T5Encoder(
          num_layers=sizes.num_layers,
          num_heads=sizes.num_heads,
          head_dim=sizes.head_dim,
          mlp_dim=sizes.mlp_dim,
          activations=('gelu', 'linear'),
          dropout_rate=args.dropout_rate,
          dtype=args.dtype,
      ),
      projection=models.Projection(sizes.embedding_dim),
  )
  schedule = optax.constant_schedule(1e-3)
  if args.optimizer == 'adamw':
    transform = optax.adamw(schedule, weight_decay=0.0)
  else:
    transform = optax.adafactor(
        schedule,
        min_dim_size_to_factor=128,
        decay_rate=0.8,
        multiply_by_parameter_scale=True,
        clipping_threshold=1.0,
    )
  return model, training.Optimizer(transform, schedule)


def measure(
    args: argparse.Namespace,
    model: models.DualEncoder,
    optimizer: training.Optimizer,
) -> dict[str, Any]:
  """Compiles and times our step."""
  sizes = workload.MODELS[args.model]
  ceiling = harness.best_rates(*square_product(args.dtype))
  partitioner = training.Partitioner()
  state, train_step = make_step(args, partitioner, model, optimizer)
  host_batches = make_batches(args, sizes.vocab_size)
  batches = [partitioner.to_device(batch) for batch in host_batches]
  compiled = []
  compile_seconds = harness.seconds(
      lambda: compiled.append(train_step.lower(state, batches[0]).compile())
  )
  memory = compiled[0].memory_analysis()

  def step(i):
    nonlocal state
    state, metrics = compiled[0](state, batches[i % len(batches)])
    jax.block_until_ready((state, metrics))

  turns = workload.time_steps(args, step)
  return {
      'side': OURS,
      'device': jax.devices()[0].device_kind,
      'jax': jax.__version__,
      'compile_seconds': compile_seconds,
      'device_peak_bytes': (jax.devices()[0].memory_stats() or {}).get(
          'peak_bytes_in_use', 0
      ),
      'compiled_bytes': workload.planned_bytes(memory),
      **workload.report(
          args,
          turns,
          [rows_of(batch) for batch in host_batches],
          workload.NUM_BLOCKS[args.loss],
          ceiling['flops_per_second'],
      ),
  }


def make_step(
    args: argparse.Namespace,
    partitioner: training.Partitioner,
    model: models.DualEncoder,
    optimizer: training.Optimizer,
) -> tuple[step_lib.TrainState, Callable[..., Any]]:
  """The initial state on the mesh, and the step, not compiled yet."""
  objective = objectives.Contrastive(
      model,
      LOSSES[args.loss](),
      losses.Similarity(),
      micro_batch_size=args.micro_batch,
  )
  plan = step_lib.plan(objective, optimizer, partitioner, seed=0)
  return plan.init(), plan.train_step


def square_product(
    dtype: str, precision: jax.lax.PrecisionLike = None
) -> tuple[float, Callable[[], Any]]:
  """A large product on one device: its FLOP, and what computes it."""
  side = 2048 if jax.default_backend() == 'cpu' else 8192
  a = jax.random.normal(jax.random.key(0), (side, side), jnp.float32)
  a = a.astype(dtype)
  product = jax.jit(lambda a: jnp.dot(a, a, precision=precision))
  return 2.0 * side**3, lambda: product(a).block_until_ready()


def make_batches(
    args: argparse.Namespace, vocab_size: int
) -> list[dict[str, Any]]:
  """Batches as the loader makes them, of one shape; all texts are distinct."""
  sides = zip(*workload.token_batches(args, vocab_size))
  limits = args.query_length, args.passage_length
  cells = jax.device_count() * (args.batch // (args.micro_batch or args.batch))
  queries, passages = (
      laid_out(LAYOUTS[args.layout], list(tokens), limit, cells)
      for tokens, limit in zip(sides, limits)
  )
  ids = np.arange(2 * args.batch, dtype=np.uint32).reshape(-1, 2)
  return [
      {'queries': q, 'passages': p, 'query_ids': ids, 'passage_ids': ids}
      for q, p in zip(queries, passages)
  ]


def laid_out(
    layout: layouts.Layout, batches: list[np.ndarray], limit: int, cells: int
) -> list[text_rows.TextRows]:
  """Texts int32 [B, limit] of some batches, in a shape that holds them all."""
  lengths = [workload.lengths(tokens).reshape(cells, -1) for tokens in batches]
  shape = layout.shapes(np.concatenate(lengths), limit)[0]
  result = []
  for tokens, length in zip(batches, lengths):
    rows = np.arange(len(tokens)).reshape(cells, -1)
    offsets = np.concatenate([[0], np.cumsum(length)])
    flat = Ragged(tokens[tokens != workload.PAD], offsets)
    pool = Pool([(flat, np.zeros(len(tokens), np.uint64))])
    placement = layout.place(shape, length)
    result.append(layouts.lay_out(shape, placement, rows, length, pool.copy))
  return result


def rows_of(batch: dict[str, Any]) -> np.ndarray:
  """Tokens of each row of both towers, padding counted."""
  groups = [*batch['queries'].groups, *batch['passages'].groups]
  cells, rows, columns = zip(*(group.tokens.shape for group in groups))
  return np.repeat(columns, np.multiply(cells, rows))


if __name__ == '__main__':
  main()
