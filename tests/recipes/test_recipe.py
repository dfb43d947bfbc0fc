"""Recipes: what runs, what is skipped, what is said."""

import dataclasses
import json
import logging
import pathlib
import shutil

import pytest
import tiny_run

from dualenc_jax.cli import recipe as command
from dualenc_jax.pipelines.recipes import Recipe, runner, Stage
from dualenc_jax.utils.errors import UserError


class Commands:
  """Stands for `dualenc`: copies --from to --to, and counts."""

  def __init__(self):
    self.ran = []
    self.fails = None

  def __call__(self, argv):
    name, *given = argv
    values = dict(flag.removeprefix('--').split('=', 1) for flag in given)
    self.ran.append(name)
    out = pathlib.Path(values['to'])
    out.mkdir(parents=True, exist_ok=True)
    if self.fails == name:
      (out / 'half').write_text('')
      return 3
    text = pathlib.Path(values['from']).read_text()
    (out / 'made').write_text(f'{text}, {name}{values.get("more", "")}')
    return 0


def stage(name, source, **options):
  flags = {'from': source, 'to': '{folder}', **options.pop('flags', {})}
  return Stage(name, flags, outputs={'made': 'made'}, **options)


@pytest.fixture
def chain(tmp_path):
  """Three stages from a file of the user's to the end."""
  source = tmp_path / 'source'
  source.write_text('source')
  inputs = [str(source), None, 'python_code_8k']
  return Recipe({
      'first': stage('first', str(source), inputs=inputs),
      'second': stage('second', '{first.made}'),
      'third': stage('third', '{second.made}'),
  })


def run(recipe, tmp_path, commands, given={}, **options):
  commands.ran.clear()
  work_dir = tmp_path / 'work'
  found = list(runner.run(recipe, work_dir, commands, given, **options))
  return {done.name: done.state for done in found}


def test_what_has_changed_runs_anew_and_keeps_what_was(chain, tmp_path, caplog):
  commands = Commands()
  first = run(chain, tmp_path, commands, until=['second'])
  assert commands.ran == ['first', 'second']
  first |= run(chain, tmp_path, commands)
  assert commands.ran == ['third']
  made = (tmp_path / 'work/third/made').read_text()
  assert made == 'source, first, second, third'
  again = run(chain, tmp_path, commands)
  assert again == dict.fromkeys(first, 'as before') and not commands.ran
  (tmp_path / 'source').write_text('other')
  with caplog.at_level(logging.WARNING):
    run(chain, tmp_path, commands)
  assert commands.ran == ['first', 'second', 'third']
  assert f'first runs anew: content of {tmp_path / "source"}' in caplog.text
  assert (tmp_path / 'work/first.1/made').read_text() == 'source, first'
  # A flag of one in the middle: that one and what reads it.
  other = stage('second', '{first.made}', flags={'more': '!'})
  changed = Recipe({**chain.stages, 'second': other})
  run(changed, tmp_path, commands)
  assert commands.ran == ['second', 'third']
  # An output that a hand has changed.
  (tmp_path / 'work/second/made').write_text('by hand')
  assert run(changed, tmp_path, commands)['second'] == 'as before'
  assert commands.ran == ['third']
  # One that is gone is made again; it is the same, and so is what reads it.
  shutil.rmtree(tmp_path / 'work/first')
  run(changed, tmp_path, commands)
  assert commands.ran == ['first']


def test_a_stage_that_failed_goes_on_in_its_folder(chain, tmp_path):
  commands = Commands()
  commands.fails = 'second'
  with pytest.raises(UserError, match='Stage second failed, with status 3'):
    run(chain, tmp_path, commands)
  record = tmp_path / 'work/.stages/second.json'
  spent = json.loads(record.read_text())['seconds']
  assert spent > 0
  done = []
  with pytest.raises(UserError):
    for each in runner.run(chain, tmp_path / 'work', commands):
      done.append(each)
  # The time of both tries counts.
  assert [each.state for each in done] == ['as before', 'failed']
  assert done[-1].seconds > spent
  commands.fails = None
  assert run(chain, tmp_path, commands) == {
      'first': 'as before', 'second': 'ran', 'third': 'ran'
  }
  # What it had made by then was there for it to go on with.
  assert (tmp_path / 'work/second/half').exists()
  assert not (tmp_path / 'work/second.1').exists()


