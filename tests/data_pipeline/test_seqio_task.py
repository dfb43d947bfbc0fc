"""Tasks of seqio's registry: the user's own, and those made of readers."""

import sys
import textwrap

import pytest

from dualenc_jax.data import example, SeqioTask
from dualenc_jax.data.dataset import rows
from dualenc_jax.data.readers import Pairs
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module', autouse=True)
def import_tensorflow():
  """In the one worker that runs these tests: it takes half a gigabyte."""
  global seqio, seqio_adapter, tf
  import seqio
  import tensorflow as tf

  from dualenc_jax.data import seqio_adapter


USER_MODULE = '''
  import seqio
  import tensorflow as tf

  TEXT = seqio.Feature(
      seqio.PassThroughVocabulary(1), add_eos=False, dtype=tf.string, rank=0
  )
  IDS = seqio.Feature(seqio.PassThroughVocabulary(1), dtype=tf.int32)
  PAIR = {'query': TEXT, 'passage': TEXT}


  def add(name, features, rows, splits=('train',)):
    def dataset(split, shuffle_files):
      return tf.data.Dataset.from_tensor_slices(rows)

    seqio.TaskRegistry.add(
        name,
        seqio.FunctionDataSource(dataset, splits),
        preprocessors=[],
        output_features=features,
    )


  add('user_pairs', PAIR, {'query': ['q1', 'q2'], 'passage': ['p1', 'p2']})
  add('user_no_passage', {'query': TEXT}, {'query': ['q1']})
  add('user_ids', PAIR | {'query': IDS}, {'query': [[5]], 'passage': ['p']})
  rows = {'query': ['q3'], 'passage': ['p3']}
  add('user_more', PAIR, rows, ['train', 'validation'])
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


def test_a_users_task(user_module):
  task = SeqioTask('user_pairs', module=user_module)
  assert task.splits() == ('train',)
  assert task.parts() == [(task, 1.0)]
  assert list(rows(task, 'train')) == [example('q1', 'p1'), example('q2', 'p2')]
  assert task.fingerprint('train') == task.fingerprint('train')


def test_a_users_mixture(user_module):
  """Its parts have the rates of seqio, by number or by function."""
  mixture = SeqioTask('user_mixture', module=user_module)
  assert mixture.splits() == ('train',)
  # A split that could not be read is not offered, though all parts have it.
  assert SeqioTask('user_more', user_module).splits() == ('train', 'validation')
  assert SeqioTask('user_validated', module=user_module).splits() == ('train',)
  (more, more_rate), (pairs, pairs_rate) = mixture.parts()
  assert (pairs.label, more.label) == ('user_pairs', 'user_more')
  assert (pairs_rate, more_rate) == (0.25, 0.75)
  assert list(rows(more, 'train')) == [example('q3', 'p3')]
  with pytest.raises(UserError, match='one of its tasks: '):
    list(rows(mixture, 'train'))


def test_unknown_names_and_other_features(user_module):
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


def test_a_bad_row_is_raised(tmp_path):
  """Not a data set that ends early, whoever reads it."""
  path = tmp_path / 'bad.jsonl'
  path.write_text('{"query": "a b", "passage": "c"}\nnot JSON\n')
  bad_pairs = Pairs(train=str(path))
  seqio_adapter.register('bad', lambda: bad_pairs, ('train',))
  bad = seqio.get_mixture_or_task('bad')
  seqio.MixtureRegistry.add('bad_mixture', ['bad'], default_rate=1.0)
  seqio.TaskRegistry.add(
      'bad_upper', source=bad.source,
      preprocessors=[lambda dataset: dataset.map(lambda row: row)],
      output_features=bad.output_features,
  )
  ((part, _),) = SeqioTask('bad_mixture').parts()
  with pytest.raises(UserError, match=r'bad\.jsonl:2: not JSON'):
    list(rows(part, 'train'))
  with pytest.raises(tf.errors.OpError, match=r'bad\.jsonl:2: not JSON'):
    list(rows(SeqioTask('bad_upper'), 'train'))
