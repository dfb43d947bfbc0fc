"""Stages once for each value of a macro."""

import pytest

from dualenc_jax.pipelines.recipes import Recipe, Stage, sweep
from dualenc_jax.utils.errors import UserError


def make(**sweeps):
  return Recipe(
      {
          'teacher': Stage('train', {'gin.STEPS': 3}),
          'light': Stage(
              'train', {'gin.LAYERS': '{LAYERS}', 'gin.FROM': '{teacher.model}'}
          ),
          'tuned': Stage(
              'train',
              {'gin.FROM': '{light.model}/x', 'gin_file': ['{light.model}']},
          ),
          'other': Stage('read', {'model_dir': '{teacher.model}'}),
          'table': Stage(
              'tabulate',
              {'results': ['{tuned.model}', '{teacher.model}'],
               'names': 'a,b,{LAYERS}', 'lines': 'a,b,c'},
              ['{teacher.model}', '{light.model}', '{tuned.model}'],
          ),
      },
      {'train': {'gin.SEED': '{SEED}'}},
      sweeps,
  )


def shown(recipe):
  return {
      name: (dict(stage.flags), list(stage.arguments))
      for name, stage in recipe.stages.items()
  }


def test_what_depends_on_it_is_repeated_and_lists_have_all():
  found = shown(sweep(make(), {'LAYERS': ['1', '4']}))
  seed = {'model_dir': '{folder}', 'gin.SEED': '{SEED}'}
  assert found['teacher'] == ({**seed, 'gin.STEPS': 3}, [])
  for n in (1, 4):
    # A place alone has the value as Gin would read it.
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
       'names': 'a,b LAYERS=1,b LAYERS=4,1,4', 'lines': 'a,b,b,c,c'},
      ['{teacher.model}', '{light_1.model}', '{light_4.model}', *tuned],
  )
  assert len(found) == 7


def test_a_flag_of_all_stages_of_a_command_repeats_them_all():
  found = sweep(make(), {'LAYERS': ['1', '4'], 'SEED': ['0', '1']})
  assert len(found.stages) == 2 + 4 + 4 + 2 + 1
  assert found.copies['light'] == [
      'light_1_0', 'light_1_1', 'light_4_0', 'light_4_1'
  ]
  stages = shown(found)
  assert stages['tuned_4_1'][0]['gin.FROM'] == '{light_4_1.model}/x'
  assert stages['tuned_4_1'][0]['gin.SEED'] == 1
  assert stages['other_1'][0] == {'model_dir': '{teacher_1.model}'}
  assert len(stages['table'][1]) == 2 + 4 + 4


def test_a_stage_that_does_not_run_is_there_once():
  found = sweep(make(), {'SEED': ['0', '1']}, once=['teacher', 'light'])
  assert [*found.stages] == [
      'teacher', 'light', 'tuned_0', 'tuned_1', 'other', 'table'
  ]
  assert found.stages['tuned_1'].flags['gin.FROM'] == '{light.model}/x'
  # Nor may it read what is there for each value.
  found = sweep(make(), {'SEED': ['0', '1']}, once=['light'])
  assert found.stages['light'].flags['gin.FROM'] == '{teacher_0.model}'


def test_a_grid():
  """Sweeps of the recipe: stages for some values, comparisons by a macro."""
  sets = ['ms', 'qa/nq']
  grid = Recipe(
      {
          'model': Stage(
              'train', {'gin_file': ['losses/{LOSS}.gin', 'tasks/{SET}.gin']},
              inputs=['t5_{LOSS}'],
          ),
          'results': Stage('evaluate', {'model_dir': '{model.model}'}),
          'beir': Stage(
              'evaluate', {'model_dir': '{model.model}'},
              sweeps={'SET': ['ms'], 'SEED': [0, 1]},
          ),
          'table': Stage(
              'compare', {'names': 'a {LOSS}'}, ['{results.results}'],
              sweeps={'SEED': []},
          ),
          'beir_table': Stage(
              'compare', {'names': '{LOSS}'}, ['{beir.results}']
          ),
          'maps': Stage(
              'analyze', {'model_dir': ['{model.model}'], 'names': '{LOSS}'},
              sweeps={'SET': ['qa/nq']},
          ),
      },
      {'train': {'gin.SEED': '{SEED}'}},
      {'LOSS': ['x', 'y'], 'SET': sets},
  )

  def swept(chosen, **more):
    return sweep(grid, {'LOSS': ['x', 'y'], 'SET': chosen, **more})

  stages = swept(sets).stages
  assert stages['model_x_qa_nq'].flags['gin_file'] == [
      'losses/x.gin', 'tasks/qa/nq.gin'
  ]
  assert stages['model_y_ms'].inputs == ['t5_y']
  assert [n for n in stages if 'beir' in n or 'maps' in n] == [
      'beir_x_ms', 'beir_y_ms', 'beir_table', 'maps_qa_nq'
  ]
  # Sets need no place in names, those of seeds are said.
  assert stages['table'].flags['names'] == 'a x,a x,a y,a y'
  assert stages['table'].arguments == [
      f'{{results_{loss}_{name}.results}}'
      for loss in 'xy' for name in ('ms', 'qa_nq')
  ]
  assert stages['maps_qa_nq'].flags == {
      'model_dir': ['{model_x_qa_nq.model}', '{model_y_qa_nq.model}'],
      'names': 'x,y', 'output_dir': '{folder}',
  }
  seeds = swept(sets, SEED=['0', '1']).stages
  assert seeds['table_1'].flags['names'] == 'a x,a x,a y,a y'
  assert seeds['table_1'].arguments[0] == '{results_x_ms_1.results}'
  assert seeds['beir_table'].flags['names'] == (
      'x SEED=0,x SEED=1,y SEED=0,y SEED=1'
  )
  # Nothing is left of what no value needs.
  found = swept(['qa/nq'])
  assert [n for n in found.stages if 'beir' in n] == []
  assert found.copies['beir'] == found.copies['beir_table'] == []
  assert len(found.stages['table'].arguments) == 2
  # One value of the recipe's own is enough; its systems are one.
  found = swept(['ms', 'qa/nq'], LOSS=['y'])
  assert [*found.stages] == [
      'model_y_ms', 'model_y_qa_nq', 'results_y_ms', 'results_y_qa_nq',
      'beir_y_ms', 'maps_qa_nq',
  ]
  assert found.copies['table'] == []
  # A place in names alone has the one value.
  named = Recipe(
      {'table': Stage('compare', {'names': '{SIZE},b'}, ['x', 'y'])},
      sweeps={'SIZE': [1, 2]},
  )
  stages = sweep(named, {'SIZE': ['2']}).stages
  assert stages['table'].flags['names'] == '2,b'
  with pytest.raises(UserError, match='SIZE: its values change no stage'):
    sweep(named, named.sweeps)


@pytest.mark.parametrize(
    'values', [['0.1', '0_1'], ['1', ''], ['1'], ['1', '1']]
)
def test_bad_sweeps(values):
  with pytest.raises(UserError, match='LAYERS has the values .* expected two'):
    sweep(make(), {'LAYERS': values})
  with pytest.raises(UserError, match='LAYERS: its values change no stage'):
    sweep(Recipe({'one': Stage('x')}), {'LAYERS': ['1', '2']})
