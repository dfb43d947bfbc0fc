"""A tokenizer.json with the ids of a BPE model of SentencePiece, as Gemma's.

A whole text is one word. Pieces join in the order of their ids. Pieces that a
user defined are found first, the longest from the left.
"""

from typing import Any

_BPE = 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_SPACE = '▁'


def is_bpe(model: Any) -> bool:
  """Whether a SentencePiece model, as its proto, is of BPE."""
  return model.trainer_spec.model_type == _BPE


def is_plain(model: Any) -> bool:
  """Whether it is a BPE model that `make` can write: it normalises nothing."""
  rules = model.normalizer_spec
  return is_bpe(model) and rules.escape_whitespaces and not (
      rules.precompiled_charsmap
      or rules.add_dummy_prefix
      or rules.remove_extra_whitespaces
      or any(piece.type == _UNUSED for piece in model.pieces)
  )


def make(model: Any) -> dict[str, Any]:
  """The content of a tokenizer.json, without its post_processor."""
  numbers = {p.piece: i for i, p in enumerate(model.pieces)}
  unknown = next(p.piece for p in model.pieces if p.type == _UNKNOWN)
  return {
      'version': '1.0', 'truncation': None, 'padding': None,
      'added_tokens': [
          {
              'id': i, 'content': p.piece, 'single_word': False,
              'lstrip': False, 'rstrip': False,
              'special': p.type != _USER_DEFINED,
              # With spaces as their own sign.
              'normalized': p.type == _USER_DEFINED,
          }
          for i, p in enumerate(model.pieces)
          if p.type in (_UNKNOWN, _CONTROL, _USER_DEFINED)
      ],
      'normalizer': {
          'type': 'Replace', 'pattern': {'String': ' '}, 'content': _SPACE
      },
      'pre_tokenizer': None,
      'decoder': {'type': 'Sequence', 'decoders': [
          {'type': 'Replace', 'pattern': {'String': _SPACE}, 'content': ' '},
          {'type': 'ByteFallback'},
          {'type': 'Fuse'},
      ]},
      'model': {
          'type': 'BPE', 'dropout': None, 'unk_token': unknown,
          'continuing_subword_prefix': None, 'end_of_word_suffix': None,
          'fuse_unk': True, 'byte_fallback': model.trainer_spec.byte_fallback,
          'ignore_merges': False, 'vocab': numbers,
          'merges': _merges(model, numbers),
      },
  }


def _merges(model: Any, numbers: dict[str, int]) -> list[tuple[str, str]]:
  """Pairs of pieces that make a third, in the order of the third's id."""
  pieces = [p.piece for p in model.pieces if p.type == _NORMAL]
  known, merges = set(pieces), []
  for piece in pieces:
    pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
    pairs = [pair for pair in pairs if known.issuperset(pair)]
    merges += sorted(pairs, key=lambda pair: [numbers[x] for x in pair])
  return merges
