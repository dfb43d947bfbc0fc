"""The tokenizer files beside a Hugging Face model.

`write` makes a tokenizer.json that gives the ids of the SentencePiece file, a
unigram model as T5's or a BPE model as Gemma's. The T5 tokenizer of
transformers gives others: it takes '</s>' in a text for the end of it, has 100
more such words, and knows T5's normalisation alone.
"""

import base64
from collections.abc import Mapping
import json
import pathlib
import re
import shutil
import string
import sys
from typing import Any
import unicodedata

from dualenc_jax.checkpoints import bpe_tokenizer
from dualenc_jax.checkpoints.vocabulary import Model as _Model, read_model
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.data.text.tokenizer import (
  EOS,
  PAD,
  SPECIAL_TOKENS,
  UNK,
  Vocabulary,
)
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError

VOCABULARY = 'spiece.model'
# Gemma's name of the same.
_GEMMA_VOCABULARY = 'tokenizer.model'
_TOKENIZER = 'tokenizer.json'
CONFIG = 'tokenizer_config.json'
_LENGTH = 'model_max_length'
# transformers writes 1e30 where there is no limit.
_NO_LENGTH = 10**9
_SPACE = '▁'
_SHIPPED = 'python_code_8k'
_UNCHANGED = dict.fromkeys(
    ('single_word', 'lstrip', 'rstrip', 'normalized'), False
)
# string.punctuation, inside of a character class.
_MARKS = r'!-/:-@\[-`{-~'
_UNIGRAM, _NORMAL, _USER_DEFINED, _UNUSED = 1, 1, 4, 5
# Keep characters apart, and stand for the end of a text: neither is a
# character, so that no text has it.
_APART, _END = '\ufdd0', '\ufdd1'
# Characters that join the one before them, as a character class.
_JOINING = r'\n\p{M}\x{200c}\x{200d}\x{ff9e}\x{ff9f}\x{1f3fb}-\x{1f3ff}'


def read(
    folder: pathlib.Path, special_tokens: Mapping[str, Any] = SPECIAL_TOKENS
) -> Usage:
  """The vocabulary and the length of a folder, where its files have them.

  Pieces are those of SentencePiece, without T5's extra ids after them.
  `special_tokens` are the settings where no file has them.
  """
  config, pieces, *vocabularies = (
      path if path.is_file() else None
      for path in (folder / n for n in (
          CONFIG, _TOKENIZER, VOCABULARY, _GEMMA_VOCABULARY
      ))
  )
  vocabulary = next(filter(None, vocabularies), None)
  length = _read_length(config) if config else None
  if special_tokens != SPECIAL_TOKENS:
    special_tokens = _read_special_tokens(config, pieces, special_tokens)
  if vocabulary or not pieces:
    return Usage(vocabulary, None, length, length, **special_tokens)
  return Usage(None, _read_pieces(pieces), length, length, **special_tokens)


def _read_special_tokens(
    config: pathlib.Path | None, tokenizer: pathlib.Path | None,
    usual: Mapping[str, Any],
) -> Mapping[str, Any]:
  """Whether BOS and EOS are put around texts, as transformers decides it."""
  if config:
    given = json_file.read(config)
    keys = {f'{name}_token?': bool for name in usual}
    json_file.check(given, keys, config, 'Copy it again.')
    if any(f'{name}_token' in given for name in usual):
      return {name: given.get(f'{name}_token', False) for name in usual}
  if tokenizer is None:
    return usual
  types: dict[str, Any] = {'post_processor?': dict | None}
  content = json_file.read(tokenizer, **types)
  processor = content.get('post_processor') or {}
  where = f'{tokenizer}: post_processor'
  steps = [processor, *(processor.get('processors') or ())]
  for step in steps:
    json_file.check(step, {'single?': [dict]}, where, 'Copy it again.')
    if step.get('type') == 'TemplateProcessing':
      kinds = ['SpecialToken' in part for part in step.get('single', ())]
      if kinds.count(False) == 1:
        at = kinds.index(False)
        return {'add_bos': at > 0, 'add_eos': at < len(kinds) - 1}
  return usual


