"""The app of `dualenc serve`: formats, results, bounds, requests at once."""

import base64
from concurrent import futures
import json
import re
import threading

import numpy as np
import pytest
from starlette.testclient import TestClient
import tiny_towers

from dualenc_jax.pipelines.serving import app as app_lib, batcher
from dualenc_jax.pipelines.serving.app import App
from dualenc_jax.pipelines.serving.engine import Engine
from dualenc_jax.retriever import Retriever

HOSTILE = (
    '<script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m'
    + 'a' * 100_000
)
TEXTS = [text for text in tiny_towers.TEXTS if text] + [HOSTILE]
# More than most requests ask for.
TEXTS += [f'value {i} of a list' for i in range(12)]
IDS = [f'p{i}' for i in range(len(TEXTS))]
EMBEDDINGS, SEARCH = '/v1/embeddings', '/search'


@pytest.fixture(scope='module')
def retriever():
  found = Retriever(
      tiny_towers.loaded(apart=True, prefixes=('find: ', 'code: '))
  )
  found.index(TEXTS, IDS)
  found.index_words()
  return found


@pytest.fixture(scope='module')
def engine(retriever):
  bare = Retriever(retriever.towers)
  return Engine({'tiny': retriever, 'bare': bare}, 20, ['tiny'])


@pytest.fixture(scope='module')
def client(engine):
  with TestClient(App(engine, timeout=0.2)) as client:
    yield client


def embed(client, **body):
  return client.post(EMBEDDINGS, json={'model': 'tiny', **body})


def error_of(answer):
  error = answer.json()['error']
  assert {*error} == {'message', 'type', 'param', 'code'}
  return error['message']


@pytest.mark.parametrize('name, side', [
    ('tiny', 'queries'), ('tiny:passage', 'passages'),
])
def test_embeddings_are_those_of_the_retriever(client, retriever, name, side):
  texts = TEXTS[:3]
  expected = getattr(retriever, f'encode_{side}')(texts)
  tokens = getattr(retriever.tokenizer, f'encode_{side}')(texts)
  answer = embed(client, model=name, input=texts).json()
  assert answer['object'] == 'list' and answer['model'] == name
  assert [row['index'] for row in answer['data']] == [0, 1, 2]
  assert {row['object'] for row in answer['data']} == {'embedding'}
  found = np.array([row['embedding'] for row in answer['data']], np.float32)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  count = int(tokens.lengths.sum())
  assert answer['usage'] == {'prompt_tokens': count, 'total_tokens': count}
  # A text alone, as OpenAI's client asks for it.
  (row,) = embed(
      client, model=name, input=texts[0], encoding_format='base64',
      dimensions=tiny_towers.DIM, user='me',
  ).json()['data']
  found = np.frombuffer(base64.b64decode(row['embedding']), '<f4')
  np.testing.assert_allclose(found, expected[0], atol=1e-6)


@pytest.mark.parametrize('hybrid', [None, 0.3, 'rrf', 0])
@pytest.mark.parametrize('k', [2, 15])
def test_hits_are_those_of_the_retriever(client, retriever, hybrid, k):
  answer = client.post(
      SEARCH, json={'query': 'merge a list', 'k': k, 'hybrid': hybrid}
  ).json()
  (expected,) = retriever.find(['merge a list'], k, hybrid)
  assert answer['model'] == 'tiny'
  assert [row['id'] for row in answer['hits']] == [
      hit.passage.id for hit in expected
  ]
  assert [row['text'] for row in answer['hits']] == [
      hit.passage.text for hit in expected
  ]
  np.testing.assert_allclose(
      [row['score'] for row in answer['hits']],
      [hit.score for hit in expected], atol=1e-5,
  )


def test_neighbours_of_a_passage_are_by_the_passage_tower(client, retriever):
  vectors = retriever.encode_passages(TEXTS)
  answer = client.post(SEARCH, json={'passage': TEXTS[2], 'k': 3}).json()
  best = np.argsort(-(vectors @ vectors[2]))[:3]
  assert [row['id'] for row in answer['hits']] == [IDS[i] for i in best]
  assert answer['hits'][0]['score'] == pytest.approx(1, abs=1e-5)


