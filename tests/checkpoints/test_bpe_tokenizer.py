"""A BPE tokenizer as Gemma's: transformers gives Vocabulary's ids."""

import random

import gemma_models
import numpy as np
import pytest
import transformers

from dualenc_jax.checkpoints import hugging_face_tokenizer
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.data.text.tokenizer import Vocabulary

TEXTS = [
    '', ' ', 'a', '  a  b', 'a\n\nb\n\n\nc', '     five', 'def f(x):\n    y',
    '<bos>a<eos>', '<pad>', '<start_of_turn>user <start_of_turn', '▁x▁▁▁y',
    'étude 日本語 😀', '\x00\x07', 'word ' * 50, 'x' * 500, '<0x41>', '<unk> u',
]


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
  return gemma_models.write_vocabulary(
      tmp_path_factory.mktemp('vocabulary') / 'my.model'
  )


@pytest.mark.parametrize(
    'ends', [(True, True), (True, False), (False, True)]
)
def test_ids_of_the_written_tokenizer(vocabulary, tmp_path, ends):
  special = dict(zip(('add_bos', 'add_eos'), ends))
  (tmp_path / 'config.json').write_text('{"model_type": "gemma3_text"}')
  usage = Usage(vocabulary, query_length=9, passage_length=12, **special)
  hugging_face_tokenizer.write(usage, tmp_path)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  rng = random.Random(0)
  ours = Vocabulary(str(vocabulary), **special)
  pieces = [ours.decode(np.array([i])) for i in range(gemma_models.ROWS)]
  texts = TEXTS + [
      ''.join(rng.choices(pieces, k=rng.randint(1, 30))) for _ in range(300)
  ]
  for length in 5, 10_000:
    rows = ours.encode(texts, length)
    ids = theirs(texts, truncation=True, max_length=length)['input_ids']
    for i, text in enumerate(texts):
      assert rows.row(i).tolist() == ids[i], text
  read = hugging_face_tokenizer.read(
      tmp_path, {'add_bos': True, 'add_eos': False}
  )
  assert read.special_tokens == special
  assert read.vocabulary.name == 'tokenizer.model'
