"""Our side of the benchmarks: models of their sizes, and the training step."""

import argparse
import os
from typing import Any

# Sides share a GPU.
os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')

import harness  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import workload  # noqa: E402

from dualenc_jax import losses, models, objectives, training  # noqa: E402
from dualenc_jax.cli import process  # noqa: E402
from dualenc_jax.data import layouts, Packed, Padded, Ragged
from dualenc_jax.data.text.ragged import Pool  # noqa: E402
from dualenc_jax.training import step as step_lib  # noqa: E402

LAYOUTS = {'padded': Padded(), 'packed': Packed()}
LOSSES = {'softmax': losses.InBatchSoftmax, 'samtone': losses.SamToNe}

if jax.default_backend() == 'cpu':
  process.keep_freed_memory()  # As every command does.


def describe() -> dict[str, str]:
  device = jax.devices()[0]
  return {
      'device': device.device_kind,
      'platform': device.platform,
      'jax': jax.__version__,
  }


def ceiling(dtype: str = 'float32') -> dict[str, float]:
  """The best rates of a large product on one device.

  Of float32 at the precision that losses and search have.
  """
  precision = 'highest' if dtype == 'float32' else None
  side = 2048 if jax.default_backend() == 'cpu' else 8192
  a = jax.random.normal(jax.random.key(0), (side, side), jnp.float32)
  a = a.astype(dtype)
  product = jax.jit(lambda a: jnp.dot(a, a, precision=precision))
  return harness.best_rates(
      2.0 * side**3, lambda: product(a).block_until_ready()
  )