def test_a_cell_of_a_grid_that_fails(tmp_path, caplog):
  """The others go on; a comparison is made of what there is, then of all."""
  commands = Commands()
  cells = {
      name: stage(name, str(tmp_path / 'source')) for name in ('a', 'b', 'c')
  }
  (tmp_path / 'source').write_text('source')
  results = {f'{n}_results': stage('read', f'{{{n}.made}}') for n in cells}
  systems = [f'{{{name}.made}}' for name in results]
  given = {}

  def compare(argv):
    paths = [pathlib.Path(a) for a in argv[1:] if not a.startswith('--')]
    given.update({p.parent.name: p.read_text() for p in paths if p.exists()})
    (out,) = (a for a in argv if a.startswith('--output_dir='))
    pathlib.Path(out.partition('=')[2]).mkdir(parents=True)
    return 0

  def execute(argv):
    return (compare if argv[0] == 'compare' else commands)(argv)

  table = Stage('compare', {'skip_missing': True}, systems)
  recipe = Recipe({
      **cells, **results, 'table': table,
      'whole': dataclasses.replace(table, flags={}),
      'against_b': dataclasses.replace(table, arguments=systems[1:]),
      'alone': dataclasses.replace(table, arguments=systems[:2]),
      'charts': dataclasses.replace(
          table, arguments=systems[::2],
          flags={**table.flags, 'over': '{b_results.made}'},
      ),
  })
  work_dir = tmp_path / 'work'
  # What an earlier run has left of a stage that fails now is not compared.
  (work_dir / 'b_results').mkdir(parents=True)
  (work_dir / 'b_results/made').write_text('of another model')

  def run(message=None):
    commands.ran.clear()
    given.clear()
    done = {}
    try:
      for each in runner.run(recipe, work_dir, execute, is_grid=True):
        done[each.name] = each.state
    except runner.StageFailed as e:
      assert e.status == 3 and str(e).startswith(message)
    else:
      assert message is None
    return done

  commands.fails = 'b'
  failed = {
      'b': 'failed', 'b_results': 'left out', 'whole': 'left out',
      **dict.fromkeys(('against_b', 'alone', 'charts'), 'left out'),
  }
  message = '1 of 11 stages failed: b. Run the recipe again'
  assert run(message) == {**dict.fromkeys(recipe.stages, 'ran'), **failed}
  assert [*given] == ['a_results', 'c_results']
  assert 'Stage b failed, with status 3; its error is above' in caplog.text
  for said in (
      'whole is left out: it lacks b_results.',
      'against_b is left out: it lacks its baseline, b_results.',
      'charts is left out: it lacks b_results.',
  ):
    assert f'Stage {said}' in caplog.text
  # The same again, and nothing else.
  assert run(message) == {**dict.fromkeys(recipe.stages, 'as before'), **failed}
  assert commands.ran == ['b']
  commands.fails = None
  again = {**dict.fromkeys(failed, 'ran'), 'table': 'ran'}
  assert run() == {**dict.fromkeys(recipe.stages, 'as before'), **again}
  assert [*given] == ['a_results', 'b_results', 'c_results']
  assert given['b_results'] == 'source, b, read'
  assert {*run().values()} == {'as before'}


def test_a_file_in_place_of_a_stage(chain, tmp_path):
  own = tmp_path / 'own'
  own.write_text('own')
  commands = Commands()
  given = {('second', 'made'): own}
  # What only the given one would have read is not made.
  assert run(chain, tmp_path, commands, given) == {
      'first': 'not wanted', 'second': 'given', 'third': 'ran'
  }
  assert commands.ran == ['third']
  lines = runner.command_lines(chain, tmp_path / 'work', given)
  assert [*lines] == ['third']
  made = (tmp_path / 'work/third/made').read_text()
  assert made == 'own, third'
  own.write_text('changed')
  run(chain, tmp_path, commands, given)
  assert commands.ran == ['third']
  with pytest.raises(UserError, match='No stage makes second.other, for which'):
    run(chain, tmp_path, commands, {('second', 'other'): own})


