"""The vocabulary command: its normaliser, its ids, and that runs agree."""

import json
import pathlib
import runpy

import pytest
import sentencepiece
import tiny_run

from dualenc_jax.cli import data_vocabulary as command
from dualenc_jax.cli.data_vocabulary import train
from dualenc_jax.data.text.tokenizer import vocab_size, Vocabulary
from dualenc_jax.utils.errors import UserError

BENCHMARKS = pathlib.Path(__file__).parents[2] / 'benchmarks'
RULES = runpy.run_path(str(BENCHMARKS / 'code_vocabulary.py'))['rules']()
LINES = [
    f'def parse_{a}(self): return self.{a}_{b} + {i}'
    for i, (a, b) in enumerate(
        (a, b)
        for a in ('date', 'time', 'zone', 'name', 'path')
        for b in ('first', 'second', 'third', 'last')
    )
]


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocabulary') / 'new' / 'toy.model'
  train(LINES, 80, path, RULES)
  return path


def test_runs_write_the_same_bytes_which_vocabulary_expects(model, tmp_path):
  train(LINES, 80, tmp_path / 'again.model', RULES)
  assert (tmp_path / 'again.model').read_bytes() == model.read_bytes()
  vocabulary = Vocabulary(str(model))
  assert vocabulary.size == 80 and vocab_size(vocabulary) == 128
  assert vocabulary.encode(['date'], 9).row(0).tolist()[-1] == 1


@pytest.mark.parametrize(
    'text,normal',
    [
        ('__init__', '▁init'),
        ('HTTPServer', '▁http▁server'),
        ('self.parse(x)', '▁self.▁parse(▁x)'),
        ('sha256 = 0xFF', '▁sha256▁=▁0x▁ff'),
        ('É 中', '▁É▁中'),
    ],
)
def test_normaliser_is_in_the_model(model, text, normal):
  processor = sentencepiece.SentencePieceProcessor()
  processor.load(str(model))
  pieces = processor.encode_as_pieces(text)
  assert ''.join(pieces) == normal


def test_the_command_takes_the_texts_of_a_task(tmp_path, capfd):
  path = tiny_run.write_pairs(tmp_path / 'a.jsonl', 60)
  with path.open('a') as file:
    file.write(json.dumps({'query': 'q ▅', 'passage': 'long ' * 900 + '\nb'}))
  output = tmp_path / 'own.model'
  command.main([str(path), f'--output_file={output}', '--size=120'])
  vocabulary = Vocabulary(str(output))
  said = capfd.readouterr()
  assert f'--gin.VOCABULARY={output}.' in said.out
  assert 'lines, of more than 4,192' in said.out and 'long line' not in said.err
  # Whole words of the texts, in any case of their letters, are a piece.
  assert len(vocabulary.encode(['Array cache'], 9).row(0)) <= 4
  own = sentencepiece.SentencePieceProcessor(model_file=str(output))
  assert own.normalize('A\u0308') == own.normalize('Ä') == '▁ä'


def test_bad_input(tmp_path):
  path = tiny_run.write_pairs(tmp_path / 'a.jsonl', 2)
  argv = [str(path), f'--output_file={tmp_path / "o.model"}', '--size=1']
  with pytest.raises(UserError, match='a vocabulary of 1 pieces'):
    command.main(argv)
  assert not (tmp_path / 'o.model').exists()
  with pytest.raises(UserError, match='exists.* or --overwrite'):
    command.main([*argv, f'--output_file={path}'])
