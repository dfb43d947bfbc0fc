"""`dualenc serve` as a process: its port, slow clients, its end; bad flags."""

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest
from starlette.testclient import TestClient
import tiny_evaluation
import tiny_towers

from dualenc_jax.cli import main as cli, serve
from dualenc_jax.pipelines.serving import server
from dualenc_jax.pipelines.serving.engine import Engine
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

ONLY_EXTRAS = pathlib.Path(__file__).parents[1] / 'helpers/only_extras.py'
TEXTS = [text for text in tiny_towers.TEXTS if text]


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  folder = tmp_path_factory.mktemp('served') / 'tiny'
  retriever = Retriever(tiny_towers.loaded())
  retriever.index(TEXTS)
  retriever.save(folder)
  return folder


@contextlib.contextmanager
def serving(*flags):
  """A server with the packages of its extra alone, and its address."""
  with subprocess.Popen(
      [
          sys.executable, str(ONLY_EXTRAS), 'serve', 'serve', '--port=0',
          '--timeout=2', *flags,
      ],
      stderr=subprocess.PIPE, text=True,
  ) as process:
    try:
      said = []
      while not (said and ' at http://' in said[-1]):
        said.append(process.stderr.readline())
        assert said[-1], ''.join(said)
      yield process, said[-1].split()[-1]
    finally:
      process.kill()


def post(url, **body):
  request = urllib.request.Request(url, json.dumps(body).encode())
  with urllib.request.urlopen(request, timeout=60) as answer:
    return json.load(answer)


@pytest.mark.slow
def test_a_process_answers_and_ends_when_told(saved):
  expected = Retriever.from_dir(saved)
  with serving(f'--model_dir={saved}') as (process, address):
    assert address.startswith('http://127.0.0.1:')
    port = int(address.rpartition(':')[2])
    (row,) = post(f'{address}/v1/embeddings', model='tiny', input='a')['data']
    np.testing.assert_allclose(
        row['embedding'], expected.encode_queries(['a'])[0], atol=1e-5
    )
    hits = post(f'{address}/search', query='merge', hybrid=0.5, k=2)['hits']
    (wanted,) = expected.find(['merge'], 2, 0.5)
    assert [hit['id'] for hit in hits] == [hit.passage.id for hit in wanted]
    # Clients that send half of a head, or of a body, are not waited for.
    with socket.create_connection(('127.0.0.1', port)) as idle, (
        socket.create_connection(('127.0.0.1', port))
    ) as slow:
      idle.sendall(b'POST /search HTTP/1.1\r\nHost: ')
      slow.sendall(
          b'POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n'
          b'\r\n{'
      )
      idle.settimeout(30)
      slow.settimeout(30)
      assert b' 408 ' in slow.recv(4096)
      with contextlib.suppress(ConnectionResetError):
        assert idle.recv(4096) == b''
    # What is under way is answered, then the process ends.
    found = []
    texts = [f'value {i}' for i in range(600)]
    ask = threading.Thread(target=lambda: found.append(
        post(f'{address}/v1/embeddings', model='tiny:passage', input=texts)
    ))
    ask.start()
    metrics = f'{address}/metrics'
    while urllib.request.urlopen(metrics).read().split()[-1] == b'0':
      pass
    process.send_signal(signal.SIGTERM)
    ask.join(60)
    assert len(found[0]['data']) == 600
    assert process.wait(60) == 0


@pytest.mark.parametrize('flags, message', [
    (['--host=0.0.0.0'], r'--host is 0\.0\.0\.0.*give --api_key'),
    (['--api_key=a b'], '--api_key has no key'),
    (['--api_key=@missing'], 'missing cannot be read'),
    (['--names=a,b'], 'names of 1 models are a,b'),
    (['--index_dir=a', '--index_dir=b'], '2 --index_dir for 1 --model_dir'),
    (['--host=no.such.invalid', '--api_key=a'], '--host=no.such.invalid'),
    (['--port=70000'], '--port is 70000; expected at most 65535'),
    (['--max_k=0'], '--max_k is 0; expected at least 1'),
])
def test_bad_flags(flags, message, monkeypatch):
  monkeypatch.setattr(serve, '_open', None)
  with pytest.raises(UserError, match=message):
    serve.main(['--model_dir=a', *flags])


def test_a_port_has_one_server(capsys, monkeypatch):
  monkeypatch.setattr(serve, '_open', None)
  with socket.create_server(('127.0.0.1', 0)) as other:
    port = other.getsockname()[1]
    assert cli.main(['serve', '--model_dir=a', f'--port={port}']) == 2
  error = capsys.readouterr().err
  assert f'--port={port}: ' in error and 'Address already in use' in error


def test_a_model_dir_is_served_with_its_own_index(tmp_path, monkeypatch):
  folder = tiny_evaluation.write_random(tmp_path / 'model')
  built = Retriever.from_dir(folder)
  built.index(TEXTS)
  built._corpus.write(
      folder / 'index', built.dim, built.tokenizer.passage_length,
      built._encoded_by(built._corpus),
  )
  flags = ['--port=0', '--names=m', f'--model_dir={folder}']
  apps = []
  monkeypatch.setattr(Engine, 'warm_up', lambda self: None)
  monkeypatch.setattr(server, 'run', lambda app, *rest: apps.append(app))
  serve.main(flags)
  with TestClient(apps[0], base_url='http://localhost') as client:
    (hit,) = client.post('/search', json={'query': 'a', 'k': 1}).json()['hits']
  assert hit['text'] == built.find(['a'], 1)[0][0].passage.text
  # That index is of another tower.
  other = tiny_evaluation.write_random(tmp_path / 'other', layers=2)
  (folder / 'index').rename(other / 'index')
  with pytest.raises(UserError, match='another passage tower'):
    serve.main([*flags[:2], f'--model_dir={other}'])
