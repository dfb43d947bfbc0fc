"""SentencePiece's normalisation in the words of Hugging Face's tokenizers."""

import base64
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from dualenc_jax.errors import UserError
from dualenc_jax.text.tokenizer import Vocabulary

SPACE = '▁'
_SHIPPED = 'python_code_8k'
# string.punctuation, inside of a character class.
_MARKS = r'!-/:-@\[-`{-~'


def of(model: sentencepiece_model_pb2.ModelProto, path: str) -> dict[str, Any]:
  """The normalizer of tokenizer.json that does what a model file says.

  Args:
    model: a SentencePiece model.
    path: of its file, for messages.

  Raises:
    UserError: the rules of its normaliser are its own, beyond what a tokenizer
      of transformers can do.
  """
  spec = model.normalizer_spec
  steps = []
  if spec.name == 'user_defined':
    if spec.precompiled_charsmap != _shipped_rules():
      raise UserError(
          f'{path} has normalisation rules of its own, which tokenizers of'
          f' transformers cannot apply. Expected those of {_SHIPPED} or one of'
          " SentencePiece's own, such as nmt_nfkc."
      )
    # Their form of the rules knows single characters only.
    steps.append(_replace(_between_words(), ' '))
  if spec.precompiled_charsmap:
    rules = base64.b64encode(spec.precompiled_charsmap).decode()
    steps.append({'type': 'Precompiled', 'precompiled_charsmap': rules})
  if spec.remove_extra_whitespaces:
    steps += [_replace(r'\A +| +\z', ''), _replace(' {2,}', ' ')]
  if spec.add_dummy_prefix:
    steps.append({'type': 'Prepend', 'prepend': SPACE})
  steps.append(_replace(' ', SPACE))
  return {'type': 'Sequence', 'normalizers': steps}


def _replace(pattern: str, content: str) -> dict[str, Any]:
  return {
      'type': 'Replace',
      'pattern': {'Regex': pattern},
      'content': content,
  }


def _shipped_rules() -> bytes:
  model = sentencepiece_model_pb2.ModelProto.FromString(
      Vocabulary(_SHIPPED).file.read_bytes()
  )
  return model.normalizer_spec.precompiled_charsmap


def _between_words() -> str:
  """Where `train_vocabulary.normalization_rules` put a space into a text.

  The rules are applied from the left, and a letter that one of them has matched
  is not the first of another match: 'aB', 'ABc' and '.a' become 'a b', 'a bc'
  and '. a', but '.aB' becomes '. ab'. So whether a rule applies depends on what
  precedes it. A regular expression looks back over a bounded length: texts that
  alternate single lower-case letters with pairs of capitals, 'ABcDEfGHi', may
  be split otherwise.
  """
  upper, lower, pair = '[A-Z]', '[a-z]', '[A-Z][A-Z]'
  mark = f'[{_MARKS}]'
  # Neither a mark nor a letter: or the start.
  other = [f'[^A-Za-z{_MARKS}]', r'\A']
  no_upper = ['[^A-Z]', r'\A']
  # Lower-case letters that begin a match, if a capital follows.
  free = [
      lower * 2,
      *(start + lower for start in other),
      *(start + upper + lower for start in no_upper),
  ]
  free += [start + pair + lower for start in (mark, *free)]
  # Pairs of capitals, the first of which begins a match.
  begun = [
      *(start + upper for start in other),
      mark + lower + upper,
      upper * 3 + lower + upper,
      *(start + pair + lower + upper for start in other),
      pair,
  ]
  return '|'.join([
      f'(?<={mark})(?=[A-Za-z])',
      f'(?<={"|".join(free)})(?={upper})',
      f'(?<={"|".join(begun)})(?={upper}{lower})',
  ])
