"""Query towers of fewer layers: which layers they start from."""

import numpy as np
import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax.commands import check, train
from dualenc_jax.errors import UserError
from dualenc_jax.interop import opening
from dualenc_jax.training import light_query

KERNEL = 'attention/query/kernel'


@pytest.mark.parametrize(
    'which, wanted, there, chosen',
    [
        ('first', 2, 12, [0, 1]),
        ('last', 2, 12, [10, 11]),
        # Those that Wang and Lyu (2023) found best.
        ('ends', 4, 12, [0, 1, 10, 11]),
        ('ends', 3, 12, [0, 1, 11]),
        ('spread', 2, 12, [0, 11]),
        ('spread', 4, 12, [0, 4, 7, 11]),
        ('spread', 1, 12, [11]),
        ('spread', 12, 12, [*range(12)]),
        ((3, 1), 2, 4, [3, 1]),
    ],
)
def test_layers_by_name(which, wanted, there, chosen):
  assert light_query.layers(which, wanted, there) == chosen


@pytest.mark.parametrize(
    'which, wanted, there, message',
    [
        ('middle', 2, 12, "is 'middle'; expected one of first, last, spread"),
        ('first', 13, 12, 'QUERY_LAYERS is 13, but the checkpoint has only 12'),
        ((0, 12), 2, 12, r'is \(0, 12\); expected 2 numbers from 0 to 11'),
        ((0,), 2, 12, 'expected 2 numbers from 0 to 11'),
    ],
)
def test_layers_that_are_not_there(which, wanted, there, message):
  with pytest.raises(UserError, match=message):
    light_query.layers(which, wanted, there)


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  """A siamese model of four layers."""
  folder = tmp_path_factory.mktemp('teacher')
  flags = tiny_run.flags(folder, *DEEP)
  train.main([*flags, f'--model_dir={folder / "model"}'])
  return folder / 'model'


DEEP = ['--gin.models.T5Encoder.num_layers=4']
STILL = [
    *DEEP, '--gin_file=architectures/light_query.gin', '--gin.STEPS=1',
    '--gin.LEARNING_RATE=0.0',
]


def started(teacher, folder, *more):
  """Tensors of a light tower that was trained at rate 0, and the teacher's."""
  flags = tiny_run.flags(
      folder, *STILL, f'--gin.INITIAL_CHECKPOINT_PATH={teacher}', *more
  )
  train.main([*flags, f'--model_dir={folder / "light"}'])
  return (
      {name: tensor.read() for name, tensor in opening.read(d).tensors.items()}
      for d in (folder / 'light', teacher)
  )


@pytest.mark.slow
@pytest.mark.parametrize(
    'which, layers', [('spread', (0, 3)), ('last', (2, 3)), ('(1, 0)', (1, 0))]
)
def test_a_tower_of_two_starts_from_layers_of_four(
    teacher, tmp_path, which, layers
):
  light, there = started(teacher, tmp_path, f'--gin.QUERY_LAYERS_FROM={which}')
  for i, j in enumerate(layers):
    np.testing.assert_array_equal(
        light[f'encoder/layers_{i}/{KERNEL}'],
        there[f'encoder/layers_{j}/{KERNEL}'],
    )
  assert f'encoder/layers_2/{KERNEL}' not in light
  assert 'passage_projection/kernel' not in light
  for name, value in there.items():
    if not name.startswith('projection'):
      np.testing.assert_array_equal(light[f'passage_{name}'], value)
  for name in (
      'token_embedder/embedding', 'encoder/relpos_bias/rel_embedding',
      'encoder/encoder_norm/scale', 'projection/kernel',
  ):
    np.testing.assert_array_equal(light[name], there[name])


@pytest.mark.slow
def test_from_scratch_and_from_towers_of_its_own(teacher, tmp_path):
  light, there = started(
      teacher, tmp_path, '--gin.QUERY_LAYERS_FROM=scratch',
      '--gin.QUERY_LAYERS=3',
  )
  kernel = f'encoder/layers_2/{KERNEL}'
  assert np.any(light[kernel] != there[kernel])
  assert np.any(
      light['token_embedder/embedding'] != there['token_embedder/embedding']
  )
  np.testing.assert_array_equal(light[f'passage_{kernel}'], there[kernel])
  # Again from that: of the two towers there the passage tower's layers.
  (tmp_path / 'again').mkdir()
  again, before = started(
      tmp_path / 'light', tmp_path / 'again', '--gin.QUERY_LAYERS_FROM=first'
  )
  for name in ('encoder/layers_1/' + KERNEL, 'token_embedder/embedding'):
    np.testing.assert_array_equal(again[name], before[f'passage_{name}'])


@pytest.mark.slow
def test_from_a_checkpoint_of_its_own(teacher, tmp_path):
  small = tmp_path / 'small'
  small.mkdir()
  flags = tiny_run.flags(small, '--gin.SEED=1')
  train.main([*flags, f'--model_dir={small / "model"}'])
  light, there = started(
      teacher, tmp_path, f'--gin.QUERY_CHECKPOINT_PATH={small / "model"}'
  )
  own = {n: t.read() for n, t in opening.read(small / 'model').tensors.items()}
  assert f'encoder/layers_2/{KERNEL}' not in own
  for name, value in own.items():
    if not name.startswith('projection'):
      np.testing.assert_array_equal(light[name], value)
  for name, value in there.items():
    of_light = name if name.startswith('projection') else f'passage_{name}'
    np.testing.assert_array_equal(light[of_light], value)
  # Of another number of layers.
  with pytest.raises(UserError, match='QUERY_LAYERS is 3, and .* has 2 layers'):
    check.main([
        *tiny_run.flags(
            tmp_path, *STILL, f'--gin.INITIAL_CHECKPOINT_PATH={teacher}',
            f'--gin.QUERY_CHECKPOINT_PATH={small / "model"}',
            '--gin.QUERY_LAYERS=3',
        ),
        '--no_compile',
    ])


def test_what_cannot_start(tmp_path):
  start = f'--gin.INITIAL_CHECKPOINT_PATH={tiny_evaluation.shared_model()}'
  flags = tiny_run.flags(tmp_path, start, '--gin.QUERY_LAYERS_FROM=first')
  with pytest.raises(UserError, match='the towers share their encoder. Give'):
    check.main([*flags, '--no_compile'])
  # Another architecture after it leaves no trace.
  light = '--gin_file=architectures/light_query.gin', start
  check.main([
      *tiny_run.flags(tmp_path, *light), '--gin_file=architectures/sde.gin',
      '--no_compile',
  ])
