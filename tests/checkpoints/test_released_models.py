"""monoT5 and RankT5 read from Hugging Face and T5X, against transformers."""

import json

import hugging_face_models
import numpy as np
import pytest
import sentencepiece
import tiny_beir
import torch

from dualenc_jax.checkpoints import released_models
from dualenc_jax.cli import main as cli
from dualenc_jax.evaluation.trec import read_run
from dualenc_jax.utils.errors import UserError

ROWS = 32128
# T5's own pieces.
TRUE, FALSE, EXTRA_ID_10 = 1176, 6136, 32089
LENGTH = 48
QUERY = 'who wrote the origin of species'
PASSAGES = [
    'Charles Darwin published it in 1859.',
    'A passage with a great many words in it, ' * 8,
    'species',
]
TEXTS = {
    'monot5': 'Query: {} Document: {} Relevant:',
    'rankt5': 'Query: {} Document: {}',
}


@pytest.fixture(scope='module')
def spiece(shared):
  return shared / 'data' / 't5_spiece' / 'spiece.model'


def tokens_of(form, passage, spiece):
  """The formatted text in ids, of which the document alone is cut."""
  tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(spiece))
  parts = TEXTS[form].format(QUERY, '|').split('|')
  before, after = (tokenizer.encode(part.strip()) for part in parts)
  document = tokenizer.encode(passage)
  room = LENGTH - len(before) - len(after) - 1
  return [*before, *document[:room], *after, 1]


def their_scores(model, form, spiece):
  rows = [tokens_of(form, passage, spiece) for passage in PASSAGES]
  source = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
  for row, ids in zip(source, rows):
    row[: len(ids)] = torch.tensor(ids)
  # In float64: what is compared with it is rounded, it is not.
  with torch.no_grad():
    logits = model.double()(
        input_ids=source, attention_mask=(source != 0).long(),
        decoder_input_ids=torch.zeros(len(rows), 1, dtype=torch.long),
    ).logits[:, 0].numpy()
  if form == 'rankt5':
    return logits[:, EXTRA_ID_10]
  return logits[:, TRUE] - logits[:, FALSE]


@pytest.mark.parametrize('form', TEXTS)
def test_scores_are_those_of_transformers(
    theirs, folder, legacy, spiece, form, version
):
  # Each form in both files, of one version or the other.
  path, vocabulary = (
      (folder, None)
      if (form == 'monot5') == (version == '1.0')
      else (legacy, spiece)
  )
  wanted = their_scores(theirs, form, spiece)
  assert np.ptp(wanted) > 0.01 * np.abs(wanted).max()
  pairs = np.array([[0, 0], [0, 1], [0, 2]])
  teacher = released_models.load_ranker(path, form, vocabulary, LENGTH)
  found = teacher.scores([QUERY], PASSAGES, pairs)
  np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
  assert teacher.provenance['run_id']
  if form == 'rankt5':
    assert teacher.calibration is None
  else:
    np.testing.assert_allclose(
        teacher.calibration.probabilities(found),
        torch.sigmoid(torch.tensor(wanted)), atol=1e-5,
    )


one_version = pytest.mark.parametrize('version', ['1.1'], indirect=True)


@one_version
def test_through_the_command(folder, tmp_path, capsys):
  made = tiny_beir.make(0)
  made.write(tmp_path / 'beir')
  run = ''.join(
      f'{query} Q0 {name} 0 {9 - i} x\n'
      for query in made.queries
      for i, name in enumerate(sorted(made.corpus)[:4])
  )
  (tmp_path / 'run.trec').write_text(run)
  flags = [
      'rerank', f'--teacher={folder}', f'--run={tmp_path / "run.trec"}',
      '--tasks=beir', f'--gin.BEIR_FOLDER={tmp_path / "beir"}', '--split=test',
      f'--output_dir={tmp_path / "out"}', '--depth=3',
  ]
  assert cli.main(flags) == 2
  assert '--teacher_form=monot5 or rankt5' in capsys.readouterr().err
  cli.main([*flags, '--teacher_form=monot5'])
  assert 'sigmoid(1 s + 0)' in capsys.readouterr().out
  header = json.loads((tmp_path / 'out' / 'scores.json').read_text())
  assert header['template']['text'].endswith('Relevant:')
  new = read_run(tmp_path / 'out' / 'run.trec')
  scores = [*new[next(iter(made.queries))].values()]
  assert len(scores) == 4 and scores == sorted(scores, reverse=True)
  # Scores of the one are not taken for those of the other.
  assert cli.main([*flags, '--teacher_form=rankt5']) == 2
  assert 'results of another task' in capsys.readouterr().err
  assert cli.main([*flags, '--teacher_form=rankt5', '--overwrite']) == 2
  assert 'scores of another teacher' in capsys.readouterr().err


@one_version
def test_what_is_no_released_ranker(folder, legacy, spiece, tmp_path):
  with pytest.raises(UserError, match="'monot6'; expected one of monot5, ran"):
    released_models.load_ranker(folder, 'monot6')
  alone = tmp_path / 'encoder'
  hugging_face_models.model('T5EncoderModel').save_pretrained(alone)
  with pytest.raises(UserError, match='has no decoder, whose first token'):
    released_models.load_ranker(alone, 'rankt5')
  with pytest.raises(UserError, match='--teacher_vocabulary=spiece.model'):
    released_models.load_ranker(legacy, 'monot5')
  # As many pieces as embeddings, but others.
  small = tmp_path / 'small'
  hugging_face_models.model(
      'T5ForConditionalGeneration', vocab_size=8064, decoder_start_token_id=0
  ).save_pretrained(small)
  with pytest.raises(UserError, match="piece 1176 .* expected '▁true'"):
    released_models.load_ranker(small, 'rankt5', 'python_code_8k')
  # As it is released: a pickle, which transformers converts with its decoder.
  (small / 'model.safetensors').rename(small / 'pytorch_model.bin')
  with pytest.raises(UserError, match='is a pickle.*T5ForConditional'):
    released_models.load_ranker(small, 'monot5', spiece)
