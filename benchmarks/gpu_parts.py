"""The measurements of gpu.py that no other benchmark has; see README.md."""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import pathlib
import pkgutil
import platform
import re
import subprocess
import sys
import tempfile
from typing import Any

import harness
import workload

# A GPU machine need not have what only the input pipeline and extras use.
_ABSENT = ('tensorflow', 'seqio', 'gin')
_OPTIONAL = {
    *_ABSENT, 'bm25s', 'google', 'matplotlib', 'mteb', 'pyarrow',
    'pytrec_eval', 'sklearn', 'Stemmer', 't5x', 'tensorboardX',
}
_DISTRIBUTIONS = (
    'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy', 'torch',
    'transformers', 'sentence-transformers', 'faiss-cpu', 'faiss-gpu',
)
# Products of float32 by JAX's precisions, and by algorithms it names.
_PRECISIONS = ('default', 'high', 'highest')
_ALGORITHMS = (
    'TF32_TF32_F32', 'TF32_TF32_F32_X3', 'BF16_BF16_F32_X3',
    'BF16_BF16_F32_X6', 'BF16_BF16_F32_X9',
)
_TRACED = 3


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
      'part', choices=('imports', 'draw', 'precision', 'profile')
  )
  parser.add_argument('--side_length', type=int, default=8192)
  parser.add_argument('--layers', type=int, help='of the model, if not its own')
  parser.add_argument('--layout', choices=workload.LAYOUTS, default='packed')
  parser.add_argument('--loss', default='softmax')
  workload.add_flags(parser)
  args = parser.parse_args()
  print(json.dumps(globals()[f'_{args.part}'](args)))


def _imports(args: argparse.Namespace) -> dict[str, Any]:
  """Versions, the GPU, and which modules import without `_ABSENT`."""
  del args
  sys.modules |= dict.fromkeys(_ABSENT)  # Their import raises.
  import dualenc_jax

  found: dict[str, Any] = {'python': platform.python_version()}
  for name in _DISTRIBUTIONS:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  with contextlib.suppress(OSError):
    query = 'name,memory.total,driver_version,clocks.sm,clocks.max.sm'
    found['nvidia_smi'] = subprocess.run(
        ['nvidia-smi', f'--query-gpu={query}', '--format=csv,noheader'],
        capture_output=True, text=True,
    ).stdout.strip()
  absent: dict[str, list[str]] = {}
  failed, imported = {}, []
  for module in pkgutil.walk_packages(dualenc_jax.__path__, 'dualenc_jax.'):
    if module.name.endswith('__main__'):
      continue
    try:
      importlib.import_module(module.name)
      imported.append(module.name)
    except Exception as e:  # The other modules are imported all the same.
      # What is missing, of itself or behind an error of ours.
      missing = e if isinstance(e, ImportError) else e.__cause__
      package = (getattr(missing, 'name', None) or '').split('.')[0]
      if package in _OPTIONAL:
        absent.setdefault(package, []).append(module.name)
      else:
        failed[module.name] = harness.one_line(e)
  import ours

  return found | ours.describe() | {
      'imported': len(imported), 'absent': absent, 'failed': failed
  }


def _draw(args: argparse.Namespace) -> dict[str, Any]:
  """Seconds to compile and run the program that draws a run's state."""
  import jax
  import ours

  if args.layers:
    sizes = workload.MODELS[args.model]
    workload.MODELS[args.model] = dataclasses.replace(
        sizes, num_layers=args.layers
    )
  plan = ours.make_plan(args)
  program, planned = ours.compiled(jax.jit(plan.init))
  return planned | {
      'layers': args.layers or workload.MODELS[args.model].num_layers,
      'seconds': harness.seconds(lambda: jax.block_until_ready(program())),
  }


def _precision(args: argparse.Namespace) -> dict[str, Any]:
  """Errors of similarities over a temperature of 0.01, and rates, by product.

  Errors are the greatest, against float64.
  """
  import jax
  import jax.numpy as jnp
  import loss_sides
  import numpy as np

  size, dim = args.side_length, 768
  queries, passages = loss_sides.embeddings(size, dim)
  some = min(size, 512)
  exact = queries[:some].astype(np.float64) @ passages.T.astype(np.float64)
  arrays = [jax.device_put(x) for x in (queries, passages)]

  @functools.partial(jax.jit, static_argnums=2)
  def product(queries, passages, precision):
    return jnp.einsum('qd,pd->qp', queries, passages, precision=precision)

  names: dict[str, Any] = {name: name for name in _PRECISIONS}
  names |= {n: getattr(jax.lax.DotAlgorithmPreset, n) for n in _ALGORITHMS}
  found = {}
  for name, precision in names.items():
    try:
      scores = np.asarray(product(*arrays, precision)[:some], np.float64)
      error = 100 * np.abs(scores - exact)
      rate = harness.best_rates(
          2.0 * size**2 * dim,
          lambda: product(*arrays, precision).block_until_ready(),
      )
      found[name] = {
          'greatest_error': float(error.max()),
          'mean_error': float(error.mean()),
          **rate,
      }
      print(name, found[name], file=sys.stderr, flush=True)
    except Exception as e:  # Not every device has every algorithm.
      found[name] = {'left_out': harness.one_line(e)}
  print(harness.table('product | greatest error | mean | TFLOP/s', [
      f'{name} | {f["greatest_error"]:.2e} | {f["mean_error"]:.2e}'
      f' | {f["flops_per_second"] / 1e12:.1f}'
      for name, f in found.items() if 'left_out' not in f
  ]))
  return found


def _profile(args: argparse.Namespace) -> dict[str, Any]:
  """Milliseconds of a training step by operation, those of one kind summed."""
  import jax
  import ours

  train = ours.TrainStep(args)
  train.prepare()
  train.step(0)
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for i in range(_TRACED):
        train.step(i)
    traces = list(pathlib.Path(folder).rglob('*.xplane.pb'))
    events = _events(jax.profiler.ProfileData.from_file(str(traces[0])))
  kinds: dict[str, float] = {}
  for name, seconds in events.items():
    kind = re.sub(r'[._]?\d+', '', name)[:60]
    kinds[kind] = kinds.get(kind, 0.0) + seconds
  top = {
      what: dict(sorted(times.items(), key=lambda item: -item[1])[:count])
      for what, times, count in (('kinds', kinds, 30), ('events', events, 40))
  }
  total = sum(events.values())
  print(harness.table('kind | ms a step | share', [
      f'{kind} | {1e3 * s / _TRACED:.2f} | {s / total:.1%}'
      for kind, s in top['kinds'].items()
  ]))
  return {'steps': _TRACED, 'seconds': total} | top


def _events(profile: Any) -> dict[str, float]:
  """Seconds of each kernel of a GPU; on a CPU, of each operation."""
  planes = [p for p in profile.planes if p.name.startswith('/device:GPU')]
  found: dict[str, float] = {}
  for plane in planes or profile.planes:
    for line in plane.lines:
      if planes and not line.name.startswith('Stream'):
        continue  # Other lines have the same time again.
      for event in line.events:
        if planes or event.name[:1].islower():
          seconds = event.duration_ns / 1e9
          found[event.name] = found.get(event.name, 0.0) + seconds
  return found


if __name__ == '__main__':
  main()
