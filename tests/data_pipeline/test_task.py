"""Tasks through seqio: the readers' own examples, users' tasks, bad names."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from dualenc_jax.data.reader import example
from dualenc_jax.data.task import SeqioMissing, Task
from dualenc_jax.errors import UserError
from dualenc_jax.readers.pairs import Pairs
from dualenc_jax.readers.python_code import PythonCode

USER_MODULE = '''
  import seqio
  import tensorflow as tf

  TEXT = seqio.Feature(
      seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0
  )
  IDS = seqio.Feature(seqio.PassThroughVocabulary(1), dtype=tf.int32)


  def add(name, features, rows, splits=('train',)):
    def dataset(split, shuffle_files):
      return tf.data.Dataset.from_tensor_slices(rows)

    seqio.TaskRegistry.add(
        name,
        seqio.FunctionDataSource(dataset, splits),
        preprocessors=[],
        output_features=features,
    )


  add(
      'user_pairs',
      {'query': TEXT, 'passage': TEXT},
      {'query': ['q1', 'q2'], 'passage': ['p1', 'p2']},
  )
  add('user_no_passage', {'query': TEXT}, {'query': ['q1']})
  add(
      'user_ids',
      {'query': IDS, 'passage': TEXT},
      {'query': [[5]], 'passage': ['p']},
  )
  add(
      'user_more',
      {'query': TEXT, 'passage': TEXT},
      {'query': ['q3'], 'passage': ['p3']},
      ['train', 'validation'],
  )
  seqio.MixtureRegistry.add(
      'user_mixture', [('user_pairs', 1.0), ('user_more', lambda task: 3.0)]
  )
  seqio.MixtureRegistry.add('user_validated', ['user_more'], default_rate=1.0)
'''


@pytest.fixture(scope='module')
def user_module(tmp_path_factory):
  folder = tmp_path_factory.mktemp('user')
  name = 'user_tasks_of_this_test'
  (folder / f'{name}.py').write_text(textwrap.dedent(USER_MODULE))
  sys.path.insert(0, str(folder))
  yield name
  sys.path.remove(str(folder))


@pytest.fixture
def pairs_file(tmp_path):
  rows = [
      {'query': 'q1', 'passage': 'p1', 'negatives': ['n1', 'naïve 中']},
      {'query': 'q2', 'passage': 'p2'},
      {'query': 'q3', 'passage': 'p3', 'query_id': 'id3', 'name': 'x'},
  ]
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def test_pairs_through_seqio_are_the_readers_own(pairs_file):
  task = Task('pairs', {'train': pairs_file})
  expected = list(Pairs(train=pairs_file).examples('train'))
  assert list(task.examples('train')) == expected
  assert list(task.examples('train')) == expected
  assert task.splits() == ('train',)
  assert task.fingerprint('train') == Pairs(train=pairs_file).fingerprint(
      'train'
  )


def test_python_code_through_seqio_is_the_readers_own():
  roots = [os.path.dirname(json.__file__)]
  expected = list(PythonCode(roots).examples('all'))
  got = list(Task('python_code', {'roots': roots}).examples('all'))
  assert got == expected and len(got) > 5


def test_seqio_dataset_of_strings(pairs_file):
  import seqio

  from dualenc_jax.data import seqio_source

  seqio_source.add_task('test_strings', Pairs(train=pairs_file))
  dataset = seqio.get_mixture_or_task('test_strings').get_dataset(
      sequence_length=None, split='train', shuffle=False
  )
  rows = list(dataset.as_numpy_iterator())
  assert [row['query'] for row in rows] == [b'q1', b'q2', b'q3']
  assert [row['negatives'].tolist() for row in rows] == [
      [b'n1', 'naïve 中'.encode()],
      [],
      [],
  ]


def test_a_readers_error_comes_through_tensorflow_unchanged(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"query": "q", "passage": "p"}\nnonsense\n')
  task = Task('pairs', {'train': str(path)})
  with pytest.raises(UserError, match=r'a\.jsonl:2: not JSON'):
    list(task.examples('train'))


def test_a_users_task(user_module):
  task = Task('user_pairs', module=user_module)
  assert task.splits() == ('train',)
  assert task.parts() == [(task, 1.0)]
  rows = list(task.examples('train'))
  assert rows == [example('q1', 'p1'), example('q2', 'p2')]
  assert task.fingerprint('train') == task.fingerprint('train')


def test_a_users_mixture(user_module):
  """Its parts have the rates of seqio, by number or by function."""
  mixture = Task('user_mixture', module=user_module)
  assert mixture.splits() == ('train',)
  # A split that could not be read is not offered, though all parts have it.
  assert Task('user_more', module=user_module).splits() == (
      'train',
      'validation',
  )
  assert Task('user_validated', module=user_module).splits() == ('train',)
  (more, more_rate), (pairs, pairs_rate) = mixture.parts()
  assert (pairs.name, more.name) == ('user_pairs', 'user_more')
  assert (pairs_rate, more_rate) == (0.25, 0.75)
  assert list(more.examples('train')) == [example('q3', 'p3')]
  with pytest.raises(UserError, match='one of its tasks here: '):
    list(mixture.examples('train'))


def test_a_users_task_of_other_features(user_module):
  with pytest.raises(UserError, match="has no feature 'passage'"):
    list(Task('user_no_passage', module=user_module).examples('train'))
  with pytest.raises(UserError, match="'query': expected untokenised strings"):
    list(Task('user_ids', module=user_module).examples('train'))


def test_unknown_names(user_module, pairs_file):
  with pytest.raises(UserError, match="Did you mean 'python_code'.*pairs"):
    Task('python_cod').splits()
  with pytest.raises(UserError, match="Did you mean 'user_pairs'"):
    Task('user_pears', module=user_module).splits()
  with pytest.raises(UserError, match="no split 'test'.*Splits: train"):
    list(Task('user_pairs', module=user_module).examples('test'))
  with pytest.raises(UserError, match="Did you mean 'validation'"):
    list(Task('python_code').examples('valid'))
  with pytest.raises(UserError, match='--gin.TEST_FILE='):
    list(Task('pairs', {'train': pairs_file}).examples('test'))
  with pytest.raises(UserError, match="option 'trian'. Did you mean 'train'"):
    Task('pairs', {'trian': pairs_file}).splits()
  with pytest.raises(UserError, match="'no_such_module' cannot be imported"):
    Task('x', module='no_such_module').splits()


def test_without_seqio(monkeypatch, pairs_file):
  monkeypatch.setitem(sys.modules, 'seqio', None)
  task, reader = Task('pairs', {'train': pairs_file}), Pairs(train=pairs_file)
  assert task.fingerprint('train') == reader.fingerprint('train')
  assert list(task.examples('train')) == list(reader.examples('train'))
  with pytest.raises(SeqioMissing, match=r'dualenc-jax\[data\]'):
    Task('user_pairs', module='some_module').splits()


def test_importing_the_package_imports_no_tensorflow():
  code = (
      'import sys, dualenc_jax.data as d\n'
      "next(d.Task('python_code').examples('train'))\n"
      "assert not {'tensorflow', 'seqio'} & set(sys.modules)\n"
      "try: d.Task('python_cod').splits()\n"
      "except d.task.UserError: assert 'seqio' not in sys.modules\n"
      "else: raise AssertionError('no error')\n"
  )
  subprocess.run([sys.executable, '-c', code], check=True)


def test_a_bad_row_in_a_part_of_a_mixture_is_raised(tmp_path):
  import seqio

  from dualenc_jax.data import seqio_source

  path = tmp_path / 'bad.jsonl'
  path.write_text('{"query": "a b", "passage": "c"}\nnot JSON\n')
  seqio_source.add_task('bad_part', Pairs(train=str(path)))
  seqio.MixtureRegistry.add('bad_mixture', ['bad_part'], default_rate=1.0)
  ((part, _),) = Task('bad_mixture').parts()
  with pytest.raises(UserError, match=r'bad\.jsonl:2: not JSON'):
    list(part.examples('train'))


def test_a_bad_row_behind_preprocessors_is_raised(tmp_path):
  import seqio

  from dualenc_jax.data import seqio_source

  path = tmp_path / 'bad.jsonl'
  path.write_text('{"query": "a b", "passage": "c"}\nnot JSON\n')
  task = seqio_source.add_task('bad_source', Pairs(train=str(path)))
  seqio.TaskRegistry.add(
      'bad_upper',
      source=task.source,
      preprocessors=[lambda dataset: dataset.map(lambda row: row)],
      output_features=task.output_features,
  )
  with pytest.raises(UserError, match=r'bad\.jsonl:2: not JSON'):
    list(Task('bad_upper').examples('train'))


@pytest.mark.parametrize('name', ['pairs', 'python_code'])
def test_seqio_yields_what_the_reader_does(name, tmp_path, pairs_file):
  """The tasks of tasks/ are in seqio's registry, once they are registered."""
  module = tmp_path / f'registers_{name}.py'
  folder = tmp_path / 'code'
  folder.mkdir()
  (folder / 'a.py').write_text(
      'def add(a, b):\n  """Adds two numbers up."""\n  return a + b\n'
  )
  options = {
      'pairs': {'train': pairs_file},
      'python_code': {'roots': (str(folder),)},
  }[name]
  split = {'pairs': 'train', 'python_code': 'all'}[name]
  own = list(Task(name, options).examples(split))
  module.write_text(
      'import importlib\n'
      'from dualenc_jax.data import task\n'
      'task._tasks_package()\n'
      f"importlib.import_module('dualenc_jax.tasks.{name}').register("
      f"'registered_{name}', **{options!r})\n"
  )
  sys.path.insert(0, str(tmp_path))
  try:
    registered = Task(f'registered_{name}', module=module.stem)
    assert list(registered.examples(split)) == own and own
    assert registered.fingerprint(split) == Task(name, options).fingerprint(
        split
    )
    import seqio

    dataset = seqio.get_mixture_or_task(f'registered_{name}').get_dataset(
        sequence_length=None, split=split, shuffle=False, num_epochs=1
    )
    rows = list(dataset.as_numpy_iterator())
    assert [row['passage'].decode() for row in rows] == [
        row['passage'] for row in own
    ]
    assert {row['relevance'] for row in rows} == {1}
  finally:
    sys.path.remove(str(tmp_path))


def test_identity_leaves_out_where_files_are():
  pairs = Task(
      'pairs',
      {'train': '/a/train.jsonl', 'test': '/a/t.jsonl', 'query': 'question'},
  )
  assert pairs.identity('train') == {
      'train': 'train.jsonl',
      'query': 'question',
  }
  assert pairs.identity('test') == {'test': 't.jsonl', 'query': 'question'}
  beir = Task(
      'beir',
      {
          'dataset': 'scifact',
          'root': '/a',
          'data_root': None,
          'files': {'test': 'qrels/x.tsv'},
          'hard_negatives': '/b/negatives.jsonl',
          'max_negatives': 5,
      },
  )
  assert beir.identity('train') == {
      'dataset': 'scifact',
      'files': {'test': 'x.tsv'},
      'hard_negatives': 'negatives.jsonl',
      'max_negatives': 5,
  }
  assert beir.identity('corpus') == {
      'dataset': 'scifact',
      'files': {'test': 'x.tsv'},
  }
  user = Task('mine', {}, module='some_module')
  assert user.identity('train') == {}
