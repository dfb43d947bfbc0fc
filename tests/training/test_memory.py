"""Planned memory, against sizes worked out by hand and other compiles."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import optax
import pytest
import tiny_training

from dualenc_jax.data import Padded
from dualenc_jax.losses import InBatchSoftmax, Loss
from dualenc_jax.objectives import Contrastive
from dualenc_jax.training import memory, Optimizer, Partitioner
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

MIB = 2**20
FSDP = (('embed', 'data'),)
QUERY_LENGTH, PASSAGE_LENGTH = 6, 10
MODEL = tiny_training.make_model()
# SGD compiles faster than Adam.
SGD = Optimizer(optax.sgd(1e-3), lambda step: 1e-3)
ADAM = Optimizer(optax.adam(1e-3), lambda step: 1e-3)


@dataclasses.dataclass(frozen=True)
class Rowwise(Loss):
  """A loss that needs no more than a few numbers a row."""

  def __call__(self, params, batch, similarity):
    value = -jnp.mean(jnp.sum(batch.query * batch.passage, axis=1))
    return value, {'loss': value}


def make_experiment(
    partitioner, loss, batch_size=16, optimizer=SGD, micro_batch_size=None
):
  tokenizer = types.SimpleNamespace(
      vocabulary=types.SimpleNamespace(size=tiny_training.VOCAB),
      query_length=QUERY_LENGTH,
      passage_length=PASSAGE_LENGTH,
  )
  return Experiment(
      model_dir='unused',
      objective=Contrastive(
          MODEL, loss, tiny_training.SIMILARITY,
          micro_batch_size=micro_batch_size, layout=Padded(),
      ),
      task=types.SimpleNamespace(parts=list),
      tokenizer=tokenizer,
      optimizer=optimizer,
      partitioner=partitioner,
      steps=1,
      batch_size=batch_size,
  )


# Parameters of the model: table [64, 32]; 4 kernels of attention [32, 32], 3 of
# the MLP [32, 64]; 3 norms [32]; projection [32, 16]; relative positions
# [4, 32]; temperature [].
KERNELS = 64 * 32 + 4 * 32 * 32 + 3 * 32 * 64
# The kernels over both axes, norms and projection over data, heads over model.
SHARDED = KERNELS // 8 + (3 * 32 + 32 * 16) // 4 + 4 * 32 // 2 + 1


def test_parts_are_those_of_the_arrays_on_a_device():
  experiment = make_experiment(
      Partitioner(2, FSDP), tiny_training.LOSS, optimizer=ADAM
  )
  compiled = memory.compile_step(experiment)
  parts = memory.memory_parts(experiment, compiled)
  assert parts['parameters'] == 4 * SHARDED
  # Adam has two twins of each parameter and a count; and the step is counted.
  assert parts['optimizer state'] == 2 * 4 * SHARDED + 4 + 4
  tokens, fingerprints = QUERY_LENGTH + PASSAGE_LENGTH, 2 * 2
  # Of both texts its length and its number in its cell, and the pair's number.
  layout = 2 * 2 + 1
  assert parts['batch'] == 16 // 4 * 4 * (tokens + fingerprints + layout)
  # On the CPU nothing is padded: metrics are left, a few numbers each.
  assert 0 < parts['other'] < 2048
  # A device's own gradients wait for the others'.
  assert parts['temporaries'] >= 4 * SHARDED


# Bytes of a batch; the experiments' own state comes first.
CURVES = {
    'affine': lambda b: 1e9 + 5e6 * b,
    'flat, then affine': lambda b: max(2e9, 1e6 * b),
    'quadratic': lambda b: 1e6 * b + 500 * b * b,
    'rough': lambda b: 1e6 * b * (1 + 0.03 * math.sin(1.7 * b)),
    'stairs': lambda b: 1e6 * 2 ** math.ceil(math.log2(b)),
    'cliff': lambda b: 1e6 * b if b < 3000 else math.inf,
}


@pytest.mark.parametrize('curve', CURVES)
@pytest.mark.parametrize('unit, start', [(1, 2), (8, 40000), (512, 512)])
def test_few_probes_find_the_size_on_any_curve(curve, unit, start):
  limit, sizes = 16e9, range(max(unit, 2), 2**24 + 1, unit)
  probes = []

  def measure(size):
    assert size in sizes and size not in probes
    probes.append(size)
    return CURVES[curve](size)

  peaks = memory.search_sizes(measure, sizes, start, 0, limit)
  assert list(peaks) == probes
  largest = max(size for size in peaks if peaks[size] <= limit)
  above = min(size for size in peaks if peaks[size] > limit)
  assert above - largest <= max(unit, 0.02 * largest)
  many = {'quadratic': 10, 'stairs': 20, 'cliff': 14}
  assert len(probes) <= many.get(curve, 9)


def with_peaks(monkeypatch, curve):
  """Replaces what the compiler says by a curve."""
  monkeypatch.setattr(memory, 'measure_peak', lambda e: curve(e.batch_size))


@pytest.mark.parametrize(
    'partitioner,micro,unit',
    [(Partitioner(2), None, 4), (Partitioner(), 24, 24)],
)
def test_sizes_divide_over_devices_and_micro_batches(
    monkeypatch, partitioner, micro, unit
):
  with_peaks(monkeypatch, lambda size: MIB * size)
  probes = {}
  fit = memory.fit_batch(
      make_experiment(
          partitioner, InBatchSoftmax(), 48, micro_batch_size=micro
      ),
      1000 * MIB,
      probes.__setitem__,
  )
  assert all(size % unit == 0 for size in probes)
  # 950 fit; the answer may be 2% short of that, or one size.
  assert 950 - max(unit, 19) < fit.batch_size <= 950
  assert fit.peak == fit.batch_size * MIB


def test_a_compiler_out_of_memory_says_how_much(monkeypatch):
  def fail(*_, **__):
    raise jax.errors.JaxRuntimeError(
        'RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used'
        ' 19.46G of 15.75G hbm.\n\n  1. Size: 14.00G\n'
    )

  experiment = make_experiment(tiny_training.OneDevice(), Rowwise(), 128)
  monkeypatch.setattr(jax.stages.Lowered, 'compile', fail)
  said = r'step of 128 pairs .*19.46G of 15.75G hbm\. --fit_batch finds'
  with pytest.raises(memory.OutOfMemory, match=said):
    memory.measure_peak(experiment)


def test_what_never_fits_says_what_it_needs_and_what_to_do(monkeypatch):
  experiment = make_experiment(Partitioner(), Rowwise(), 512)
  with_peaks(monkeypatch, lambda size: (80 + size) * MIB)
  with pytest.raises(
      UserError,
      match=r'the step of 8 pairs needs 88\.0 MiB a device, and at most 95% of'
      r' its 90\.0 MiB(.|\n)*MICRO_BATCH_SIZE.*fsdp.*remat.*bfloat16',
  ):
    memory.fit_batch(experiment, 90 * MIB)
  # The parameters, 52 kB, are more than 0.04 MiB: nothing is compiled.
  with_peaks(monkeypatch, lambda size: pytest.fail('compiled'))
  with pytest.raises(UserError, match='state of parameters and optimizer'):
    memory.fit_batch(experiment, MIB // 25)
