"""What `dualenc search` prints: formats, snippets, what it says of a query."""

import json
import shutil

import numpy as np
import pytest
import pytrec_eval
import tiny_evaluation

from dualenc_jax.cli import compare, encode, main as cli, search
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

CORPUS = {
    'd1': ('Maps', 'A map is a table. To find a "key", use a hash of the key.'),
    'd2': ('', 'Rows of a table.\tFind the xml of each \x1b[31mrow\u202e.'),
    'd "3"': ('Dates', 'A date has a year. It has a zone, too.\nSecond line.'),
    'd4': ('Empty of words', ''),
}
QUERIES = {'q1': 'find map key', 'q2': 'find xml'}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A model, `model`, and an index of CORPUS, `index`."""
  folder = tmp_path_factory.mktemp('run')
  tiny_evaluation.copy_model(folder / 'model')
  (folder / 'corpus.jsonl').write_text(''.join(
      json.dumps({'_id': name, 'title': title, 'text': text}) + '\n'
      for name, (title, text) in CORPUS.items()
  ))
  (folder / 'queries.jsonl').write_text(''.join(
      json.dumps({'_id': name, 'text': text}) + '\n'
      for name, text in QUERIES.items()
  ))
  encode.main([
      f'--model_dir={folder / "model"}',
      f'--index_dir={folder / "index"}',
      f'--corpus={folder / "corpus.jsonl"}',
  ])
  return folder


def flags(folder):
  return [f'--model_dir={folder / "model"}', f'--index_dir={folder / "index"}']


def printed(capsys, folder, *argv):
  capsys.readouterr()
  assert cli.main(['search', *flags(folder), *argv]) == 0
  return capsys.readouterr()


def expected(folder):
  """Ids and scores of all hits by query, of embeddings and NumPy alone."""
  retriever = Retriever.from_dir(folder / 'model')
  texts = [' '.join(filter(None, pair)) for pair in CORPUS.values()]
  scores = (
      retriever.encode_queries(list(QUERIES.values()))
      @ retriever.encode_passages(texts).T
  )
  ids = np.array([*CORPUS])
  return {
      query: list(zip(ids[np.argsort(-own)].tolist(), np.sort(-own) * -1))
      for query, own in zip(QUERIES, scores)
  }


def test_json_has_an_object_a_hit(folder, capsys):
  out = printed(
      capsys, folder, '--format=json', f'--queries={folder / "queries.jsonl"}'
  ).out
  rows = [json.loads(line) for line in out.splitlines()]
  hits = expected(folder)
  for query, own in hits.items():
    found = [row for row in rows if row['query_id'] == query]
    assert [row['id'] for row in found] == [name for name, _ in own]
    assert [row['rank'] for row in found] == [1, 2, 3, 4]
    np.testing.assert_allclose(
        [row['score'] for row in found], [s for _, s in own], rtol=1e-5
    )
    assert {row['query'] for row in found} == {QUERIES[query]}
  by_id = {row['id']: row for row in rows if row['query_id'] == 'q1'}
  assert by_id['d1']['name'] == 'Maps'
  # The index keeps what was encoded, the title in front.
  assert by_id['d1']['text'] == ' '.join(CORPUS['d1'])
  assert by_id['d1']['snippet'] == 'To find a "key", use a hash of the key.'
  assert by_id['d1']['snippet_matches'] == 2
  assert by_id['d "3"']['snippet_matches'] == 0
  assert by_id['d "3"']['snippet'] == 'A date has a year.'
  for row in rows:
    assert row['location'].startswith(str(folder / 'corpus.jsonl:'))


def test_text_is_harmless_and_has_the_snippet(folder, capsys):
  out = printed(capsys, folder, 'find xml').out
  assert '\x1b' not in out and '\u202e' not in out
  lines = out.splitlines()
  assert lines[0] == 'find xml'
  (at,) = (i for i, line in enumerate(lines) if '  d2  ' in line)
  assert f'{folder / "corpus.jsonl"}:2' in lines[at]
  assert lines[at + 1].strip() == r'Find the xml of each \x1b[31mrow\u202e.'


def test_what_of_a_query_is_not_read_is_logged(folder, capsys):
  long = 'find the map of all keys and rows of tables'
  queries = long, '日本', '日本 map', 'map'
  found = printed(capsys, folder, '--format=json', *queries)
  # The queries of the model have 8 tokens.
  assert found.err.count('and the model reads 8: it is cut after') == 1
  assert found.err.count('knows no piece of the query') == 1
  assert found.err.count('does not know 1 of the 3 pieces') == 1
  assert "'map':" not in found.err
  # Standard output is of the hits alone.
  assert len(list(map(json.loads, found.out.splitlines()))) == 4 * 4


def test_trec_is_read_by_pytrec_eval_and_compare(folder, tmp_path, capsys):
  run = tmp_path / 'my.trec'
  argv = '--format=trec', f'--queries={folder / "queries.jsonl"}'
  run.write_text(printed(capsys, folder, *argv).out)
  with run.open() as f:
    parsed = pytrec_eval.parse_run(f)
  for query, own in expected(folder).items():
    # White space of an id is escaped.
    assert [*parsed[query]] == [name.replace(' ', '%20') for name, _ in own]
    np.testing.assert_allclose(
        [*parsed[query].values()], [score for _, score in own], rtol=1e-5
    )
  (tmp_path / 'qrels').write_text('q1 0 d1 1\nq2 0 d2 1\n')
  compare.main(
      [str(run), str(run), f'--qrels={tmp_path / "qrels"}', '--names=a,b']
  )


def test_python_hits_have_their_passages(folder):
  retriever = Retriever.from_dir(folder / 'model', index=folder / 'index')
  queries = list(QUERIES.values())
  _, ids = retriever.search(queries, 3)
  texts = {n: ' '.join(filter(None, pair)) for n, pair in CORPUS.items()}
  assert [
      [hit.passage.text for hit in hits] for hits in retriever.find(queries, 3)
  ] == [[texts[i] for i in row] for row in ids]
  with pytest.raises(UserError, match=r'queries\[1\] is empty; give some wo'):
    retriever.search(['a', ' \n'])


def test_an_index_is_searched_where_the_data_is_not(folder, tmp_path, capsys):
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  with (model / 'config.gin').open('a') as config:
    config.write("TRAIN_FILE = 'a.jsonl'\n")
  argv = ['search', f'--model_dir={model}', 'find map', '--k=1']
  assert cli.main(argv) == 2
  shutil.copytree(folder / 'index', model / 'index')
  capsys.readouterr()
  assert cli.main(argv) == 0
  told = capsys.readouterr()
  assert "'train': there is no file a.jsonl in /" in told.err
  expected = printed(capsys, folder, 'find map', '--k=1')
  assert told.out == expected.out
  # What a flag names must be there.
  assert cli.main([*argv, '--gin.TRAIN_FILE=b.jsonl']) == 2
  assert 'no file b.jsonl in /' in capsys.readouterr().err


def test_nothing_is_printed_before_all_queries_are_known(
    folder, tmp_path, capsys
):
  bad = tmp_path / 'bad.csv'
  bad.write_text('question\nfind xml\n')
  (tmp_path / 'no_id.jsonl').write_text('{"text": "find xml"}\n')
  for form, given, message in (
      ('text', ['find xml', ' '], 'query is empty'),
      ('json', [f'--queries={bad}'], 'no column of ids'),
      # There is no flag to skip it.
      ('json', [f'--queries={tmp_path}/no_id.jsonl'], 'Mend the file[.]$'),
      ('json', ['--queries=q.txt', 'find'], 'as arguments, or --queries, not'),
      ('trec', ['--queries=/none.txt'], '/none.txt cannot be read'),
  ):
    with pytest.raises(UserError, match=message):
      search.main([*flags(folder), f'--format={form}', *given])
    assert not capsys.readouterr().out