def _read_length(path: pathlib.Path) -> int | None:
  """Maximum tokens of a text; None where tokenizer_config.json has no limit."""
  length = json_file.read(path).get(_LENGTH)
  if length is None or type(length) in (int, float) and not (
      0 < length < _NO_LENGTH
  ):
    return None
  json_file.check(length, int, f'{path}: {_LENGTH}', 'Copy it again.')
  return length


def write(usage: Usage, folder: pathlib.Path) -> None:
  """Writes tokenizer.json, its config, and a copy of the SentencePiece file."""
  path = usage.vocabulary
  assert path is not None
  proto = _read_model(path)
  is_bpe = bpe_tokenizer.is_bpe(proto)
  content = bpe_tokenizer.make(proto) if is_bpe else _make_unigram(proto, path)
  lengths = filter(None, (usage.query_length, usage.passage_length))
  config = {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      **_special_pieces(usage, path),
      'model_input_names': ['input_ids', 'attention_mask'],
      _LENGTH: max(lengths, default=int(1e30)),
      # '</s>' in a text is text.
      'split_special_tokens': True,
      'extra_ids': 0,
  }
  files.write_json(folder / CONFIG, config)
  content['post_processor'] = _make_post_processor(usage, path)
  _write(content, path, folder)


def _special_pieces(usage: Usage, path: pathlib.Path) -> dict[str, Any]:
  """Special tokens and settings of BOS and EOS for tokenizer_config.json."""
  vocabulary = Vocabulary(str(path), **usage.special_tokens)
  pieces = read_model(path).pieces
  names = {
      'pad_token': PAD, 'eos_token': EOS, 'unk_token': vocabulary.unk,
  }
  settings: dict[str, Any] = {n: pieces[i].piece for n, i in names.items()}
  if vocabulary.special_tokens:
    settings |= {
        f'{name}_token': value
        for name, value in usage.special_tokens.items()
    }
  if usage.add_bos:
    settings['bos_token'] = pieces[vocabulary.bos].piece
  return settings


def write_static(usage: Usage, folder: pathlib.Path) -> None:
  """Writes a tokenizer.json whose ids include the end of a text by themselves.

  Static models take ids without special tokens. The normaliser puts a character
  that no text has before a text, the piece of the end of a text; a bag of ids
  has no order.
  """
  path = usage.vocabulary
  assert path is not None
  content = _make_unigram(_read_model(path), path)
  content['model']['vocab'][EOS][0] = _END
  # Without the others, '<unk>' in a text is text.
  end = content['added_tokens'][EOS]
  content['added_tokens'] = [
      end | {'content': _END, 'special': False, 'normalized': True}
  ]
  steps = content['normalizer']['normalizers']
  steps.append({'type': 'Prepend', 'prepend': _END})
  content['post_processor'] = None
  if usage.query_length:
    content['truncation'] = {
        'direction': 'Right', 'max_length': usage.query_length,
        'strategy': 'LongestFirst', 'stride': 0,
    }
  _write(content, path, folder)


def _write(
    content: Mapping[str, Any], vocabulary: pathlib.Path, folder: pathlib.Path
) -> None:
  text = json.dumps(content, ensure_ascii=False)
  files.write(folder / _TOKENIZER, text)
  is_bpe = content['model']['type'] == 'BPE'
  name = _GEMMA_VOCABULARY if is_bpe else VOCABULARY
  shutil.copyfile(vocabulary, folder / name)


def adds_end(tokenizer: Mapping[str, Any]) -> bool:
  """Whether `write_static` wrote the content of a tokenizer.json."""
  added = tokenizer.get('added_tokens') or ()
  return any(token.get('content') == _END for token in added)