def test_a_hostile_passage_is_text(client):
  answer = client.post(SEARCH, json={'query': 'alert script', 'hybrid': 0})
  # The wire has neither the override nor the escape; the page no way to HTML.
  assert answer.content.isascii() and b'\x1b' not in answer.content
  hit = answer.json()['hits'][0]
  assert hit['text'] == HOSTILE and len(hit['snippet']) <= 240
  again = client.post(SEARCH, json={'passage': HOSTILE, 'k': 1}).json()
  assert again['hits'][0]['id'] == hit['id']
  page = client.get('/')
  assert not re.search(
      r'innerHTML|outerHTML|insertAdjacent|document\.write|eval|https?:',
      page.text,
  )
  policy = page.headers['content-security-policy']
  assert "default-src 'none'; script-src 'sha256-" in policy
  assert "script-src 'unsafe-inline'" not in policy


def test_models_health_and_other_paths(client):
  models = client.get('/v1/models').json()
  assert models['object'] == 'list'
  found = {model['id']: model for model in models['data']}
  assert [*found] == ['tiny', 'bare', 'tiny:passage', 'bare:passage']
  assert {model['object'] for model in found.values()} == {'model'}
  assert found['tiny']['passages'] == len(TEXTS) and found['tiny']['hybrid']
  assert not found['bare']['passages'] and not found['bare']['hybrid']
  assert client.get('/healthz').json() == {'status': 'ok'}
  answer = client.get('/v2/models')
  assert answer.status_code == 404 and '/v1/embeddings' in error_of(answer)
  answer = client.get(SEARCH)
  assert answer.status_code == 405 and error_of(answer)


@pytest.mark.parametrize('path, body, status, message', [
    (EMBEDDINGS, {'input': 'a'}, 400, 'has no "model"; expected'),
    (EMBEDDINGS, {'model': 'tinny', 'input': 'a'}, 404, "'tinny'.*'tiny'"),
    (EMBEDDINGS, {'model': 'tiny'}, 400, 'has no "input"; expected'),
    (EMBEDDINGS, {'input': None}, 400, 'input is null; expected a string or'),
    (EMBEDDINGS, {'input': [None]}, 400, r'input\[0\] is null; expected a str'),
    (EMBEDDINGS, {'input': {'a': True}}, 400, 'is {"a": true}; expected a str'),
    (EMBEDDINGS, {'input': []}, 400, r'input is \[\]; expected'),
    (EMBEDDINGS, {'input': ['a', ' ']}, 400, r'input\[1\] is empty'),
    (EMBEDDINGS, {'input': ''}, 400, 'input is empty'),
    (EMBEDDINGS, {'input': [1, 2]}, 400, 'check_embedding_ctx_length'),
    (EMBEDDINGS, {'input': [[1], [2]]}, 400, 'token ids; expected texts'),
    (EMBEDDINGS, {'input': ['a', 2]}, 400, r'input\[1\] is 2; expected a str'),
    (EMBEDDINGS, {'input': ['a'] * 10_000}, 400, '10,000 texts.* 2,048'),
    (EMBEDDINGS, {'input': 'a' * 300_000}, 400, '300,000 letters.*262,144'),
    (EMBEDDINGS, {'input': 'a\ud800'}, 400, 'surrogate'),
    (EMBEDDINGS, {'input': 'a', 'dimensions': 8}, 400, 'dimensions is 8.* 24'),
    (EMBEDDINGS, {'input': 'a', 'encoding_format': 'hex'}, 400, 'is "hex"'),
    (EMBEDDINGS, {'input': 'a', 'input_typ': 'x'}, 400, "key 'input_typ'"),
    (SEARCH, {'query': 'a', 'model': 'other'}, 404, "no model 'other'"),
    (SEARCH, {'query': 'a', 'model': 'bare'}, 400, 'bare has no index.*--ind'),
    (SEARCH, {'query': 'a', 'passage': 'b'}, 400, 'both query and passage'),
    (SEARCH, {}, 400, 'or neither'),
    (SEARCH, {'query': ['a']}, 400, r'query is \[\"a\"\]; expected a string'),
    (SEARCH, {'query': '\n'}, 400, 'query is empty'),
    (SEARCH, {'query': 'a', 'k': 21}, 400, 'k is 21; expected 1 to 20'),
    (SEARCH, {'query': 'a', 'k': True}, 400, 'k is true; expected 1 to 20'),
    (SEARCH, {'query': 'a', 'hybrid': 2}, 400, 'hybrid is 2; expected 0'),
    (SEARCH, {'query': 'a', 'hybrid': True}, 400, 'hybrid is true; expected 0'),
    (SEARCH, {'passage': 'a', 'hybrid': 1}, 400, 'hybrid is 1; expected null'),
    (SEARCH, {'qery': 'a'}, 400, "key 'qery'. Did you mean 'query'"),
])
def test_bad_requests_have_one_clear_error(client, path, body, status, message):
  if path == EMBEDDINGS and status == 400 and 'no "model"' not in message:
    body = {'model': 'tiny', **body}
  answer = client.post(path, content=json.dumps(body))
  assert answer.status_code == status
  assert re.search(message, error_of(answer))
  assert len(error_of(answer)) < 400


