"""Stages once for each value of a macro."""

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.recipes import Recipe, Stage, sweep

MODEL = {'model': '.'}


def make():
  return Recipe(
      [
          Stage('teacher', 'train', {'gin.STEPS': 3}, MODEL),
          Stage(
              'light', 'train',
              {'gin.LAYERS': 2, 'gin.FROM': '{teacher.model}'}, MODEL,
          ),
          Stage('tuned', 'train', {'gin.FROM': '{light.model}/x'}, MODEL),
          Stage('other', 'evaluate', {'model_dir': '{teacher.model}'}),
          Stage(
              'table', 'compare',
              {'results': ['{tuned.model}', '{teacher.model}']},
              arguments=['{teacher.model}', '{light.model}', '{tuned.model}'],
          ),
      ],
      {'train': {'gin.SEED': 0}},
  )


def shown(recipe):
  return {s.name: (dict(s.flags), list(s.arguments)) for s in recipe.stages}


def test_what_depends_on_it_is_repeated_and_lists_have_all():
  found = shown(sweep(make(), 'LAYERS', ['1', '4']))
  seed = {'gin.SEED': 0}
  assert found['teacher'] == ({**seed, 'gin.STEPS': 3}, [])
  for n in ('1', '4'):
    flags = {**seed, 'gin.LAYERS': n, 'gin.FROM': '{teacher.model}'}
    assert found[f'light_{n}'] == (flags, [])
    flags = {**seed, 'gin.FROM': f'{{light_{n}.model}}/x'}
    assert found[f'tuned_{n}'] == (flags, [])
  assert found['other'] == ({'model_dir': '{teacher.model}'}, [])
  tuned = ['{tuned_1.model}', '{tuned_4.model}']
  assert found['table'] == (
      {'results': [*tuned, '{teacher.model}']},
      ['{teacher.model}', '{light_1.model}', '{light_4.model}', *tuned],
  )
  assert len(found) == 7


def test_a_flag_of_all_stages_of_a_command_repeats_them_all():
  both = sweep(sweep(make(), 'LAYERS', ['1', '4']), 'SEED', ['0', '1'])
  found = shown(both)
  assert len(found) == 2 + 4 + 4 + 2 + 1
  assert found['tuned_4_1'][0] == {
      'gin.SEED': '1', 'gin.FROM': '{light_4_1.model}/x'
  }
  assert found['other_1'][0] == {'model_dir': '{teacher_1.model}'}
  assert len(found['table'][1]) == 2 + 4 + 4


@pytest.mark.parametrize('values', [['0.1', '0_1'], ['1', '']])
def test_bad_sweeps(values):
  with pytest.raises(UserError, match='LAYERS has the values .* expected'):
    sweep(make(), 'LAYERS', values)
