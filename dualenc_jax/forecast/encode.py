"""Encoding on an absent slice: one step."""

from typing import Any, NamedTuple

from flax import linen as nn
import jax
import numpy as np

from dualenc_jax.forecast import layers, program
from dualenc_jax.forecast.program import Forecast
from dualenc_jax.forecast.work import of_texts, Work
from dualenc_jax.models import abstract_params
from dualenc_jax.objectives.of_towers import OfTowers
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.training import memory
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError

LESS = (
    'Encode fewer rows at once (--gin.training.Experiment.eval_batch_size=),'
    ' shard the parameters over a model axis (--gin.MODEL_PARALLEL=), use'
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
    return program.forecast(
        embedder.lower('encode_passage', params, rows, length),
        f'Encoding {rows} passages of {length} tokens',
        _inputs(params, rows, length),
        LESS,
    )

  inputs = _inputs(params, rows, length)
  # Nothing waits for a backward pass.
  found = layers.of_all(experiment, of_model, inputs, whole, ['temporaries'])
  lengths = np.full(devices * rows, length)
  return Encoding(
      rows, length, found, of_texts(model, 'passage', lengths, lengths)
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
