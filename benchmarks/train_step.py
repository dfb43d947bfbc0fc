"""Times a training step on synthetic tokens; see benchmarks/README.md.

Alone it measures our step. With --peer_python, the Python of an environment
that has sentence-transformers, it alternates processes of ours and theirs.
"""

import argparse
import json
from typing import Any

import alternate
import jax
import jax.numpy as jnp
import numpy as np
import workload

from dualenc_jax import config
from dualenc_jax import losses
from dualenc_jax import models
from dualenc_jax import runtime
from dualenc_jax import training
from dualenc_jax.training import step as step_lib

VOCAB_SIZE = 32128
LOSSES = {'softmax': losses.InBatchSoftmax, 'samtone': losses.SamToNe}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
      '--model', default='mini', help='a file of gin/models, without .gin'
  )
  parser.add_argument('--loss', choices=LOSSES, default='softmax')
  parser.add_argument('--json', action='store_true', help='print JSON only')
  workload.add_flags(parser)
  alternate.add_flags(parser)
  args = parser.parse_args()
  model, optimizer = build(args)
  if args.peer_python:
    alternate.run(args, sizes_of(model))
    return
  if jax.default_backend() == 'cpu':
    runtime.keep_freed_memory()  # As every command does.
  figures = measure(args, model, optimizer)
  if not args.json:
    print(
        f'{figures["device"]}, {args.model}, batch {args.batch},'
        f' {args.query_length} + {args.passage_length} tokens, {args.dtype};'
        f' compiled in {figures["compile_seconds"]:.1f} s,'
        f' {figures["compiled_bytes"] / 1e6:.0f} MB'
    )
    workload.show('dualenc_jax', figures)
  print(json.dumps(figures))


def build(
    args: argparse.Namespace,
) -> tuple[models.DualEncoder, training.Optimizer]:
  """The SDE and the optimizer of the shipped gin files."""
  config.load(
      [
          f'models/{args.model}.gin',
          'architectures/sde.gin',
          f'optimizers/{args.optimizer}.gin',
      ],
      [
          f'models.TokenEmbedder.vocab_size = {VOCAB_SIZE}',
          f'models.T5Encoder.dropout_rate = {args.dropout_rate}',
          f'models.T5Encoder.dtype = {args.dtype!r}',
          'SCHEDULE = @optax.constant_schedule()',
          'optax.constant_schedule.value = 1e-3',
          'training.Optimizer.transform = %OPTIMIZER',
          'training.Optimizer.learning_rate = %SCHEDULE',
      ],
  )
  return config.build(models.DualEncoder), config.build(training.Optimizer)


def sizes_of(model: models.DualEncoder) -> workload.Sizes:
  """The model in the words of the benchmark."""
  encoder = model.encoder
  return workload.Sizes(
      num_layers=encoder.num_layers,
      features=model.token_embedder.features,
      num_heads=encoder.num_heads,
      head_dim=encoder.head_dim,
      mlp_dim=encoder.mlp_dim,
      gated=len(encoder.activations) == 2,
      embedding_dim=model.projection.features,
      vocab_size=model.token_embedder.vocab_size,
  )


def measure(
    args: argparse.Namespace,
    model: models.DualEncoder,
    optimizer: training.Optimizer,
) -> dict[str, Any]:
  """Compiles and times our step."""
  ceiling = matrix_ceiling(args.dtype)
  partitioner = training.Partitioner()
  loss = LOSSES[args.loss]()
  _, shardings, init, transform = step_lib.make_init(
      model, loss, optimizer, partitioner, seed=0
  )
  train_step = step_lib.make_train_step(
      model,
      loss,
      optimizer.learning_rate,
      transform,
      partitioner,
      shardings,
      seed=0,
  )
  state = init()
  batches = [
      partitioner.to_device(with_ids(*tokens))
      for tokens in workload.token_batches(args, VOCAB_SIZE)
  ]
  compiled = []
  compile_seconds = workload.seconds(
      lambda: compiled.append(train_step.lower(state, batches[0]).compile())
  )
  memory = compiled[0].memory_analysis()

  def step(i):
    nonlocal state
    state, metrics = compiled[0](state, batches[i % len(batches)])
    jax.block_until_ready((state, metrics))

  times = workload.time_steps(args, step)
  return {
      'side': 'dualenc_jax',
      'device': jax.devices()[0].device_kind,
      'jax': jax.__version__,
      'compile_seconds': compile_seconds,
      'compiled_bytes': memory.argument_size_in_bytes
      + memory.temp_size_in_bytes
      + memory.output_size_in_bytes
      - memory.alias_size_in_bytes,
      **workload.report(
          args,
          sizes_of(model),
          times,
          [(args.query_length, args.passage_length)],
          workload.NUM_BLOCKS[args.loss],
          ceiling,
      ),
  }


def matrix_ceiling(dtype: str) -> float:
  """The best rate of a large square product on one device, in FLOP/s."""
  side = 2048 if jax.default_backend() == 'cpu' else 8192
  a = jax.random.normal(jax.random.key(0), (side, side), jnp.float32)
  a = a.astype(dtype)
  product = jax.jit(jnp.dot)
  return workload.best_rate(
      2 * side**3, lambda: product(a, a).block_until_ready(), repeats=10
  )


def with_ids(query: np.ndarray, passage: np.ndarray) -> dict[str, np.ndarray]:
  """A batch as the loader makes it; the rows are distinct, so are the ids."""
  ids = np.arange(2 * len(query), dtype=np.uint32).reshape(-1, 2)
  return {
      'query_tokens': query,
      'passage_tokens': passage,
      'query_ids': ids,
      'passage_ids': ids,
  }


if __name__ == '__main__':
  main()