def test_a_gin_file_that_has_changed(chain, tmp_path):
  own = tmp_path / 'own.gin'
  own.write_text('A = 1')
  flags = {'gin_file': [str(own), 'tasks/pairs.gin']}
  source = chain.stages['first'].inputs[0]
  recipe = Recipe({'first': stage('first', source, flags=flags)})
  copy = Commands()
  assert run(recipe, tmp_path, copy) == {'first': 'ran'}
  assert run(recipe, tmp_path, copy) == {'first': 'as before'}
  own.write_text('A = 2')
  assert run(recipe, tmp_path, copy) == {'first': 'ran'}
  # Scores that a teacher has computed are not lost where flags change.
  (tmp_path / 'work/first/scores.tsv').write_text('q\tp\t1.0\n')
  made = dataclasses.replace(recipe.stages['first'], changes=[{'more': '!'}])
  more = Recipe({'first': made})
  assert run(more, tmp_path, copy) == {'first': 'ran'}
  assert (tmp_path / 'work/first/scores.tsv').exists()
  # Of other texts they are of no use.
  own = stage('first', source, flags=flags, inputs=[source])
  data = Recipe({'first': own})
  run(data, tmp_path, copy)
  (tmp_path / 'work/first/scores.tsv').write_text('q\tp\t1.0\n')
  pathlib.Path(source).write_text('others')
  assert run(data, tmp_path, copy) == {'first': 'ran'}
  assert not (tmp_path / 'work/first/scores.tsv').exists()
  # A folder that no record tells of is nothing to go on in.
  (tmp_path / 'work/.stages/first.json').unlink()
  assert run(recipe, tmp_path, copy) == {'first': 'ran'}
  assert (tmp_path / 'work/first.3').exists()


def test_what_a_stage_does_not_make(tmp_path, chain):
  (tmp_path / 'source').unlink()
  with pytest.raises(UserError, match='first: its input .*source does not'):
    run(chain, tmp_path, Commands())
  nothing = Recipe({'one': Stage('one', outputs={'made': 'made'})})
  with pytest.raises(UserError, match='Stage one ended without .*one/made'):
    list(runner.run(nothing, tmp_path / 'work', lambda argv: 0))


@pytest.mark.parametrize(
    'make, message',
    [
        (
            lambda: {'a': stage('a', 'x'), 'b': stage('b', '{a.mad}')},
            r"reads \{a.mad\}.* Did you mean 'a.made'",
        ),
        (lambda: {'a b': stage('a', 'x')}, "A stage is called 'a b'; expected"),
        (
            lambda: {'a': stage('a', 'x', each=['1', '2'])},
            "A stage is called 'a'; expected a word that no other",
        ),
        (lambda: {'a': Stage()}, 'Stage a has no command'),
    ],
)
def test_recipes_that_cannot_be(make, message):
  with pytest.raises(UserError, match=message):
    Recipe(make())


def test_flags_become_arguments():
  flags = {
      'a': 1, 'b': 'x', 'c': None, 'd': True, 'e': [['1', None], '2'],
      'gin.F': 0.5, 'gin.G': True, 'gin.H': ['q', 1], 'to': '{folder}/x',
  }
  made = Stage('data check', flags)
  assert made.command_line(pathlib.Path('work/one'), {}) == [
      'data', 'check', '--a=1', '--b=x', '--d', '--e=1', '--e=2',
      '--gin.F=0.5', '--gin.G=True', "--gin.H=['q', 1]", '--to=work/one/x',
  ]


def test_one_stage_for_each_value_and_flags_in_their_order():
  model = stage('a', 'x', flags={'p': 1, 'q': 2, 'r': 3})
  each = dataclasses.replace(
      stage('b', '{{each}.made}'), each=['one', 'two'], arguments=['{each}'],
      changes=[{'p': 4}, {'q': 5}], overrides={'q': None},
  )
  found = Recipe(
      {'one': model, 'two': model, 'of_{each}': each}, {'b': {'p': 0, 'z': 9}}
  ).stages
  assert [*found] == ['one', 'two', 'of_one', 'of_two']
  assert found['of_two'].flags == {
      'p': 4, 'q': None, 'z': 9, 'from': '{two.made}', 'to': '{folder}'
  }
  assert found['of_two'].arguments == ['two']


