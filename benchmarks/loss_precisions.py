"""Precisions of the ring's products: their error and their speed.

The error is that of the two-way in-batch softmax and its gradient against
float64 NumPy, at a temperature where cosines must be good to six digits.
"""

import argparse
from collections.abc import Callable
from typing import Any

import harness
import jax
import jax.numpy as jnp
import loss_work as work
import numpy as np
import train_step

from dualenc_jax.losses import similarity
from dualenc_jax.losses.score_matrix import Matrix, Tags

ERROR_BATCH = 1024
ERROR_TEMPERATURE = 0.01
PRESETS = (
    'F32_F32_F32',
    'TF32_TF32_F32',
    'TF32_TF32_F32_X3',
    'BF16_BF16_F32_X3',
    'BF16_BF16_F32_X6',
    'BF16_BF16_F32_X9',
)
PLAIN = 'F32_F32_F32'


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures every precision at the largest of the batches; prints a table.

  Returns:
    precisions: a list of figures, or of why there are none.
  """
  precisions = {'highest': 'highest', 'default': None} | {
      name: getattr(jax.lax.DotAlgorithmPreset, name) for name in PRESETS
  }
  batch = args.batches[-1]
  large = [
      jax.device_put(x) for x in work.embeddings(batch, args.dim)
  ]
  found, runs = {}, {}
  outputs = {}
  for name, precision in precisions.items():
    found[name] = {'precision': name, 'batch': batch}
    try:
      outputs[name], errors = _errors(args, precision)
      found[name] |= errors
      ceiling = harness.best_rates(
          *train_step.square_product('float32', precision)
      )
      found[name]['ceiling_flops_per_second'] = ceiling['flops_per_second']
      runs[name] = _runner(args, precision, large)
      runs[name]()
    except Exception as e:  # An unsupported precision; the others go on.
      found[name]['left_out'] = harness.one_line(e)
      runs.pop(name, None)
  for name, output in outputs.items():
    found[name]['same_as_plain'] = PLAIN in outputs and all(
        np.array_equal(a, b) for a, b in zip(output, outputs[PLAIN])
    )
  rounds = {name: [] for name in runs}
  for _ in range(args.rounds):
    for name, run in runs.items():
      rounds[name].append(harness.timed(run, 1))
  needed = work.NEEDED['softmax'] * work.product_flops(
      batch, args.dim
  )
  for name, turns in rounds.items():
    found[name] |= harness.medians(turns)
    found[name]['times_the_floor'] = (
        found[name]['seconds']
        * found[name]['ceiling_flops_per_second']
        / needed
    )
  if not args.json:
    _print(batch, found)
  return {'precisions': list(found.values())}


def _runner(
    args: argparse.Namespace,
    precision: jax.lax.PrecisionLike,
    vectors: list[jax.Array],
    temperature: float | None = None,
) -> Callable[[], Any]:
  """What computes value and gradient for these embeddings."""
  temperature = temperature or args.temperature

  def value(vectors):
    query, passage = vectors
    ((rows, columns),) = similarity.log_partitions(
        [Matrix('query', 'passage')],
        {'query': query, 'passage': passage},
        [(Tags(), Tags())],
        temperature,
        implementation='ring',
        tile=args.tile,
        precision=precision,
    )
    positive = jnp.sum(query * passage, axis=1) / temperature
    both = jax.nn.softplus(rows.lse - positive)
    return jnp.mean(both + jax.nn.softplus(columns.lse - positive))

  compiled = jax.jit(jax.value_and_grad(value)).lower(vectors).compile()
  return lambda: jax.block_until_ready(compiled(vectors))


def _errors(
    args: argparse.Namespace, precision: jax.lax.PrecisionLike
) -> tuple[list[np.ndarray], dict[str, float]]:
  """Value and gradients, and their relative errors."""
  # Hard to tell apart, so that the loss is well above its rounding.
  vectors = work.embeddings(ERROR_BATCH, args.dim, shared=0.4)
  run = _runner(
      args, precision, list(map(jnp.asarray, vectors)), ERROR_TEMPERATURE
  )
  value, gradients = run()
  output = [np.asarray(value), *map(np.asarray, gradients)]
  expected = _reference(*vectors, ERROR_TEMPERATURE)
  value_error, *errors = (
      np.linalg.norm(found - right) / np.linalg.norm(right)
      for found, right in zip(output, expected)
  )
  return output, {
      'value_error': float(value_error),
      'gradient_error': float(max(errors)),
  }


def _reference(
    query: np.ndarray, passage: np.ndarray, temperature: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The loss, and its gradients, in float64."""
  query, passage = query.astype(np.float64), passage.astype(np.float64)
  scores = query @ passage.T / temperature
  value, d_scores = 0.0, 0.0
  for axis in (0, 1):
    shifted = np.exp(scores - scores.max(axis, keepdims=True))
    shares = shifted / shifted.sum(axis, keepdims=True)
    value -= np.mean(np.log(np.diag(shares)))
    d_scores += (shares - np.eye(len(scores))) / len(scores)
  d_scores /= temperature
  return value, d_scores @ passage, d_scores.T @ query


def _print(batch: int, found: dict[str, dict[str, Any]]) -> None:
  device = jax.devices()[0].device_kind
  print(
      f'{device}; errors at B {ERROR_BATCH}, temperature {ERROR_TEMPERATURE};'
      f' times at B {batch}\n\n'
      '| precision | relative error of the loss | of the gradient | ms'
      ' | core ms | ceiling, GFLOP/s | times the floor | |\n' + '|---' * 8 + '|'
  )
  for name, f in found.items():
    if 'seconds' not in f:
      print(f'| {name} | left out: {f["left_out"]} |')
      continue
    note = f'numbers of {PLAIN}' if f['same_as_plain'] else ''
    print(
        f'| {name} | {f["value_error"]:.1e} | {f["gradient_error"]:.1e}'
        f' | {f["seconds"] * 1e3:.1f} | {f["core_seconds"] * 1e3:.1f}'
        f' | {f["ceiling_flops_per_second"] / 1e9:.0f}'
        f' | {f["times_the_floor"]:.2f} | {note} |'
    )
