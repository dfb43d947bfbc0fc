"""The tasks that `import tasks` puts into seqio's registry."""

import gzip
import pathlib
import shutil

import pytest

from dualenc_jax.data import readers, Vocabulary
from dualenc_jax.data.dataset import Dataset, rows
from dualenc_jax.data.readers import beir
from dualenc_jax.data.readers.multireqa import SETS
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.nightly

DATA = pathlib.Path(__file__).parents[1] / 'data'
SAFE = str.maketrans('-/', '__')


@pytest.fixture(scope='module')
def data_root(tmp_path_factory) -> pathlib.Path:
  """The small files of tests/data, as the benchmarks have them."""
  root = tmp_path_factory.mktemp('data')
  shutil.copytree(DATA / 'msmarco', root / 'msmarco')
  shutil.copytree(DATA / 'beir' / 'toy', root / 'beir' / 'scifact')
  for name, qa_set in SETS.items():
    for split in ('train', 'test') if qa_set.train_pairs else ('test',):
      sources = 'contexts.jsonl', 'candidates.json'
      for (names, _), source in zip(qa_set.files(split), sources):
        text = (DATA / 'multireqa' / source).read_text()
        path = root / 'multireqa' / names[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.replace('SQuAD', name).encode()))
  (root / 'pairs.jsonl').write_text(
      '{"query": "q", "passage": "p", "negatives": ["n", "m"]}\n'
      '{"query": "r", "passage": "o"}\n'
  )
  (root / 'code').mkdir()
  (root / 'code' / 'a.py').write_text(
      'def add(a, b):\n  """Adds two numbers up."""\n  return a + b\n'
  )
  return root


@pytest.fixture(scope='module')
def registry(data_root):
  """Registered before anything of it is to be found in the environment."""
  import seqio

  import tasks

  tasks.register(
      roots=(str(data_root / 'code'),),
      cache_dir=str(data_root / 'tokens'),
  )
  patch = pytest.MonkeyPatch()
  patch.setenv('DUALENC_DATA_ROOT', str(data_root))
  for split in ('TRAIN', 'VALIDATION', 'TEST'):
    patch.setenv(f'DUALENC_{split}_FILE', str(data_root / 'pairs.jsonl'))
  yield seqio
  patch.undo()


def readers_by_task(root: pathlib.Path) -> dict[str, Dataset]:
  """What training reads, made without seqio."""
  options = {'data_root': str(root)}
  file = str(root / 'pairs.jsonl')
  return {
      'msmarco': readers.MsMarco(**options),
      'pairs': readers.Pairs(train=file, validation=file, test=file),
      'python_code': readers.PythonCode((str(root / 'code'),)),
      'multireqa_nq': readers.MultiReQA('NaturalQuestions', **options),
      'beir_scifact': readers.Beir(dataset='scifact', **options),
  }


NAMES = [*readers_by_task(pathlib.Path())]


def read(registry, name, split, lengths=None):
  dataset = registry.get_mixture_or_task(name).get_dataset(
      sequence_length=lengths, split=split, shuffle=False, num_epochs=1
  )
  return list(dataset.as_numpy_iterator())


def test_all_names_are_registered(registry):
  names = {*registry.TaskRegistry.names(), *registry.MixtureRegistry.names()}
  sets = {f'beir_{name.translate(SAFE)}' for name in beir.SETS}
  sets |= {f'multireqa_{name.lower()}' for name in SETS}
  wanted = {*NAMES, *sets, 'open_nq', 'multireqa'}
  wanted.discard('multireqa_naturalquestions')
  assert wanted <= names


@pytest.mark.parametrize('name', NAMES)
def test_a_task_has_the_examples_that_training_reads(registry, data_root, name):
  """As tokens, cut where seqio is told to."""
  own = readers_by_task(data_root)[name]
  vocabulary = Vocabulary('python_code_8k')
  features = registry.get_mixture_or_task(name).output_features
  assert features['targets'].vocabulary.vocab_size == vocabulary.size
  split = 'all' if name == 'python_code' else own.splits()[0]
  cut = {'inputs': 8, 'targets': 8}
  found = read(registry, name, split, cut)
  for row, example in zip(found, rows(own, split), strict=True):
    texts = [example['query'], example['passage'], *example['negatives']]
    tokens = [row['inputs'], row['targets'], *row['negatives']]
    for text, ids in zip(texts, tokens, strict=True):
      assert ids.dtype == 'int32'
      wanted = vocabulary.encode([text], 256).row(0)[:8]
      assert ids[: len(wanted)].tolist() == wanted.tolist()
      assert not ids[len(wanted) :].any()


def test_the_mixture(registry):
  mixture = registry.get_mixture_or_task('multireqa')
  rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
  names = 'hotpotqa nq searchqa squad triviaqa'.split()
  assert sorted(rates) == [f'multireqa_{n}' for n in names]
  assert rates['multireqa_squad'] == 87_133


def test_errors_name_what_sets_the_tasks(registry, data_root, monkeypatch):
  monkeypatch.delenv('DUALENC_DATA_ROOT')
  task = registry.get_mixture_or_task('beir_scifact')
  with pytest.raises(UserError, match='set DUALENC_DATA_ROOT, below'):
    task.get_dataset(None, 'test')
  bad = data_root / 'bad.jsonl'
  bad.write_text('no JSON\n{"query": "a", "passage": "b"}\n')
  monkeypatch.setenv('DUALENC_TRAIN_FILE', str(bad))
  with pytest.raises(UserError, match=r'rows: tasks\.register\(strict=False\)'):
    read(registry, 'pairs', 'train')
