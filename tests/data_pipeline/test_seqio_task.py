"""The user's own tasks of seqio's registry."""

import sys
import textwrap

import pytest

from dualenc_jax.data import example, SeqioTask
from dualenc_jax.data.dataset import rows
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow


USER_MODULE = '''
  import seqio
  import tensorflow as tf

  TEXT = seqio.Feature(
      seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0
  )
  IDS = seqio.Feature(seqio.PassThroughVocabulary(1), dtype=tf.int32)
  PAIR = {'query': TEXT, 'passage': TEXT}


  def add(name, features, rows):
    def dataset(split, shuffle_files):
      return tf.data.Dataset.from_tensor_slices(rows)

    seqio.TaskRegistry.add(
        name,
        seqio.FunctionDataSource(dataset, ['train']),
        preprocessors=[],
        output_features=features,
    )


  add('user_pairs', PAIR, {'query': ['q1', 'q2'], 'passage': ['p1', 'p2']})
  add('user_no_passage', {'query': TEXT}, {'query': ['q1']})
  add('user_ids', PAIR | {'query': IDS}, {'query': [[5]], 'passage': ['p']})
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


def test_a_users_task(user_module):
  task = SeqioTask('user_pairs', module=user_module)
  assert task.splits() == ('train',)
  assert task.parts() == [(task, 1.0)]
  assert list(rows(task, 'train')) == [example('q1', 'p1'), example('q2', 'p2')]
  assert task.fingerprint('train') == task.fingerprint('train')


def test_unknown_names_and_other_features(user_module):
  with pytest.raises(UserError, match=r'by data\.Mixture: user_pairs'):
    SeqioTask('user_mixture', module=user_module).splits()
  with pytest.raises(UserError, match="Did you mean 'user_pairs'"):
    SeqioTask('user_pears', module=user_module).splits()
  with pytest.raises(UserError, match="no split 'test'.*Splits: train"):
    list(rows(SeqioTask('user_pairs', module=user_module), 'test'))
  with pytest.raises(UserError, match="'no_such_module' cannot be imported"):
    SeqioTask('x', module='no_such_module').splits()
  with pytest.raises(UserError, match="has no feature 'passage'"):
    list(rows(SeqioTask('user_no_passage', module=user_module), 'train'))
  with pytest.raises(UserError, match="'query': expected untokenised string"):
    list(rows(SeqioTask('user_ids', module=user_module), 'train'))
