"""QUERY_PREFIX and PASSAGE_PREFIX from training to search."""

import json

import brute_force
import pytest
import sentencepiece
import tiny_evaluation
import tiny_run

from dualenc_jax.analysis import sample as sample_lib
from dualenc_jax.commands import encode, evaluate, model_dir, search, train
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import Index

PREFIXES = ['--gin.QUERY_PREFIX=query: ', '--gin.PASSAGE_PREFIX=passage: ']


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A model_dir whose config has prefixes."""
  folder = tmp_path_factory.mktemp('run') / 'model'
  config = tiny_evaluation.copy_model(folder) / 'config.gin'
  text = config.read_text()
  for tower in ('query', 'passage'):
    none = f"{tower.upper()}_PREFIX = ''"
    assert none in text
    text = text.replace(none, none.replace("''", f"'{tower}: '"))
  config.write_text(text)
  return folder


@pytest.mark.parametrize('change', ['QUERY_PREFIX=', 'PASSAGE_PREFIX=passage:'])
def test_going_on_with_another_prefix_is_refused(model, tmp_path, change):
  flags = tiny_run.flags(tmp_path, *PREFIXES, f'--gin.{change}')
  name, _, value = change.partition('=')
  with pytest.raises(
      UserError, match=rf"{name}: '\w+: ' -> '{value}'.*allow_config_change"
  ):
    train.main([*flags, '--gin.STEPS=3', f'--model_dir={model}'])


def test_every_result_tells_the_prefixes(model, tmp_path):
  evaluate.main([f'--model_dir={model}', f'--output_dir={tmp_path / "with"}'])
  index_dir = tmp_path / 'index'
  encode.main([f'--model_dir={model}', f'--index_dir={index_dir}'])
  result = json.loads((tmp_path / 'with' / 'metrics.json').read_text())
  assert result['query_prefix'] == 'query: '
  assert result['passage_prefix'] == 'passage: '
  header = Index.open(index_dir).header.provenance
  assert header['passage_prefix'] == 'passage: '
  assert 'query_prefix' not in header
  # Without them the same model has other vectors, and refuses these.
  none = ['--gin.QUERY_PREFIX=', '--gin.PASSAGE_PREFIX=']
  evaluate.main(
      [f'--model_dir={model}', f'--output_dir={tmp_path / "none"}', *none]
  )
  other = json.loads((tmp_path / 'none' / 'metrics.json').read_text())
  assert (other['query_prefix'], other['passage_prefix']) == ('', '')
  runs = [(tmp_path / n / 'run.trec').read_text() for n in ('with', 'none')]
  assert runs[0] != runs[1]
  with pytest.raises(UserError, match="passage_prefix is 'passage: ', expecte"):
    search.main([
        'map', f'--model_dir={model}', f'--index_dir={index_dir}', *none
    ])


def test_search_puts_the_prefix_before_what_is_asked(model, capsys):
  """The score is the cosine of the two texts with their prefixes."""
  search.main(['find map', f'--model_dir={model}', '--k=1'])
  hit = capsys.readouterr().out.splitlines()[1]
  texts = tiny_evaluation.shared_model().with_name('train.jsonl')
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
  processor = sentencepiece.SentencePieceProcessor(
      model_file=str(tokenizer.vocabulary.file)
  )
  counts = sample.token_counts(tokenizer)
  texts = retrieval_set.query_texts, retrieval_set.corpus.texts
  for side, prefix, rows, own in (
      ('queries', 'query: ', sample.queries, texts[0]),
      ('passages', 'passage: ', sample.passages, texts[1]),
  ):
    expected = [len(processor.encode(prefix + own[row])) + 1 for row in rows]
    assert counts[side].tolist() == expected