def test_a_model_is_what_it_computes(tmp_path):
  (tmp_path / 'checkpoints').mkdir()
  (tmp_path / 'checkpoints/1').write_text('one')
  before = runner.content(tmp_path)
  (tmp_path / 'evaluation').mkdir()
  (tmp_path / 'evaluation/metrics.json').write_text('{}')
  (tmp_path / 'report.html').write_text('')
  assert runner.content(tmp_path) == before
  (tmp_path / 'checkpoints/1').write_text('two')
  assert runner.content(tmp_path) != before


RECIPE = '''
from __gin__ import dynamic_registration
from dualenc_jax.pipelines import recipes
TEXTS = %gin.REQUIRED
recipes.Recipe.stages = {'pieces': @pieces/recipes.Stage()}
pieces/recipes.Stage:
  command = 'data vocabulary'
  inputs = [%TEXTS]
  flags = {'gin_file': 'tasks/pairs.gin', 'gin.TRAIN_FILE': %TEXTS,
           'output_file': '{folder}/own.model', 'size': 80}
  outputs = {'model': 'own.model'}
'''


def test_through_the_command(tmp_path, capfd):
  (tmp_path / 'own.gin').write_text(RECIPE)
  texts = tiny_run.write_pairs(tmp_path / 'train.jsonl', 96)
  asked = [
      f'--gin_file={tmp_path / "own.gin"}', f'--output_dir={tmp_path / "work"}',
      f'--gin.TEXTS={texts}',
  ]
  command.main([*asked, '--list'])
  said = capfd.readouterr().out
  assert said.startswith(
      '# pieces\ndualenc data vocabulary --gin_file=tasks/pairs'
  )
  assert not (tmp_path / 'work').exists()
  command.main(asked)
  said = capfd.readouterr().out
  assert '$ dualenc data vocabulary' in said and 'pieces  ran' in said
  assert (tmp_path / 'work/pieces/own.model').exists()
  command.main(asked)
  said = capfd.readouterr().out
  assert '$ dualenc' not in said and 'pieces  as before' in said


def test_what_is_wrong_is_said_before_anything_runs(
    tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(command, '_execute', lambda *_: 3)
  own = tmp_path / 'own.gin'
  texts = tiny_run.write_pairs(tmp_path / 'train.jsonl', 4)
  asked = [
      f'--gin_file={own}', f'--output_dir={tmp_path / "work"}',
      f'--gin.TEXTS={texts}',
  ]

  def refused(message, *given):
    with pytest.raises(UserError, match=message):
      command.main([*given])

  own.write_text(RECIPE)
  for more, message in (
      ('--until=other', "--until is 'other'; expected one of pieces"),
      ('--gin.TEXTS=x.jsonl', 'pieces: its input x.jsonl does not exist'),
  ):
    refused(message, *asked, more)
  refused('has no recipe', '--gin_file=tasks/pairs.gin', asked[1])
  refused('TEXTS must be given', *asked[:2])
  refused('Give --gin_file: recipes/daft.gin, re', asked[1])
  for old, new, message in (
      ("vocabulary'", "vocabulry'", "no command 'data vocabulry"),
      ("'size': 80", "'sise': 80", 'Stage pieces: unrecognized .*--sise=80'),
      ('80', "'x'", 'Stage pieces: --size is x; expected a whole'),
  ):
    own.write_text(RECIPE.replace(old, new))
    refused(message, *asked)
  # A stage that its command refuses has begun nothing.
  own.write_text(RECIPE.replace('80', '2'))
  with pytest.raises(SystemExit) as ended:
    command.main([*asked])
  assert ended.value.code == 3
  assert 'Stage pieces failed, with status 3' in capsys.readouterr().err
  assert not any((tmp_path / 'work').rglob('*.json'))
