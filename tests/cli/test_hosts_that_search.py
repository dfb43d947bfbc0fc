"""Commands that search, as two processes and as one; what hosts compare."""

import time

import pytest
import tiny_beir
import tiny_evaluation
import two_hosts

from dualenc_jax.cli import encode, evaluate, runtime
from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.utils.errors import UserError

SET = tiny_beir.make_large()


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  SET.write(folder / 'data' / 'beir' / 'scifact')
  return tiny_evaluation.link_model(folder)


@pytest.fixture(scope='module')
def begun(model, tmp_path_factory):
  """An index of which another host has made the shards of uneven number."""
  index = tmp_path_factory.mktemp('index') / 'index'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(runtime, 'host', lambda: Host(1, 2))
    patch.setattr(hosts, 'wait_for_shards', lambda *_: None)
    encode.main([
        f'--model_dir={model}', f'--index_dir={index}', '--shard_size=20',
        '--tasks=beir/scifact', f'--gin.DATA_ROOT={model.parent / "data"}',
    ])
  return index


def tree(folder):
  """Files by name, below a folder; without the line of the command line."""
  return {
      str(path.relative_to(folder)): [
          line
          for line in path.read_text().splitlines()
          if '"command": ' not in line
      ]
      for path in sorted(folder.rglob('*'))
      if path.is_file()
  }


@pytest.mark.slow
def test_evaluate(model, begun, tmp_path):
  shards = [*begun.with_name('index.partial').glob('shard-*')]
  assert len(shards) == 3
  times = [shard.stat().st_mtime_ns for shard in shards]
  more = f'--index_dir={begun}', '--metrics=Recall@3', '--baselines=bm25,hybrid'
  given = tiny_evaluation.flags(model, tmp_path / 'two', *more)
  first, second = two_hosts.run('evaluate', *given)
  assert 'Written to' in first and 'Written to' not in second
  assert [(begun / s.name).stat().st_mtime_ns for s in shards] == times
  one = tiny_evaluation.run(model, tmp_path / 'one', *more)
  assert tree(one) == tree(tmp_path / 'two')
  assert (one / 'run.trec').read_text().count('\n') == 130 * len(SET.queries)


def test_what_hosts_compare(model, tmp_path, monkeypatch):
  asked = {}
  monkeypatch.setattr(
      hosts, 'agree', lambda what, text, *_: asked.update({what: text})
  )
  tiny_evaluation.run(
      model, tmp_path / 'results', f'--index_dir={tmp_path / "index"}'
  )
  assert {*asked} == {'models', 'data', 'indexes'}
  assert 'checkpoint_step 2' in asked['models'].splitlines()
  # Each may see the folder by another name.
  assert 'model_dir None' in asked['models'].splitlines()
  assert 'passages 130' in asked['indexes'].splitlines()
  assert 'tower_sha256' in asked['indexes']


def test_a_folder_that_hosts_do_not_share(monkeypatch):
  monkeypatch.setattr(hosts, '_APPEARS', 0.05)
  monkeypatch.setattr(hosts, '_POLL', 0.01)
  looks = iter([False, False, True])
  hosts.wait_for_shards(lambda: next(looks), 'index')
  start = time.monotonic()
  with pytest.raises(UserError, match='index lacks shards .* that all hosts'):
    hosts.wait_for_shards(lambda: False, 'index')
  assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    'flags, message',
    [
        ([], '--multihost needs --index_dir'),
        (['--index_dir=x', '--codecs=int8'], '--codecs takes one host'),
        (['--index_dir=x', '--rerank=y'], '--rerank takes one host'),
    ],
)
def test_what_several_hosts_do_not_take(model, tmp_path, flags, message):
  with pytest.raises(UserError, match=message):
    evaluate.main(tiny_evaluation.flags(model, tmp_path, *flags, '--multihost'))
