"""Commands that search, as two processes and as one; what hosts compare."""

import re
import shutil
import signal
import subprocess
import time

import pytest
import shared_runs
import tiny_beir
import tiny_evaluation
import two_hosts

from dualenc_jax.cli import (
  analyze,
  encode,
  evaluate,
  label,
  mine,
  rerank,
  runtime,
  search,
)
from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.utils.errors import RUN_AGAIN, UserError

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
  more = (
      f'--index_dir={begun}', '--metrics=Recall@3', '--baselines=bm25,hybrid',
      f'--rerank={shared_runs.cross_encoder()}', '--rerank_depth=50',
      '--codecs=pca:8+int8,binary:110,hnsw:4',
  )
  given = tiny_evaluation.flags(model, tmp_path / 'two', *more)
  first, second = two_hosts.run('evaluate', *given)
  assert 'Written to' in first and 'Written to' not in second
  assert [(begun / s.name).stat().st_mtime_ns for s in shards] == times
  one = tiny_evaluation.run(model, tmp_path / 'one', *more)
  assert tree(one) == tree(tmp_path / 'two')
  assert {
      'bm25/run.trec', 'hybrid/run.trec', 'rerank/scores.tsv',
      'codecs/binary-110/run.trec',
  } <= {*tree(one)}
  assert (one / 'run.trec').read_text().count('\n') == 130 * len(SET.queries)


def sources(model, output, *more):
  """Flags of commands that find candidates by the model."""
  return [
      f'--model_dir={model}', '--tasks=beir/scifact', '--split=test',
      f'--gin.DATA_ROOT={model.parent / "data"}', f'--output_dir={output}',
      f'--teacher={shared_runs.cross_encoder()}', *more,
  ]


@pytest.mark.parametrize(
    'name, command, more',
    [
        pytest.param(
            'mine', mine, ['--relative_margin=0.05', '--bm25', '--depth=40'],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            'label', label, ['--above=0.6', '--below=0.4'],
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_commands_that_find_candidates(
    model, tmp_path, capsys, name, command, more
):
  given = *more, f'--index_dir={tmp_path / "index"}'
  first, second = two_hosts.run(
      name, *sources(model, tmp_path / 'two', *given)
  )
  command.main(sources(model, tmp_path / 'one', *given))
  lines = [x for x in capsys.readouterr().out.splitlines() if '/one' not in x]
  assert lines and {*lines} <= {*first.splitlines()}
  assert lines[0] not in second
  one, two = (tree(tmp_path / where) for where in ('one', 'two'))
  assert one == two and 'scores.tsv' in one and 'pairs.jsonl' in one


@pytest.mark.nightly
def test_search(model, tmp_path, capsys):
  (tmp_path / 'q.tsv').write_text(
      ''.join(f'{i}\t{text}\n' for i, text in SET.queries.items())
  )
  given = [
      f'--model_dir={model}', f'--queries={tmp_path / "q.tsv"}', '--k=7',
      '--format=json', f'--rerank={shared_runs.cross_encoder()}',
      '--rerank_depth=9',
  ]
  # The model's own index, which the hosts make.
  first, second = two_hosts.run('search', *given, stderr=subprocess.DEVNULL)
  search.main(given)
  found = capsys.readouterr().out
  assert found.count('\n') == 7 * len(SET.queries)
  # Nothing else is among the hits, not even a line of gloo.
  assert first == found and not second


def test_hybrid_search_is_of_the_first_host(
    model, capsys, monkeypatch, tmp_path
):
  index = tmp_path / 'index'
  encode.main([f'--model_dir={model}', f'--index_dir={index}'])
  given = [f'--model_dir={model}', f'--index_dir={index}', '--hybrid=0.5']
  given += ['--k=7', '--format=json', *[*SET.queries.values()][:3]]
  capsys.readouterr()
  search.main(given)
  one = capsys.readouterr().out
  assert one.count('\n') == 7 * 3
  for host, expected in ((Host(0, 2), one), (Host(1, 2), '')):
    monkeypatch.setattr(runtime, 'host', lambda host=host: host)
    search.main(given)
    assert capsys.readouterr().out == expected


@pytest.mark.nightly
def test_rerank(model, tmp_path):
  run = tiny_evaluation.run(model, tmp_path / 'first') / 'run.trec'

  def given(output):
    return [
        f'--run={run}', '--tasks=beir/scifact', '--split=test',
        f'--gin.DATA_ROOT={model.parent / "data"}', f'--output_dir={output}',
        f'--teacher={shared_runs.cross_encoder()}', '--depth=60',
    ]

  two_hosts.run('rerank', *given(tmp_path / 'two'))
  rerank.main(given(tmp_path / 'one'))
  one, two = (tree(tmp_path / where) for where in ('one', 'two'))
  assert one == two and 'before/run.trec' in one


@pytest.mark.nightly
def test_analyze(model, tmp_path):
  def given(output):
    return [
        f'--model_dir={model}', '--tasks=beir/scifact', '--sample=15',
        f'--gin.DATA_ROOT={model.parent / "data"}', f'--output_dir={output}',
        f'--index_dir={tmp_path / "index"}',
    ]

  two_hosts.run('analyze', *given(tmp_path / 'two'))
  analyze.main(given(tmp_path / 'one'))
  one, two = (
      {p.name: p.read_text() for p in (tmp_path / where).glob('*.[cj]s*')}
      for where in ('one', 'two')
  )
  assert one == two and {'analysis.json', 'tsne.csv'} <= {*one}


@pytest.mark.nightly
def test_four_hosts_of_which_one_dies(model, tmp_path):
  """The others end within a minute, and the same command goes on."""
  index, partial = tmp_path / 'index', tmp_path / 'index.partial'
  given = tiny_evaluation.flags(
      model, tmp_path / 'results', f'--index_dir={index}'
  )
  encode.main([
      f'--model_dir={model}', f'--index_dir={index}', '--shard_size=2',
      '--tasks=beir/scifact', f'--gin.DATA_ROOT={model.parent / "data"}',
  ])
  index.rename(partial)
  for shard in [*partial.glob('shard-*')][::2]:
    shutil.rmtree(shard)
  left = len([*partial.glob('shard-*')])
  hosts_ = two_hosts.start('evaluate', *given, devices=[1] * 4)
  while len([*partial.glob('shard-*')]) <= left:
    assert all(host.poll() is None for host in hosts_)
    time.sleep(0.002)
  hosts_[2].kill()
  for number, (status, said) in enumerate(two_hosts.ends(hosts_, 75)):
    if number == 2:
      assert status == -signal.SIGKILL
      continue
    assert status == RUN_AGAIN, said[-2000:]
    end = said.splitlines()[-1]
    assert re.match(r'error: host 2 \(\S+, pid \d+\) has died', end), end
  assert not (tmp_path / 'results' / 'run.trec').exists()
  for status, said in two_hosts.ends(
      two_hosts.start('evaluate', *given, devices=[1] * 4)
  ):
    assert status == 0, said[-3000:]
  one = tiny_evaluation.run(
      model, tmp_path / 'one', f'--index_dir={index}'
  )
  assert tree(one) == tree(tmp_path / 'results')


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
  assert 'model_dir' not in asked['models']
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
        (
            ['--index_dir=x', '--codecs=int8', '--time_codecs'],
            '--time_codecs takes one host',
        ),
    ],
)
def test_what_several_hosts_do_not_take(model, tmp_path, flags, message):
  with pytest.raises(UserError, match=message):
    evaluate.main(tiny_evaluation.flags(model, tmp_path, *flags, '--multihost'))
