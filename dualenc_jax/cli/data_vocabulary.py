r"""Trains a SentencePiece vocabulary on the texts of a task.

  dualenc data vocabulary train.jsonl --output_file=my.model
  dualenc data vocabulary --gin_file=tasks/documents.gin
    --gin.DOCUMENTS=docs.jsonl --output_file=my.model --size=16000

The texts are the queries and passages of the train split; lines of more than
4,192 bytes are left out, and counted. Letters are lower-cased and Unicode forms
unified (SentencePiece's nmt_nfkc_cf).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import pathlib
import string
import tempfile
from typing import Any

import sentencepiece

from dualenc_jax.cli import config, data_command, flags, runtime
from dualenc_jax.data.dataset import rows
from dualenc_jax.data.text.tokenizer import EOS, PAD, UNK, Vocabulary
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

# SentencePiece leaves out lines of more bytes, or with this character.
_MAX_BYTES, _RESERVED = 4192, '▅'


def train(
    lines: Sequence[str], size: int, output: pathlib.Path,
    rules: Mapping[str, str] | None = None,
) -> None:
  """Writes a unigram model with T5's ids of `size` pieces, of few lines fewer.

  `rules` are texts that the normaliser replaces; from the left, the longest
  wins. None is nmt_nfkc_cf.
  """
  how: dict[str, Any] = {
      'normalization_rule_name': 'nmt_nfkc_cf', 'hard_vocab_limit': False
  }
  required = {*string.punctuation, *string.digits, *string.ascii_lowercase}
  files.make_folder(output.parent, 'another --output_file')
  with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    if rules:
      # The model records the path of the rules: a relative one is the same in
      # every run and on every machine.
      how = {'normalization_rule_tsv': 'rules.tsv'}
      required -= rules.keys()
      pathlib.Path('rules.tsv').write_text(''.join(
          f'{_code_points(source)}\t{_code_points(target)}\n'
          for source, target in sorted(rules.items())
      ))
    try:
      with open('new.model', 'wb') as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type='unigram',
            vocab_size=size,
            pad_id=PAD, eos_id=EOS, unk_id=UNK, bos_id=-1,
            # A rare character is unknown, but every ASCII one has a piece.
            required_chars=''.join(sorted(required)),
            # One thread, so that sums of floats have one order. Errors are
            # raised; warnings would name flags that this command lacks.
            num_threads=1, minloglevel=2, **how,
        )
    except (RuntimeError, ValueError) as e:
      raise UserError(
          f'Cannot make a vocabulary of {size} pieces from {len(lines):,}'
          f' lines: {e}. Give more text, or another --size.'
      ) from e
    content = pathlib.Path('new.model').read_bytes()
  files.write(output, content, 'another --output_file')


def main(
    argv: Sequence[str] | None = None, rules: Mapping[str, str] | None = None
) -> None:
  args = config.parse_args(make_parser(), argv)
  runtime.start_logging()
  # Training itself is in another folder.
  output = pathlib.Path(args.output_file).expanduser().absolute()
  if output.exists() and not args.overwrite:
    raise UserError(
        f'{args.output_file} exists, and models may need it. Give another'
        ' --output_file, or --overwrite.'
    )
  inputs = data_command.build(args)
  parts = (task for task, _ in inputs.task.parts())
  lines = [x for task in parts for x in _lines(rows(task, 'train'))]
  kept = [
      line for line in lines
      if len(line.encode()) <= _MAX_BYTES and _RESERVED not in line
  ]
  if left_out := len(lines) - len(kept):
    print(
        f'Left out, as SentencePiece has it: {left_out:,} of {len(lines):,}'
        f' lines, of more than {_MAX_BYTES:,} bytes or with {_RESERVED!r}.'
    )
  train(kept, args.size, output, rules)
  size = Vocabulary(str(output)).size
  print(
      f'Written: {args.output_file}, {size:,} pieces. Train with'
      f' --gin.VOCABULARY={args.output_file}.'
  )


def make_parser() -> flags.Parser:
  parser = config.make_parser('data vocabulary', __doc__)
  data_command.add_flags(parser)
  add = parser.add_argument
  add('--output_file', required=True, metavar='FILE.model',
      help='file to write')
  add('--overwrite', action='store_true', help='replace an existing file')
  add('--size', default=8000, type=flags.whole(),
      help='number of pieces; fewer if the texts are few (default %(default)s)')
  return parser


def _lines(examples: Iterable[dict[str, Any]]) -> Iterator[str]:
  for example in examples:
    yield from filter(None, [example['query'].strip()])
    yield from filter(None, map(str.strip, example['passage'].splitlines()))


def _code_points(text: str) -> str:
  return ' '.join(f'{ord(char):X}' for char in text)
