"""Encoding on an absent slice: one step, and real passages."""

from typing import Any, NamedTuple

from flax import linen as nn
import jax
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.forecast import layers, slices
from dualenc_jax.forecast.program import Forecast, measured, of_inputs
from dualenc_jax.forecast.work import of_texts, Work
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.models import abstract_params
from dualenc_jax.objectives.of_towers import OfTowers
from dualenc_jax.run import memory
from dualenc_jax.run.experiment import Experiment

# Steps of the most passages, for which small training data are repeated.
_STEPS = 16
LESS = (
    'Encode fewer rows at once (--gin.run.Experiment.eval_batch_size=), shard'
    ' the parameters over a model axis (--gin.MODEL_PARALLEL=), use'
    ' --gin.DTYPE=bfloat16, fewer tokens, or a smaller model.'
)


class Encoding(NamedTuple):
  """A step of encoding passages.

  Attributes:
    rows: passages of a device.
    length: tokens of each, the most.
    forecast: its program.
    work: its cost, on all devices.
  """

  rows: int
  length: int
  forecast: Forecast
  work: Work


class Real(NamedTuple):
  """Passages of a task, in the chunks that `encode` cuts.

  Attributes:
    passages: their number.
    device_slots: tokens of a device's rows, padding included.
    work: the cost of all.
  """

  passages: int
  device_slots: int
  work: Work


def forecast(experiment: Experiment, whole: bool = False) -> Encoding:
  """Compiles the passage tower for the devices of a `SlicePartitioner`.

  `whole` compiles all layers; see `layers.of_all`.
  """
  model = _towers(experiment).model
  length = experiment.tokenizer.passage_length
  embedder, params = _embedder(experiment)
  texts = np.full(experiment.eval_batch_size, length)
  rows = next(embedder.steps(texts))[0].rows
  devices = experiment.partitioner.mesh.shape['data']

  def of_model(experiment: Experiment) -> Forecast:
    embedder, params = _embedder(experiment)
    program = measured(
        embedder.lower('encode_passage', params, rows, length),
        f'Encoding {rows} passages of {length} tokens',
        slices.of(experiment.partitioner),
        LESS,
    )
    return of_inputs(program, _inputs(params, rows, length))

  inputs = _inputs(params, rows, length)
  # Nothing waits for a backward pass.
  found = layers.of_all(experiment, of_model, inputs, whole, ['temporaries'])
  lengths = np.full(devices * rows, length)
  return Encoding(
      rows, length, found, of_texts(model, 'passage', lengths, lengths)
  )


def of_passages(experiment: Experiment) -> Real:
  """Chunks of the training data's passages, repeated to fill all devices."""
  lengths = np.concatenate([
      cache.passage_tokens.lengths for cache in experiment.caches
  ])
  lengths = lengths[lengths > 0]
  devices = experiment.partitioner.mesh.shape['data']
  enough = _STEPS * devices * experiment.eval_batch_size
  lengths = np.resize(lengths, max(len(lengths), enough))
  embedder, _ = _embedder(experiment)
  steps = list(embedder.steps(lengths))
  padded = np.concatenate([
      np.full(chunk.rows, chunk.length) for step in steps for chunk in step
  ])
  return Real(
      len(lengths),
      sum(step[0].rows * step[0].length for step in steps),
      of_texts(_towers(experiment).model, 'passage', lengths, padded),
  )


def check(experiment: Experiment) -> None:
  """Raises UserError for an experiment without towers."""
  if not isinstance(experiment.objective, OfTowers):
    raise UserError(
        '--program=encode,search needs a dual encoder, but this config trains'
        f' {type(experiment.objective).__name__}. Leave --program out.'
    )


def _towers(experiment: Experiment) -> OfTowers:
  assert isinstance(experiment.objective, OfTowers)
  return experiment.objective


def _embedder(experiment: Experiment) -> tuple[Embedder, Any]:
  """The embedder of commands, and its abstract parameters."""
  partitioner, objective = experiment.partitioner, _towers(experiment)
  boxed = abstract_params(objective.model)
  params = jax.tree.map(
      lambda leaf, where: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=where
      ),
      nn.unbox(boxed),
      partitioner.param_shardings(boxed),
  )
  batch_size = experiment.eval_batch_size
  return objective.embedder(params, partitioner, batch_size), params


def _inputs(params: Any, rows: int, length: int) -> dict[str, int]:
  """Bytes; the parameters are those of both towers."""
  return {
      'parameters': memory.device_bytes(params), 'batch': 4 * rows * length
  }
