"""Tasks through seqio: the readers' own examples, users' tasks, bad names."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from dualenc_jax.data.pairs import Pairs
from dualenc_jax.data.python_code import PythonCode
from dualenc_jax.data.task import SeqioMissing
from dualenc_jax.data.task import Task
from dualenc_jax.errors import UserError

USER_MODULE = '''
  import seqio
  import tensorflow as tf

  TEXT = seqio.Feature(
      seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0
  )
  IDS = seqio.Feature(seqio.PassThroughVocabulary(1), dtype=tf.int32)


  def add(name, features, rows):
    def dataset(split, shuffle_files):
      return tf.data.Dataset.from_tensor_slices(rows)

    seqio.TaskRegistry.add(
        name,
        seqio.FunctionDataSource(dataset, ['train']),
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
  seqio.MixtureRegistry.add('user_mixture', ['user_pairs'], default_rate=1.0)
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


def test_a_users_task_and_mixture(user_module):
  for name in ('user_pairs', 'user_mixture'):
    task = Task(name, module=user_module)
    assert task.splits() == ('train',)
    rows = list(task.examples('train'))
    assert [(e['query'], e['passage']) for e in rows] == [
        ('q1', 'p1'),
        ('q2', 'p2'),
    ]
    assert rows[0]['negatives'] == [] and rows[0]['query_id'] == ''
    assert task.fingerprint('train') == task.fingerprint('train')


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
  task = Task('pairs', {'train': pairs_file})
  assert task.fingerprint('train') == Pairs(train=pairs_file).fingerprint(
      'train'
  )
  with pytest.raises(SeqioMissing, match=r'dualenc-jax\[data\]'):
    list(task.examples('train'))


def test_importing_the_package_imports_no_tensorflow():
  code = (
      'import sys, dualenc_jax.data as d\n'
      "d.Task('python_code').fingerprint('train')\n"
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
  with pytest.raises(UserError, match=r'bad\.jsonl:2: not JSON'):
    list(Task('bad_mixture').examples('train'))