@pytest.mark.parametrize('content, message', [
    (b'', 'The body is not JSON: Expecting value'),
    (b'{"query": "a"', 'The body is not JSON'),
    (b'"query"', 'not a JSON object: it holds a string.'),
    (b'\xff\xfe\xff', 'not JSON: byte 2 is of no text in utf-16.'),
    (b'{"query": "\xff"}', 'not JSON: byte 11 is of no text in utf-8.'),
    (b'{"query": ' + b'[' * 100_000, 'The body is not JSON: '),
    (b'{"query": "a", "query": "b"}', "key 'query' twice"),
])
def test_malformed_bodies(client, content, message):
  answer = client.post(SEARCH, content=content)
  assert answer.status_code == 400 and message in error_of(answer)


def test_a_body_of_100_mb_is_not_kept(client):
  taken = []

  def parts():
    for _ in range(100):
      taken.append(1)
      yield b' ' * 2**20

  answer = client.post(SEARCH, content=b'', headers={'content-length': '1' * 9})
  assert answer.status_code == 413 and '16,777,216' in error_of(answer)
  answer = client.post(SEARCH, content=parts())
  assert answer.status_code == 413 and '16,777,216' in error_of(answer)


def test_a_key_and_a_host_are_checked_first(engine):
  with TestClient(App(engine, 'secret', ('127.0.0.1',))) as client:
    body = {'json': {'query': 'merge'}}
    answer = client.post(SEARCH, **body)
    assert answer.status_code == 421 and "'testserver'" in error_of(answer)
    client.headers['host'] = '127.0.0.1:8000'
    for given in ('', 'secret', 'Bearer Secret', 'Bearer s\u00e9cret'):
      headers = {'authorization': given.encode()}
      for path in (SEARCH, EMBEDDINGS):
        answer = client.post(path, **body, headers=headers)
        assert answer.status_code == 401 and '--api_key' in error_of(answer)
      assert client.get('/metrics', headers=headers).status_code == 401
    assert client.get('/healthz').status_code == 200
    assert client.get('/').status_code == 200
    client.headers['authorization'] = 'Bearer secret'
    assert client.post(SEARCH, **body).status_code == 200


