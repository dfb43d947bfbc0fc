"""A SentencePiece vocabulary small enough for the models of T5X's goldens."""

import argparse
import io
import pathlib

import sentencepiece

SIZE = 300


def write(path: pathlib.Path, **options) -> pathlib.Path:
  """Trains one with T5's ids on a module of the standard library."""
  texts = pathlib.Path(argparse.__file__).read_text().splitlines()
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts), model_writer=model,
      hard_vocab_limit=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
      minloglevel=2, **{'vocab_size': SIZE, **options},
  )
  path.write_bytes(model.getvalue())
  return path
