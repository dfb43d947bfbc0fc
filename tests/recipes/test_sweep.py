"""Stages once for each value of a macro."""

import pytest

from dualenc_jax.pipelines.recipes import Recipe, Stage, sweep
from dualenc_jax.utils.errors import UserError


def make(layers=2, seed=0):
  return Recipe(
      {
          'teacher': Stage('train', {'gin.STEPS': 3}),
          'light': Stage(
              'train', {'gin.LAYERS': layers, 'gin.FROM': '{teacher.model}'}
          ),
          'tuned': Stage(
              'train',
              {'gin.FROM': '{light.model}/x', 'gin_file': ['{light.model}']},
          ),
          'other': Stage('read', {'model_dir': '{teacher.model}'}),
          'table': Stage(
              'tabulate',
              {'results': ['{tuned.model}', '{teacher.model}'],
               'names': 'a,b,c'},
              ['{teacher.model}', '{light.model}', '{tuned.model}'],
          ),
      },
      {'train': {'gin.SEED': seed}},
  )


def swept(values=('1', '4'), seed=0):
  return sweep('LAYERS', {v: make(v, seed) for v in values})


def shown(recipe):
  return {
      name: (dict(stage.flags), list(stage.arguments))
      for name, stage in recipe.stages.items()
  }


def test_what_depends_on_it_is_repeated_and_lists_have_all():
  found = shown(swept())
  seed = {'model_dir': '{folder}', 'gin.SEED': 0}
  assert found['teacher'] == ({**seed, 'gin.STEPS': 3}, [])
  for n in ('1', '4'):
    flags = {**seed, 'gin.LAYERS': n, 'gin.FROM': '{teacher.model}'}
    assert found[f'light_{n}'] == (flags, [])
    # Not the configs of both, of which the last would win.
    flags = {**seed, 'gin.FROM': f'{{light_{n}.model}}/x',
             'gin_file': [f'{{light_{n}.model}}']}
    assert found[f'tuned_{n}'] == (flags, [])
  assert found['other'] == ({'model_dir': '{teacher.model}'}, [])
  tuned = ['{tuned_1.model}', '{tuned_4.model}']
  assert found['table'] == (
      {'results': [*tuned, '{teacher.model}'],
       'names': 'a,b LAYERS=1,b LAYERS=4,c LAYERS=1,c LAYERS=4'},
      ['{teacher.model}', '{light_1.model}', '{light_4.model}', *tuned],
  )
  assert len(found) == 7


def test_a_flag_of_all_stages_of_a_command_repeats_them_all():
  found = shown(sweep('SEED', {n: swept(seed=n) for n in '01'}))
  assert len(found) == 2 + 4 + 4 + 2 + 1
  assert found['tuned_4_1'][0]['gin.FROM'] == '{light_4_1.model}/x'
  assert found['other_1'][0] == {'model_dir': '{teacher_1.model}'}
  assert len(found['table'][1]) == 2 + 4 + 4


@pytest.mark.parametrize('values', [['0.1', '0_1'], ['1', ''], ['1']])
def test_bad_sweeps(values):
  with pytest.raises(UserError, match='LAYERS has the values .* expected'):
    swept(values)