def test_200_requests_at_once_are_batches_and_none_is_lost(engine, retriever):
  queries = [f'read file {i}' for i in range(200)]
  # In batches that have been compiled, or will be.
  parts = [queries[i : i + 32] for i in range(0, 200, 32)]
  expected = np.concatenate([*map(retriever.encode_queries, parts)])
  batches = []

  def run(job, texts):
    batches.append(len(texts))
    return Engine.run(engine, job, texts)

  spied = Engine(engine.retrievers, 20, ['tiny'])
  spied.run = run
  with TestClient(App(spied)) as client:
    with futures.ThreadPoolExecutor(200) as pool:
      answers = [*pool.map(lambda q: embed(client, input=q), queries)]
    metrics = client.get('/metrics')
  found = [a.json()['data'][0]['embedding'] for a in answers]
  np.testing.assert_allclose(np.array(found), expected, atol=1e-6)
  assert sum(batches) == 200 and len(batches) < 100 and max(batches) <= 32
  values = read_metrics(metrics)
  own = '{path="/v1/embeddings"'
  assert values[f'dualenc_requests_total{own},status="200"}}'] == 200
  assert values[f'dualenc_request_seconds_count{own}}}'] == 200
  assert values[f'dualenc_request_seconds_bucket{own},le="+Inf"}}'] == 200
  assert values['dualenc_batch_texts_sum'] == 200
  assert values['dualenc_batch_texts_count'] == len(batches)
  assert values['dualenc_waiting_texts'] == 0


def read_metrics(answer):
  """Values by name and labels; fails for what is not Prometheus' form."""
  assert answer.headers['content-type'].startswith('text/plain; version=0.0.4')
  values, kinds = {}, {}
  for line in answer.text.splitlines():
    if line.startswith('#'):
      _, word, name, rest = line.split(' ', 3)
      assert word in ('HELP', 'TYPE')
      kinds[name] = rest
      continue
    name, labels, value = re.fullmatch(
        r'([a-z_]+)(\{(?:\w+="[^"]*",?)+\})? (\S+)', line
    ).groups()
    base = re.sub('_(bucket|sum|count)$', '', name)
    assert kinds[name if name in kinds else base] in (
        'counter', 'gauge', 'histogram'
    )
    values[name + (labels or '')] = float(value)
  buckets = [v for n, v in values.items() if '_batch_texts_bucket' in n]
  assert buckets == sorted(buckets)
  return values


def test_a_full_queue_refuses_and_loses_nothing(engine, monkeypatch):
  going, go = threading.Event(), threading.Event()

  def run(job, texts):
    going.set()
    assert go.wait(60)
    return Engine.run(engine, job, texts)

  held = Engine(engine.retrievers)
  held.run = run
  monkeypatch.setattr(
      app_lib, 'Batcher', lambda *args, **options: batcher.Batcher(
          *args, **options, room=40
      ),
  )
  with TestClient(App(held)) as client, futures.ThreadPoolExecutor(2) as pool:
    first = pool.submit(embed, client, input='a')
    assert going.wait(60)
    second = pool.submit(embed, client, input=['b'] * 40)
    while client.get('/metrics').text.split()[-1] != '40':
      pass
    answer = embed(client, input='c')
    assert answer.status_code == 503
    assert answer.headers['retry-after'] == '1' and 'busy' in error_of(answer)
    go.set()
    assert len(first.result().json()['data']) == 1
    assert len(second.result().json()['data']) == 40
    assert embed(client, input='c').status_code == 200


def test_a_failure_of_the_model_is_an_answer(engine, caplog):
  def run(job, texts):
    raise RuntimeError('secret detail')

  broken = Engine(engine.retrievers)
  broken.run = run
  with TestClient(App(broken), raise_server_exceptions=False) as client:
    answer = embed(client, input=['a', 'b'])
    assert answer.status_code == 500
    assert 'secret' not in answer.text and 'log' in error_of(answer)
    assert 'secret detail' in caplog.text
    assert client.get('/healthz').status_code == 200


def test_a_query_that_the_model_cannot_read_is_noted(client):
  body = {'query': ' '.join(['value'] * 50)}
  (note,) = client.post(SEARCH, content=json.dumps(body)).json()['notes']
  assert 'The query has' in note
