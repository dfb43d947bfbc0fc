r"""Trains the SentencePiece vocabulary of `python_code`.

  python -m dualenc_jax.commands.train_vocabulary --output=FILE.model

The text is the train split of this Python's standard library, queries and
passages. The model itself, not code around it, splits identifiers into words:
its normaliser, stored in the .model file, maps `parse_iso_date` to
'parse iso date' and `HTTPServer` to 'http server', so that an identifier in a
passage and the words of a query share their pieces. It also lower-cases ASCII
letters and puts a space before a letter that follows punctuation, so that
`self.parse(` holds the same piece as 'parse' after a space. Any SentencePiece
runtime, T5X's too, tokenises alike.
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import itertools
import pathlib
import string
import tempfile

import numpy as np
import sentencepiece

from dualenc_jax.readers.python_code import PythonCode
from dualenc_jax.text.tokenizer import EOS, PAD, Tokenizer, UNK, Vocabulary

_LOWER, _UPPER = string.ascii_lowercase, string.ascii_uppercase


def normalization_rules() -> dict[str, str]:
  """What the normaliser replaces; the longest match wins, from the left."""
  rules = {char: ' ' for char in '\t\n\r\f\v_\u00a0\ufeff'}
  rules |= {char: char.lower() for char in _UPPER}
  # parseDate -> parse date
  for a, b in itertools.product(_LOWER, _UPPER):
    rules[a + b] = f'{a} {b.lower()}'
  # HTTPServer -> http server: the last capital belongs to what follows.
  for a, b, c in itertools.product(_UPPER, _UPPER, _LOWER):
    rules[a + b + c] = f'{a} {b}{c}'.lower()
  # x.parse -> x. parse
  for a, b in itertools.product(string.punctuation, string.ascii_letters):
    rules[a + b] = f'{" " if a == "_" else a + " "}{b.lower()}'
  return rules


def train(lines: Sequence[str], size: int, output: pathlib.Path) -> None:
  """Writes a unigram model of `size` pieces with T5's ids."""
  output.parent.mkdir(parents=True, exist_ok=True)
  rules = ''.join(
      f'{_code_points(source)}\t{_code_points(target)}\n'
      for source, target in sorted(normalization_rules().items())
  )
  with open(output, 'wb') as model, tempfile.TemporaryDirectory() as folder:
    # The model records the path of the rules: a relative one is the same in
    # every run and on every machine.
    with contextlib.chdir(folder):
      pathlib.Path('rules.tsv').write_text(rules)
      sentencepiece.SentencePieceTrainer.train(
          sentence_iterator=iter(lines),
          model_writer=model,
          model_type='unigram',
          vocab_size=size,
          pad_id=PAD,
          eos_id=EOS,
          unk_id=UNK,
          bos_id=-1,
          normalization_rule_tsv='rules.tsv',
          # A rare character is unknown, but every ASCII one has a piece.
          required_chars=''.join(
              sorted({*string.punctuation, *string.digits, *_LOWER} - {'_'})
          ),
          # One thread, so that sums of floats have one order.
          num_threads=1,
          minloglevel=1,
      )


def length_report(tokenizer: Tokenizer, examples: Sequence[dict]) -> str:
  """Token lengths of queries and passages, uncut, EOS included."""
  vocabulary = tokenizer.vocabulary
  lines = []
  for name in ('query', 'passage'):
    texts = [example[name] for example in examples]
    lengths = vocabulary.encode(texts, 1 << 30).lengths
    median, high = np.percentile(lengths, [50, 90])
    cut = np.mean(lengths > getattr(tokenizer, f'{name}_length'))
    lines.append(
        f'{name}: mean {lengths.mean():.1f}, median {median:.0f},'
        f' 90% {high:.0f} tokens; {cut:.1%} longer than'
        f' {getattr(tokenizer, f"{name}_length")}'
    )
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(
      description='Trains the vocabulary of python_code.'
  )
  parser.add_argument('--output', required=True, type=pathlib.Path)
  parser.add_argument('--size', default=8000, type=int)
  args = parser.parse_args()
  examples = list(PythonCode().examples('train'))
  train(list(_lines(examples)), args.size, args.output)
  print(length_report(Tokenizer(Vocabulary(str(args.output))), examples))


def _lines(examples: Sequence[dict]) -> Iterator[str]:
  for example in examples:
    yield example['query']
    # SentencePiece leaves out sentences of more than 4,192 bytes.
    yield from filter(None, map(str.strip, example['passage'].splitlines()))


def _code_points(text: str) -> str:
  return ' '.join(f'{ord(char):X}' for char in text)


if __name__ == '__main__':
  main()
