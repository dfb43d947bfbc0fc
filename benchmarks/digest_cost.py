"""What the digests of a checkpoint add to saving it.

  python benchmarks/digest_cost.py

A model of about 60 million random float32 parameters, saved `--repeat` times,
with Adafactor's or AdamW's state. Prints medians: seconds of the digests, until
`save` (which computes them, too) returns, and until all is on disk; the same in
seconds of all cores, which others on the machine change less; and the digests'
share.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dualenc_jax.models import (
  abstract_params,
  DualEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.tensor_files import digests, digests_on_devices
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.step import TrainState


def make_state(optimizer: str) -> TrainState:
  """Random parameters of T5 small with towers apart, on the mesh."""
  model = DualEncoder(
      TokenEmbedder(32128, 512),
      T5Encoder(6, 8, 64, 1024),
      Projection(768),
      TokenEmbedder(32128, 512),
      T5Encoder(6, 8, 64, 1024),
  )
  rng = np.random.default_rng(0)
  replicated = Partitioner().replicated
  params = jax.tree.map(
      lambda a: jax.device_put(
          rng.standard_normal(a.shape, np.float32), replicated
      ),
      nn.unbox(abstract_params(model)),
  )
  makers = {'adafactor': optax.adafactor, 'adamw': optax.adamw}
  state = jax.jit(
      makers[optimizer](1e-3).init, out_shardings=replicated
  )(params)
  step = jax.device_put(jnp.int32(1), replicated)
  return TrainState(step, params, state)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
      '--optimizer', choices=('adafactor', 'adamw'), default='adafactor'
  )
  parser.add_argument('--repeat', type=int, default=5)
  parser.add_argument('--folder', help='where to save; a temporary one')
  args = parser.parse_args()
  state = jax.block_until_ready(make_state(args.optimizer))
  count = sum(a.size for a in jax.tree.leaves(state.params))
  items = {'params': state.params, 'optimizer': state.opt_state}
  tensors = len(jax.tree.leaves(items))
  start = time.perf_counter()
  digests_on_devices.of_trees(items)
  print(
      f'{jax.devices()[0].device_kind} x {jax.device_count()}: {count:,}'
      f' parameters and {args.optimizer}, {tensors} tensors; compiled in'
      f' {time.perf_counter() - start:.1f} s.'
  )
  names = 'digests', 'until save returns', 'until all is on disk'
  clocks = {
      'ms': time.perf_counter, 'ms of a core': time.process_time
  }
  times = {(name, unit): [] for unit in clocks for name in names}

  def now() -> list[float]:
    return [clock() for clock in clocks.values()]

  with tempfile.TemporaryDirectory(dir=args.folder) as folder:
    checkpoints = Checkpoints(folder, keep=1)
    for step in range(args.repeat + 1):
      marks = [now()]
      digests_on_devices.of_trees(items)
      marks.append(now())
      checkpoints.save(state, step + 1, {})
      marks.append(now())
      checkpoints.wait()
      marks.append(now())
      for unit, at in zip(clocks, zip(*marks)):
        spans = at[1] - at[0], at[2] - at[1], at[3] - at[1]
        if step:  # The first opens what the others find open.
          for name, seconds in zip(names, spans):
            times[name, unit].append(seconds)
    size = sum(
        p.stat().st_size for p in pathlib.Path(folder).rglob('*') if p.is_file()
    )
  medians = {name: statistics.median(values) for name, values in times.items()}
  for (name, unit), seconds in medians.items():
    share = medians['digests', unit] / seconds
    print(f'{name}: {1e3 * seconds:,.0f} {unit}; the digests are {share:.1%}')
  print(f'On disk: {size / 2**20:,.0f} MiB.')
  host = np.asarray(jax.tree.leaves(state.params)[-1])
  digests.of_array(host)
  start = time.process_time()
  digests.of_array(host)
  spent = time.process_time() - start
  print(f'In NumPy, where a model is opened: {1e9 * spent / host.size:.1f} ns'
        ' a parameter.')


if __name__ == '__main__':
  main()
