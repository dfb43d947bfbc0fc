"""Slices of TPUs by name, and what the compiler knows of them."""

import importlib.metadata
import importlib.util

import jax
import pytest

from dualenc_jax.commands import cli
from dualenc_jax.errors import UserError
from dualenc_jax.forecast import report, slices
from dualenc_jax.forecast.program import Forecast, Program, Sent
from dualenc_jax.run import memory
from dualenc_jax.training import Partitioner


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('v5e', 'does not give the chips.*one of 1x1, 2x2'),
        ('', "no such TPU or GPU as ''"),
        ('v5e:16', 'does not give the chips'),
        ('v5e:3x3', 'no such slice of v5e; expected one of 1x1, 2x2, 2x4'),
        ('v5p:4x4', 'three sides, such as 2x2x1'),
        ('v5:4x4', "no such TPU or GPU as 'v5'.*Did you mean 'v5"),
        ('b7:8', "no such TPU or GPU as 'b7'.*Known: h100, h200, tpu7x, v2"),
        ('h100', 'has no number of GPUs; expected 1 to 8, or a multiple'),
        ('h100:4x4', 'has no number of GPUs'),
        ('h200:12', 'has no number of GPUs.*such as h200:8'),
        ('v5p:3x3x3', 'the compiler refuses it: .*three sides'),
    ],
)
def test_unknown_slices(name, message):
  with pytest.raises(UserError, match=f'--topology={name}.*{message}'):
    slices.find(name)


def test_without_the_compiler(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r'not installed.*tpu-check.*libtpu=='):
    slices.find('v5e:2x2')


def test_without_the_plugin_of_gpus(monkeypatch):
  def version(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, 'version', version)
  wanted = r"--topology=h100:.* not installed.*pip install -e '\.\[gpu\]'"
  with pytest.raises(UserError, match=wanted):
    slices.find('h100:8')


def test_another_compiler_than_jax_has(monkeypatch):
  assert slices.version_note() is None
  monkeypatch.setattr(slices.importlib.metadata, 'version', lambda _: '0.9.1')
  assert 'libtpu is 0.9.1; this JAX is built with 0.0.' in slices.version_note()


@pytest.mark.parametrize(
    ('name', 'devices', 'kind', 'model'),
    [
        ('v5e:4x4', 16, 'TPU v5 lite', 1),
        ('v5e:1x1', 1, 'TPU v5 lite', 1),
        ('v5p:2x2x2', 8, 'TPU v5', 1),
        ('v6e:2x4', 8, 'TPU v6 lite', 1),
        ('v5e:4x4', 16, 'TPU v5 lite', 2),
        ('v5e:8x8', 64, 'TPU v5 lite', 1),
        ('v5p:4x4x4', 64, 'TPU v5', 2),
    ],
)
def test_devices(name, devices, kind, model):
  """Both axes together go from wire to wire."""
  found = slices.find(name)
  assert {device.device_kind for device in found.devices} == {kind}
  mesh = slices.on_slice(Partitioner(model), found).mesh
  assert mesh.shape == {'data': devices // model, 'model': model}
  around = [device.coords for device in mesh.devices.flat]
  for a, b in zip(around, around[1:] + around[:1]):
    assert devices == 1 or sum(abs(x - y) for x, y in zip(a, b)) == 1
  assert jax.default_backend() == 'cpu'


@pytest.mark.parametrize(
    ('name', 'model'),
    [('v5e:8x8', 2), ('v5e:8x8', 8), ('v5e:16x16', 4), ('v5e:4x8', 8)],
)
def test_sums_over_either_axis_of_a_large_flat_slice(name, model):
  """The compiler refuses them in other orders."""
  on = slices.on_slice(Partitioner(model), slices.find(name))
  mesh = on.mesh
  rows = [[device.coords for device in row] for row in mesh.devices]
  for row in rows:
    for a, b in zip(row, row[1:]):
      assert sum(abs(x - y) for x, y in zip(a, b)) == 1
  split = jax.sharding.PartitionSpec('data', 'model')
  array = jax.ShapeDtypeStruct(
      mesh.devices.shape, 'float32',
      sharding=jax.sharding.NamedSharding(mesh, split),
  )
  for axis in mesh.axis_names:
    program = jax.jit(jax.shard_map(
        lambda x, axis=axis: jax.lax.psum(x, axis), mesh=mesh,
        in_specs=split, out_specs=jax.sharding.PartitionSpec(
            *(None if name == axis else name for name in mesh.axis_names)
        ),
    ))
    with slices.quiet():
      compiled = program.lower(array).compile()
    assert 'all-reduce' in compiled.as_text()


@pytest.mark.parametrize('model', [3, 32])
def test_a_mesh_that_does_not_divide(model):
  on = slices.on_slice(Partitioner(model), slices.find('v5e:4x4'))
  with pytest.raises(
      UserError, match=f'MODEL_PARALLEL is {model}; .* of the 16 devices'
  ):
    on.mesh  # noqa: B018


def test_a_batch_that_does_not_divide_the_slice():
  on = slices.on_slice(Partitioner(2), slices.find('v5e:4x4'))
  on.check_batch_size('BATCH_SIZE', 24)
  with pytest.raises(UserError, match='BATCH_SIZE is 20; .* multiple of 8'):
    on.check_batch_size('BATCH_SIZE', 20)


def test_peaks_are_the_makers():
  """Chips, Google's pages: TFLOP/s of bfloat16."""
  chips = {'v2': 46, 'v3': 123, 'v4': 275, 'v5e': 197, 'v5p': 459, 'v6e': 918}
  for name, peak in chips.items():
    found = slices.GENERATIONS[name]
    assert found.flops * found.cores == pytest.approx(1e12 * peak)
    assert 0.6e9 < found.clock < 2.3e9


def test_told_by_the_command(capsys):
  # A variable of a script that is not set, too.
  assert cli.main(['check', '--topology=', '--gin_file=x.gin']) == 2
  assert 'no such TPU or GPU' in capsys.readouterr().err
  assert cli.main(['check', '--topology=v5e:5x5', '--gin_file=x.gin']) == 2
  assert 'no such slice of v5e' in capsys.readouterr().err


def test_of_gpus_no_time_is_said():
  program = Program(
      memory.Stats(*[0] * len(memory.Stats._fields)),
      sent={'all-reduce': Sent(13, 2**20, 2**20, 0.5)},
  )
  devices = [None] * 8
  on = slices.Slice('h100:8', slices.GENERATIONS['h100'], devices, 'plug-in 1')
  said = list(report.step(Forecast({}, program), on, None))
  assert 'on h100:8, as plug-in 1 compiles it, which reports no' in said[0]
  assert said[-1] == f'  {"all-reduce":<22} {13:>6} times {"1.00":>10} MiB'
  assert not any(' ms' in line for line in said)
