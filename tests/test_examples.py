"""README.md and every file of examples/, as a user runs them."""

import json
import pathlib
import subprocess
import sys
import threading
from urllib import request

import pytest
import test_docs
import tiny_run
import transformers

import dualenc_jax as dj
from dualenc_jax.cli import main as cli

EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
TOPICS = 'tea', 'cats', 'ships', 'bread', 'stars', 'rivers', 'chess', 'snow'
QUESTIONS = [f'what is known of {topic}' for topic in TOPICS]
ANSWERS = [f'{topic} {i}: all about {topic}' for i, topic in enumerate(TOPICS)]


def run(name, *arguments):
  return subprocess.run(
      [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
      check=True, capture_output=True, text=True,
  )


@pytest.fixture(scope='module')
def pairs(tmp_path_factory):
  path = tmp_path_factory.mktemp('pairs') / 'pairs.jsonl'
  rows = [
      {'query': f'{question} ({i})', 'passage': f'{answer} ({i})'}
      for i in range(8)
      for question, answer in zip(QUESTIONS, ANSWERS)
  ]
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return path


def check_finds(retriever):
  retriever.index(ANSWERS)
  _, ids = retriever.search(QUESTIONS, k=1)
  assert (ids[:, 0] == [str(i) for i in range(len(TOPICS))]).mean() > 0.7


@pytest.mark.nightly
def test_train_in_python_and_serve(tmp_path, pairs, monkeypatch):
  run('train_in_python.py', pairs, tmp_path / 'model')
  # It is trained already.
  run('train_in_python.py', pairs, tmp_path / 'model')
  retriever = dj.Retriever.from_dir(tmp_path / 'model')
  check_finds(retriever)
  monkeypatch.syspath_prepend(EXAMPLES)
  import serve

  with serve.server(retriever, 0) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f'http://localhost:{server.server_port}/?q=known+of+chess'
    with request.urlopen(url) as answer:
      hits = json.load(answer)
    server.shutdown()
  assert hits[0]['text'] == ANSWERS[TOPICS.index('chess')]
  assert hits[0]['score'] > hits[1]['score']


@pytest.mark.nightly
def test_a_model_dir_of_plain_python(tmp_path, pairs, capsys):
  model, converted = tmp_path / 'model', tmp_path / 'converted'
  run('train_in_python.py', pairs, model)
  with pytest.raises(subprocess.CalledProcessError) as refused:
    run('own_loss.py', pairs, model)
  said = refused.value.stderr
  assert 'settings of this run have changed: loss: SamToNe(' in said
  assert '-> Decoupled()' in said and 'allow_other_config=True' in said
  find = ['search', f'--gin.TRAIN_FILE={pairs}', 'cats']
  assert cli.main([*find, f'--model_dir={model}']) == 2
  remedy = f'dualenc convert {model} --to=model_dir --output_dir='
  assert remedy in capsys.readouterr().err
  assert not cli.main(
      ['convert', str(model), '--to=model_dir', f'--output_dir={converted}']
  )
  assert not cli.main([*find, f'--model_dir={converted}'])


@pytest.mark.nightly
def test_own_loss(tmp_path, pairs):
  run('own_loss.py', pairs, tmp_path / 'model')
  check_finds(dj.Retriever.from_dir(tmp_path / 'model'))


@pytest.mark.nightly
def test_own_reader(tmp_path):
  faq = tmp_path / 'faq.txt'
  faq.write_text(
      '\n\n'.join(
          f'{question} ({i})\n{answer} ({i})'
          for i in range(8)
          for question, answer in zip(QUESTIONS, ANSWERS)
      )
  )
  run('own_reader.py', faq, tmp_path / 'model')
  check_finds(dj.Retriever.from_dir(tmp_path / 'model'))


@pytest.mark.nightly
def test_the_notebook(tmp_path, monkeypatch, capsys):
  notebook = json.loads((EXAMPLES / 'first_look.ipynb').read_text())
  cells = [c for c in notebook['cells'] if c['cell_type'] == 'code']
  assert not any(cell['outputs'] for cell in cells)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(EXAMPLES)
  monkeypatch.setenv('MPLBACKEND', 'agg')
  names: dict = {}
  for cell in cells:
    # A few steps, as the others are tested.
    exec(''.join(cell['source']).replace('steps=100', 'steps=20'), names)
  assert 'P@1 0.' in capsys.readouterr().out


@pytest.mark.slow
def test_the_readme(tmp_path, shared, monkeypatch, capsys):
  """The commands and the Python of README.md, from a tiny checkpoint."""
  page = EXAMPLES.parent / 'README.md'
  monkeypatch.chdir(tmp_path)
  for name in ('train', 'dev'):
    tiny_run.write_pairs(tmp_path / f'{name}.jsonl', 64, seed=len(name))
  (tmp_path / 'spiece.model').symlink_to(
      shared / 'data' / 't5_spiece' / 'spiece.model'
  )
  transformers.T5EncoderModel(
      transformers.T5Config(
          vocab_size=32128, d_model=128, d_kv=32, d_ff=256, num_layers=1,
          num_heads=4, feed_forward_proj='gated-gelu',
      )
  ).save_pretrained('t5_1_1_base')
  given = [c for c in test_docs.commands(page) if '--model_dir=my_model' in c]
  assert [name for name, *_ in given] == ['train', 'evaluate', 'search']
  for command in given:
    small = tiny_run.small_flags() if command[0] == 'train' else ()
    assert not cli.main([*command, *small])
  shown = capsys.readouterr()
  assert 'SamToNe' in (tmp_path / 'my_model' / 'config.gin').read_text()
  assert 'nDCG@10' in shown.out
  (program,) = [x for kind, x in test_docs.blocks(page) if kind == 'python']
  found = {}
  exec(program, found)
  assert found['ids'].shape == (1, 2)