def _make_post_processor(usage: Usage, path: pathlib.Path) -> dict[str, Any]:
  vocabulary = Vocabulary(str(path), **usage.special_tokens)
  pieces = read_model(path).pieces
  ends: list[list[Any]] = [[], []]
  tokens = {}
  for side, added, number in (
      (0, usage.add_bos, vocabulary.bos), (1, usage.add_eos, EOS)
  ):
    if added:
      piece = pieces[number].piece
      ends[side] = [{'SpecialToken': {'id': piece, 'type_id': 0}}]
      tokens[piece] = {'id': piece, 'ids': [number], 'tokens': [piece]}
  first, second = (
      [*ends[0], {'Sequence': {'id': n, 'type_id': 0}}, *ends[1]]
      for n in ('A', 'B')
  )
  return {
      'type': 'TemplateProcessing', 'single': first,
      # The second of a pair has no BOS of its own.
      'pair': [*first, *second[len(ends[0]) :]], 'special_tokens': tokens,
  }


def _make_unigram(proto: _Model, path: pathlib.Path) -> dict[str, Any]:
  control = [proto.pieces[i].piece for i in range(UNK + 1)]
  return {
      'version': '1.0', 'truncation': None, 'padding': None,
      'added_tokens': [
          {'id': i, 'content': piece, **_UNCHANGED, 'special': True}
          for i, piece in enumerate(control)
      ],
      'normalizer': _make_normalizer(proto, path),
      'pre_tokenizer': _make_pre_tokenizer(proto),
      'decoder': _metaspace('always'),
      'model': {
          'type': 'Unigram',
          'unk_id': UNK,
          'vocab': [[p.piece, _round_score(p.score)] for p in proto.pieces],
          'byte_fallback': proto.trainer_spec.byte_fallback,
      },
  }


def _round_score(score: float) -> float:
  """Rounds a score to digits that tokenizers reads exactly.

  Its JSON reader is off by a bit for longer scores, and then sums of the same
  scores in another order differ: it would not choose SentencePiece's of two
  equally good splits, '-' '---' and '---' '-'.
  """
  return round(score * 2**14) / 2**14


def _make_pre_tokenizer(model: _Model) -> dict[str, Any]:
  """Cuts before each space, and within texts that spell a special piece.

  Their model would match '</s>' and '<0x41>'; SentencePiece never does. Nothing
  is cut before a space where pieces go on beyond it.
  """
  special = [p.piece for p in model.pieces if p.type != _NORMAL]
  beyond = any(_SPACE in p.piece[1:] for p in model.pieces)
  inside = '|'.join(f'{re.escape(p[0])}(?={re.escape(p[1:])})' for p in special)
  cut = {
      'type': 'Split', 'pattern': {'Regex': inside},
      'behavior': 'MergedWithPrevious', 'invert': False,
  }
  spaces = _metaspace('never', not beyond)
  return {'type': 'Sequence', 'pretokenizers': [spaces, cut]}


def _metaspace(prepend: str, split: bool = True) -> dict[str, Any]:
  where = {'replacement': _SPACE, 'prepend_scheme': prepend, 'split': split}
  return {'type': 'Metaspace', **where}


def _read_model(path: pathlib.Path) -> _Model:
  proto = read_model(path)
  if bpe_tokenizer.is_plain(proto):
    return proto
  kinds = {piece.type for piece in proto.pieces}
  if (
      proto.trainer_spec.model_type != _UNIGRAM
      or kinds & {_USER_DEFINED, _UNUSED}
      or proto.trainer_spec.treat_whitespace_as_suffix
      or not proto.normalizer_spec.escape_whitespaces
  ):
    raise UserError(
        f"{path} is neither a plain unigram model of SentencePiece like T5's,"
        ' with spaces before words and without unused or user-defined pieces,'
        " nor a BPE model like Gemma's, without normalisation."
    )
  return proto


def _read_pieces(path: pathlib.Path) -> tuple[str, ...]:
  """Pieces in the order of their ids, without the extra ids at the end."""
  again = 'Copy it again.'
  content = json_file.read(path, again)
  json_file.check(content, {'model': {'vocab': dict | list}}, path, again)
  vocabulary, where = content['model']['vocab'], f'{path}: model: vocab'
  if isinstance(vocabulary, dict):
    # Static models have that of WordPiece.
    json_file.check(vocabulary, {str: int}, where, again)
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
  else:
    json_file.check(vocabulary, [list], where, again)
    pieces = [pair[0] if pair else None for pair in vocabulary]
    json_file.check(pieces, [str], where, again)
  while pieces and pieces[-1].startswith('<extra_id_'):
    pieces.pop()
  return tuple(pieces)