def device_peak_bytes() -> int:
  """The most of the device's memory so far; 0 on a CPU."""
  return (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use', 0)


def compiled(function: Any, *args: Any) -> tuple[Any, harness.Figures]:
  """The program; its compile_seconds, and XLA's plan of its memory.

  compiled_bytes counts donated arrays once.
  """
  programs: list[Any] = []
  seconds = harness.seconds(
      lambda: programs.append(function.lower(*args).compile())
  )
  plan = programs[0].memory_analysis()
  size = plan.argument_size_in_bytes + plan.temp_size_in_bytes
  size += plan.output_size_in_bytes - plan.alias_size_in_bytes
  return programs[0], {'compile_seconds': seconds, 'compiled_bytes': size}


def on_host() -> Any:
  """A context whose programs run on the CPU.

  A GPU's compiler takes minutes for one that draws parameters.
  """
  return jax.default_device(jax.local_devices(backend='cpu')[0])


def make_model(name: str, dtype: str, dropout_rate: float = 0.0):
  """The SDE as the shipped gin files have it."""
  sizes = workload.MODELS[name]
  options: dict[str, Any] = {
      'num_layers': sizes.num_layers, 'num_heads': sizes.num_heads,
      'head_dim': sizes.head_dim, 'mlp_dim': sizes.mlp_dim,
      'activations': ('gelu', 'linear'), 'dropout_rate': dropout_rate,
      'dtype': dtype,
  }
  if sizes.num_kv_heads is None:
    encoder: Any = models.T5Encoder(**options)
  else:
    options |= {'num_kv_heads': sizes.num_kv_heads, 'global_every': 1}
    encoder = models.GemmaEncoder(**options)
  return models.DualEncoder(
      token_embedder=models.TokenEmbedder(sizes.vocab_size, sizes.features),
      encoder=encoder,
      projection=models.Projection(sizes.embedding_dim),
  )


def make_optimizer(name: str) -> training.Optimizer:
  """The optimizer as the shipped gin files have it."""
  schedule = optax.constant_schedule(1e-3)
  if name == 'adamw':
    transform = optax.adamw(schedule, weight_decay=0.0)
  else:
    transform = optax.adafactor(
        schedule,
        min_dim_size_to_factor=128,
        decay_rate=0.8,
        multiply_by_parameter_scale=True,
        clipping_threshold=1.0,
    )
  return training.Optimizer(transform, schedule)


def make_plan(args: argparse.Namespace) -> step_lib.Plan:
  """The programs of a run on all devices."""
  objective = objectives.Contrastive(
      make_model(args.model, args.dtype, args.dropout_rate),
      LOSSES[args.loss](),
      losses.Similarity(),
      micro_batch_size=args.micro_batch,
  )
  return step_lib.plan(
      objective,
      make_optimizer(args.optimizer),
      training.Partitioner(),
      seed=0,
  )


class TrainStep:
  """Our training step, compiled."""

  def __init__(self, args: argparse.Namespace):
    self._args = args

  def prepare(self) -> None:
    """Compiles the step."""
    partitioner = training.Partitioner()
    plan = make_plan(self._args)
    self._state = _drawn(plan.abstract)
    host_batches = _batches(self._args)
    self._rows = [_rows_of(batch) for batch in host_batches]
    self._batches = [partitioner.to_device(batch) for batch in host_batches]
    self._program, self._planned = compiled(
        plan.train_step, self._state, self._batches[0]
    )

  def step(self, i: int) -> None:
    """Takes a step with batch `i`."""
    batch = self._batches[i % len(self._batches)]
    self._state, metrics = self._program(self._state, batch)
    jax.block_until_ready((self._state, metrics))

  def measure(self) -> harness.Figures:
    """Compiles and times the step."""
    args = self._args
    rates = ceiling(args.dtype)
    self.prepare()
    turns = workload.time_steps(args, self.step)
    return {
        **describe(),
        **self._planned,
        'device_peak_bytes': device_peak_bytes(),
        **workload.report(
            args,
            turns,
            self._rows,
            workload.NUM_BLOCKS[args.loss],
            rates['flops_per_second'],
        ),
    }


def _drawn(abstract: step_lib.TrainState) -> step_lib.TrainState:
  """A state with random kernels, ones for scales, and zeros for the rest.

  Not by the plan's `init`, which a GPU's compiler takes minutes for.
  """
  rng = np.random.default_rng(0)

  def param(leaf):
    if leaf.ndim == 1:
      return np.ones(leaf.shape, leaf.dtype)
    return 0.05 * rng.standard_normal(leaf.shape, leaf.dtype)

  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
  state = zeros._replace(params=jax.tree.map(param, abstract.params))
  return jax.device_put(state, jax.tree.map(lambda a: a.sharding, abstract))


def _batches(args: argparse.Namespace) -> list[dict[str, Any]]:
  """Batches as the loader makes them, of one shape; all texts are distinct."""
  sides = zip(*workload.token_batches(args))
  limits = args.query_length, args.passage_length
  cells = jax.device_count() * (args.batch // (args.micro_batch or args.batch))
  queries, passages = (
      _laid_out(LAYOUTS[args.layout], list(tokens), limit, cells)
      for tokens, limit in zip(sides, limits)
  )
  ids = np.arange(2 * args.batch, dtype=np.uint32).reshape(-1, 2)
  return [
      {'queries': q, 'passages': p, 'query_ids': ids, 'passage_ids': ids}
      for q, p in zip(queries, passages)
  ]


def _laid_out(
    layout: layouts.Layout, batches: list[np.ndarray], limit: int, cells: int
) -> list[layouts.TextRows]:
  """Texts int32 [B, limit] of some batches, in a shape that holds them all."""
  lengths = [workload.lengths(tokens).reshape(cells, -1) for tokens in batches]
  shape = layout.shapes(np.concatenate(lengths), limit)[0]
  result = []
  for tokens, length in zip(batches, lengths):
    rows = np.arange(len(tokens)).reshape(cells, -1)
    offsets = np.concatenate([[0], np.cumsum(length)])
    flat = Ragged(tokens[tokens != workload.PAD], offsets)
    pool = Pool([(flat, {})])
    placement = layout.place(shape, length)
    result.append(layouts.lay_out(shape, placement, rows, length, pool.copy))
  return result


def _rows_of(batch: dict[str, Any]) -> np.ndarray:
  """Tokens of each row of both towers, padding counted."""
  sides = batch['queries'], batch['passages']
  cells, rows, columns = zip(*(texts.tokens.shape for texts in sides))
  return np.repeat(columns, np.multiply(cells, rows))
