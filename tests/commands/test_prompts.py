"""Prefixes and PROMPTS from training to results and to other libraries."""

import json
import shlex

import brute_force
import numpy as np
import pytest
import tiny_beir
import tiny_evaluation
import tiny_run

from dualenc_jax import Retriever
from dualenc_jax.analysis import sample as sample_lib
from dualenc_jax.commands import (
  check,
  config,
  convert,
  encode,
  evaluate,
  model_dir,
  search,
  train,
)
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import Index

TEXTS = ['find map', 'array of bytes', 'x']
PROMPTS = {'find': 'search for: ', 'Retrieval-query': 'question: '}


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A model_dir whose texts have prefixes and prompts."""
  return tiny_evaluation.write_random(
      tmp_path_factory.mktemp('run') / 'model', query_prefix='query: ',
      passage_prefix='passage: ', prompts=PROMPTS,
  )


def result(folder):
  return json.loads((folder / 'metrics.json').read_text())


def test_every_result_tells_what_was_put_before_texts(model, tmp_path):
  """Prompts of a name and a QUERY_PREFIX of that text give the same run."""
  evaluate.main([f'--model_dir={model}', '--prompt=find', '--baselines='])
  (found,) = (model / 'prompt-find' / 'evaluation').glob('*/metrics.json')
  folders = [found.parent]
  for prefix in 'search for: ', '':
    folders.append(tmp_path / f'of_{len(prefix)}')
    evaluate.main([
        f'--model_dir={model}', f'--output_dir={folders[-1]}', '--baselines=',
        f'--gin.QUERY_PREFIX={prefix}',
    ])
  runs = [(folder / 'run.trec').read_text() for folder in folders]
  assert runs[0] == runs[1] != runs[2]
  found = [result(folder) for folder in folders]
  assert [x['query_prefix'] for x in found] == ['search for: '] * 2 + ['']
  assert [x['passage_prefix'] for x in found] == ['passage: '] * 3
  index = f'--index_dir={tmp_path / "index"}'
  encode.main([f'--model_dir={model}', index])
  header = Index.open(tmp_path / 'index').header.provenance
  assert header['passage_prefix'] == 'passage: '
  assert 'query_prefix' not in header
  with pytest.raises(UserError, match="passage_prefix is 'passage: ', expecte"):
    search.main([
        'map', f'--model_dir={model}', index, '--gin.PASSAGE_PREFIX='
    ])


def test_encode_puts_it_before_what_it_encodes(model, tmp_path):
  corpus = tmp_path / 'corpus.tsv'
  corpus.write_text('1\tarray of bytes\n')
  plain = Retriever.from_dir(model)
  for tower, encode_texts in (
      ('passage', plain.encode_passages), ('query', plain.encode_queries)
  ):
    index = tmp_path / tower
    encode.main([
        f'--model_dir={model}', f'--corpus={corpus}', f'--index_dir={index}',
        f'--tower={tower}', '--prompt=find',
    ])
    found = Index.open(index)
    assert found.header.provenance[f'{tower}_prefix'] == 'search for: '
    expected = encode_texts(['array of bytes'], 'find')
    np.testing.assert_allclose(found.embeddings[:], expected, atol=1e-6)
  index = f'--index_dir={tmp_path / "passage"}'
  with pytest.raises(UserError, match="passage_prefix is 'search for: '"):
    search.main([f'--model_dir={model}', index, 'map'])
  search.main([f'--model_dir={model}', index, 'map', '--passage_prompt=find'])


def test_search_and_retriever_agree(model, tmp_path, capsys):
  search.main([f'--model_dir={model}', '--prompt=find', '--k=1', 'find map'])
  score = capsys.readouterr().out.splitlines()[1].split()[0]
  retriever = Retriever.from_dir(model, index=model / 'index', prompt='find')
  assert score == f'{retriever.search(["find map"], 1).scores[0, 0]:.3f}'
  other = Retriever.from_dir(model)
  np.testing.assert_array_equal(
      retriever.encode_queries(TEXTS), other.encode_queries(TEXTS, 'find')
  )
  np.testing.assert_array_equal(
      retriever.encode_queries(TEXTS, 'query'), other.encode_queries(TEXTS)
  )
  assert np.ptp(
      retriever.encode_queries(TEXTS) - other.encode_queries(TEXTS)
  ) > 0.01
  retriever.save(tmp_path / 'saved')
  again = Retriever.from_dir(tmp_path / 'saved')
  for name in (None, *PROMPTS):
    np.testing.assert_allclose(
        again.encode_queries(TEXTS, name), other.encode_queries(TEXTS, name),
        atol=1e-6,
    )


def test_a_prompt_of_queries_leaves_passages_as_they_are(model, tmp_path):
  cache = f'--gin.CACHE_DIR={tmp_path / "tokens"}'

  def made():
    found = [*tmp_path.glob('tokens/*'), model / 'index' / 'header.json']
    return {path: path.stat().st_mtime_ns for path in found}

  flags = [f'--model_dir={model}', cache]
  search.main([*flags, 'map'])
  before = made()
  search.main([*flags, 'map', '--prompt=Retrieval-query'])
  assert made() == before
  search.main([*flags, 'map', '--passage_prompt=find'])
  assert len(made()) == len(before) + 1
  # Nor is a corpus of its own tokenised again.
  tiny_beir.make(0).write(tmp_path / 'data' / 'beir' / 'scifact')
  for prompt in ('query', 'find'):
    tiny_evaluation.run(
        model, tmp_path / prompt, f'--prompt={prompt}', cache,
        data=tmp_path / 'data',
    )
  names = [path.name for path in tmp_path.glob('tokens/beir-*')]
  assert sum('-corpus-' in name for name in names) == 1, names
  assert sum('-test-' in name for name in names) == 2, names


def test_prompts_of_what_a_run_starts_from(model, tmp_path, capsys):
  flags = [*tiny_run.flags(tmp_path), f'--gin.INITIAL_CHECKPOINT_PATH={model}']

  def said():
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if 'has prompts' in line]

  check.main([*flags, '--no_compile', "--gin.PROMPTS={'own': 'x: '}"])
  assert not said()
  check.main([*flags, '--no_compile'])
  (line,) = said()
  assert "('find', 'Retrieval-query')" in line
  (flag,) = shlex.split(line.partition('To keep them: ')[2])
  given = config.parse_args(
      train.make_parser(), [*flags, flag, f'--model_dir={tmp_path / "kept"}']
  )
  assert train.build(given).tokenizer.prompts == PROMPTS


def test_an_unknown_prompt_is_refused_by_name(model):
  for command in (evaluate, encode, search):
    with pytest.raises(UserError, match="prompt 'fnid'. Did you mean 'find'?"):
      command.main([f'--model_dir={model}', '--prompt=fnid'])


@pytest.mark.slow
def test_sentence_transformers_and_back(model, tmp_path):
  sentence_transformers = pytest.importorskip('sentence_transformers')
  folder, back = tmp_path / 'st', tmp_path / 'back'
  convert.main([str(model), '--to=sentence_transformers', f'--out={folder}'])
  theirs = sentence_transformers.SentenceTransformer(str(folder), device='cpu')
  # What another program adds is taken over, too, as it was written.
  theirs.prompts['other'] = 'another: '
  theirs.default_prompt_name = 'other'
  theirs.save_pretrained(str(tmp_path / 'edited'))
  convert.main([
      str(tmp_path / 'edited'), '--to=model_dir', f'--out={back}',
      f'--vocabulary={model / "vocabulary.model"}',
  ])
  ours, again = Retriever.from_dir(model), Retriever.from_dir(back)
  assert again.towers.tokenizer.prompts.keys() == {*PROMPTS, 'other'}
  for name in (*PROMPTS, 'other'):
    own = [again] if name == 'other' else [ours, again]
    queries = theirs.encode_query(TEXTS, prompt_name=name)
    passages = theirs.encode_document(TEXTS, prompt_name=name)
    for each in own:
      np.testing.assert_allclose(
          each.encode_queries(TEXTS, name), queries, atol=1e-5
      )
      np.testing.assert_allclose(
          each.encode_passages(TEXTS, name), passages, atol=1e-5
      )


def test_a_run_keeps_its_prompts_and_prefixes(tmp_path):
  flags = [
      *tiny_run.flags(tmp_path), f'--gin.PROMPTS={PROMPTS}', '--gin.STEPS=1',
      '--gin.QUERY_PREFIX=query: ', '--gin.PASSAGE_PREFIX=passage: ',
      f'--model_dir={tmp_path / "model"}',
  ]
  train.main(flags)
  tokenizer = Retriever.from_dir(tmp_path / 'model').towers.tokenizer
  assert tokenizer.prompts == PROMPTS
  assert tokenizer.prefixes == {
      'query_prefix': 'query: ', 'passage_prefix': 'passage: '
  }
  for name, text in ('QUERY_PREFIX', ''), ('PASSAGE_PREFIX', 'passage:'):
    with pytest.raises(
        UserError, match=rf"{name}: '\w+: ' -> '{text}'.*allow_config_change"
    ):
      train.main([*flags, f'--gin.{name}={text}'])


def test_search_puts_the_prefix_before_what_is_asked(model, capsys):
  """The score is the cosine of the two texts with their prefixes."""
  search.main(['find map', f'--model_dir={model}', '--k=1'])
  hit = capsys.readouterr().out.splitlines()[1]
  texts = model.with_name('train.jsonl')
  lines = texts.read_text().splitlines()
  corpus = {i: json.loads(line)['passage'] for i, line in enumerate(lines)}
  (query,), passages = brute_force.towers(model, corpus, {'q': 'find map'})
  scores = passages @ query
  assert hit.split()[0] == f'{scores.max():.3f}'
  assert f'train.jsonl:{scores.argmax() + 1}' in hit


def test_lengths_count_the_tokens_of_prefixes(model):
  trained = model_dir.load(str(model))
  tokenizer = trained.experiment.tokenizer
  retrieval_set = RetrievalSet.of_split(trained.experiment, 'test')
  sample = sample_lib.draw(retrieval_set, 10)
  counts = sample.token_counts(tokenizer)
  for side, prefix, rows, own in (
      ('queries', 'query: ', sample.queries, retrieval_set.query_texts),
      ('passages', 'passage: ', sample.passages, retrieval_set.corpus.texts),
  ):
    texts = [prefix + own[row] for row in rows]
    tokens = tokenizer.vocabulary.encode(texts, 99)
    lengths = [len(tokens.row(i)) for i in range(len(rows))]
    assert counts[side].tolist() == lengths
