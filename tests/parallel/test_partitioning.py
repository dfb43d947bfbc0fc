"""The mesh, the shardings of parameters, rules over paths: what they refuse."""

from flax import linen as nn
import jax
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from dualenc_jax.parallel import partitioning
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)


def boxed(shape, *axes):
  return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, np.float32), axes)


def test_the_mesh_holds_every_device():
  mesh = Partitioner(4).mesh
  assert mesh.axis_names == ('data', 'model')
  assert mesh.devices.shape == (2, 4)
  assert {d.id for d in mesh.devices.flat} == set(range(8))
  for other in (0, 3, 16):
    with pytest.raises(
        UserError, match=f'MODEL_PARALLEL is {other}.*the 8 devices'
    ):
      Partitioner(other).mesh


def test_a_batch_that_the_data_axis_does_not_divide():
  for size in (0, 12, 4):
    with pytest.raises(UserError, match=f'IZE is {size}.*a multiple of 8'):
      Partitioner().check_batch_size('BATCH_SIZE', size)
  Partitioner(4).check_batch_size('BATCH_SIZE', 8)


def test_parameters_lie_where_the_rules_say():
  params = {
      'table': boxed((64, 16), 'vocab', 'embed'),
      'wi': boxed((16, 32), 'embed', 'mlp'),
      'scale': boxed((16,), 'embed'),
      'bare': jax.ShapeDtypeStruct((3,), np.float32),
  }

  def specs(*args):
    shardings = Partitioner(*args).param_shardings(params)
    return {k: tuple(v.spec) for k, v in shardings.items()}

  assert specs(4) == {
      'table': ('model', None), 'wi': (None, 'model'), 'scale': (None,),
      'bare': (),
  }
  assert specs(4, (('embed', 'data'), ('mlp', None))) == {
      'table': ('model', 'data'), 'wi': ('data', None), 'scale': ('data',),
      'bare': (),
  }


def test_axes_that_are_not_there_or_do_not_divide():
  params = {'encoder': {'wi': boxed((16, 30), 'embed', 'mlp')}}
  with pytest.raises(UserError, match="of 'embed' is 'fsdp'"):
    Partitioner(rules=(('embed', 'fsdp'),)).param_shardings(params)
  Partitioner(2).param_shardings(params)
  said = r"encoder/wi has the shape \(16, 30\).*'mlp' of 30 .* by the 4 devices"
  with pytest.raises(UserError, match=said):
    Partitioner(4).param_shardings(params)


def test_state_lives_where_its_parameter_does():
  partitioner = Partitioner(2)
  params = {
      'a': {'kernel': boxed((8, 4), 'embed', 'mlp')},
      # Ends in the path of the other, is another parameter.
      'b': {'a': {'kernel': boxed((4, 8), 'mlp', 'embed')}},
  }
  shardings = partitioner.param_shardings(params)
  abstract = nn.unbox(params)
  state = {
      'mu': abstract,
      'count': jax.ShapeDtypeStruct((), np.int32),
      'row': {'a': {'kernel': jax.ShapeDtypeStruct((8,), np.float32)}},
  }
  got = partitioner.state_shardings(state, abstract, shardings)
  assert got['mu']['a']['kernel'].spec == PartitionSpec(None, 'model')
  assert got['mu']['b']['a']['kernel'].spec == PartitionSpec('model', None)
  assert got['count'].is_fully_replicated
  assert got['row']['a']['kernel'].is_fully_replicated


def test_an_idle_gpu_is_an_error_with_the_fix(monkeypatch):
  monkeypatch.setattr(partitioning, 'has_gpu', lambda: True)
  # The platform is asked for.
  assert Partitioner().mesh.size == 8
  jax.config.update('jax_platforms', None)
  try:
    said = r'JAX sees only the CPU.*\[gpu\].*JAX_PLATFORMS=cpu'
    with pytest.raises(UserError, match=said):
      Partitioner().mesh
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    partitioning.check_gpu_is_used()
  finally:
    jax.config.update('jax_platforms', 'cpu')


PARAMS = {
    'encoder': {
        'layers_0': {'mlp': {'wo': {'kernel': 1}}, 'norm': {'scale': 2}},
        'layers_10': {'mlp': {'wo': {'kernel': 3}}},
    },
    'projection': {'kernel': 4},
}
PATHS = [
    'encoder/layers_0/mlp/wo/kernel', 'encoder/layers_0/norm/scale',
    'encoder/layers_10/mlp/wo/kernel', 'projection/kernel',
]


def test_the_first_rule_that_matches_a_whole_path_counts():
  assert partitioning.leaf_paths(PARAMS) == PATHS
  given = [(r'.*/layers_0/.*', 'a'), (r'.*kernel', 'b')]
  found = partitioning.match_rules('R', given, PATHS)
  assert found == dict(zip(PATHS, 'aabb'))
  # Paths without a rule are left out.
  assert partitioning.match_rules('R', [('projection/kernel', 1)], PATHS) == {
      PATHS[3]: 1
  }


@pytest.mark.parametrize(
    'rule, message',
    [
        ('projektion/kernel', "'projektion/kernel' .* as: projection/kernel"),
        ('rojection/kernel', 'must match a whole path'),
        ('projection/.*', "' has no effect: earlier rules match"),
        ('*.kernel', r"'\*\.kernel' is not a regular"),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error(rule, message):
  with pytest.raises(UserError, match=f'FREEZE: .*{message}'):
    partitioning.match_rules('FREEZE', [('.*kernel', 1), (rule, 1)], PATHS)