def _make_normalizer(model: _Model, path: pathlib.Path) -> dict[str, Any]:
  spec = model.normalizer_spec
  steps = []
  if spec.name == 'user_defined':
    shipped = read_model(Vocabulary(_SHIPPED).file).normalizer_spec
    if spec.precompiled_charsmap != shipped.precompiled_charsmap:
      raise UserError(
          f'{path} has custom normalisation rules, which transformers cannot'
          f' apply; expected those of {_SHIPPED} or of SentencePiece, such as'
          ' nmt_nfkc.'
      )
    # `Precompiled` takes a letter with its marks for one character, and drops
    # the marks where a rule is for the letter: these rules are steps of others.
    steps.append(_replace(_word_boundaries(), ' '))
    steps.append(_replace(r'[\t\n\r\f\v_\x{a0}\x{feff}]', ' '))
    steps += [_replace(a, a.lower()) for a in string.ascii_uppercase]
  elif spec.precompiled_charsmap:
    rules = base64.b64encode(spec.precompiled_charsmap).decode()
    # `Precompiled` takes a letter with its marks for one character, and drops
    # marks: it gets each alone, and what SentencePiece composes NFC does.
    # At the start of a text nothing is inserted: tokenizers would crash.
    joining, together = f'(?!\\A)(?=[{_JOINING}])', _replace(_APART, '')
    steps += [
        _replace(joining, _APART),
        {'type': 'Precompiled', 'precompiled_charsmap': rules},
        together,
        # NFC composes across marks, and sorts them, too.
        _replace(f'{joining}(?!{_composed()})', _APART),
        {'type': 'NFC'},
        together,
    ]
  if spec.remove_extra_whitespaces:
    steps += [_replace(rf'\A +|[ {_SPACE}]+\z', ''), _replace(' {2,}', ' ')]
  if spec.add_dummy_prefix:
    steps.append({'type': 'Prepend', 'prepend': _SPACE})
  steps.append(_replace(' ', _SPACE))
  return {'type': 'Sequence', 'normalizers': steps}


def _replace(pattern: str, content: str) -> dict[str, Any]:
  where = {'Regex': pattern}
  return {'type': 'Replace', 'pattern': where, 'content': content}


def _composed() -> str:
  """A pattern of marks behind characters that NFC composes them with."""
  before: dict[str, set[str]] = {}
  for char in map(chr, range(sys.maxunicode + 1)):
    for base, mark in _decompositions(char):
      before.setdefault(mark, set()).add(base)
  return '|'.join(
      f'{mark}(?<=(?:{"|".join(sorted(bases))}){mark})'
      for mark, bases in before.items()
  )


def _decompositions(char: str) -> list[tuple[str, str]]:
  """The sequences that NFC composes to a character, the last mark apart."""
  parts = unicodedata.decomposition(char).split()
  if (
      len(parts) != 2
      or parts[0].startswith('<')  # It is the kind of a compatible text.
      or unicodedata.normalize('NFC', char) != char
  ):
    return []
  base, mark = (chr(int(part, 16)) for part in parts)
  return [(base, mark), *((b + m, mark) for b, m in _decompositions(base))]


def _word_boundaries() -> str:
  """A pattern of the places where `code_vocabulary.py` puts a space.

  Its rules are applied from the left, and a letter that one of them has matched
  is not the first of another match: 'aB', 'ABc' and '.a' become 'a b', 'a bc'
  and '. a', but '.aB' becomes '. ab'. So a match depends on the text before it,
  of which a regular expression sees a bounded length: 'ABcDEfGHi', which
  alternates single lower-case letters with pairs of capitals, may be split
  otherwise.
  """
  upper, lower, pair = '[A-Z]', '[a-z]', '[A-Z][A-Z]'
  mark = f'[{_MARKS}]'
  # Neither a mark nor a letter, or the start.
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
