"""Converts a model between this library, T5X, Hugging Face and others.

  dualenc convert my_model --to=sentence_transformers --out=my_st_model
  dualenc convert gtr-t5-base --to=model_dir --out=gtr
  dualenc convert t5x/checkpoint_1000000 --to=hf --out=t5 --vocabulary=sp.model

The source is a model_dir, a T5X checkpoint (legacy or Orbax), a Hugging Face
folder of a T5 or mT5, a sentence-transformers folder, or what this command
wrote; it is told by its content. Before the output appears, 64 texts are
encoded by source and output, each by its own library; cosines that differ by
more than 1e-4 are an error.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import shutil
import signal
import sys
import threading
import uuid

from dualenc_jax.commands import model_dir, runtime
from dualenc_jax.commands.model_forms import Form, FORMS
from dualenc_jax.errors import UserError
from dualenc_jax.interop import (
  hugging_face,
  loaded,
  opening,
  own,
  peers,
  sentence_transformers,
  verify,
)
from dualenc_jax.interop.sentence_transformers.modules import MODULES
from dualenc_jax.interop.weights import count_reasons, Usage, Weights
from dualenc_jax.io import files


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  runtime.start_logging()
  runtime.return_freed_memory()
  runtime.use_compilation_cache()
  convert(args, FORMS[args.to])


def make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog='dualenc convert',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument('source', help='the checkpoint, a folder or a file')
  parser.add_argument(
      '--to',
      choices=FORMS,
      required=True,
      help='; '.join(f'{name}: {form.text}' for name, form in FORMS.items()),
  )
  parser.add_argument('--out', required=True, help='a folder, to be made')
  parser.add_argument(
      '--step', type=int, help='checkpoint of a model_dir, newest by default'
  )
  parser.add_argument(
      '--vocabulary',
      help='SentencePiece file, where the source has none (T5X) or only a'
      ' tokenizer.json',
  )
  for tower in ('query', 'passage'):
    parser.add_argument(
        f'--{tower}_length',
        type=int,
        help=f'most tokens of a {tower}; what the source says by default',
    )
    parser.add_argument(
        f'--{tower}_prefix', help=f'put in front of every {tower}; likewise'
    )
  parser.add_argument(
      '--texts',
      metavar='FILE',
      help='texts to compare with, one a line; 64 of the standard library of'
      ' Python by default',
  )
  return parser


def convert(args: argparse.Namespace, form: Form) -> None:
  """Reads, writes beside the output, compares, and moves it into place."""
  out = pathlib.Path(args.out).expanduser().absolute()
  check_out(out)
  peers.check_installed(f'--to={args.to}', *form.packages)
  texts = read_texts(args.texts) if args.texts else verify.real_texts()
  weights = open_source(args)
  print(f'{weights.path}: {describe(weights)}')
  if form.is_whole and not weights.has_projection:
    raise UserError(
        f'{weights.path} ({weights.kind}) has no projection: it is a pretrained'
        f' T5, which --to={args.to} cannot be. Train a dual encoder from it,'
        f' --gin.INITIAL_CHECKPOINT_PATH={weights.path}, or give --to=hf, t5x,'
        ' npz or safetensors.'
    )
  partial = out.with_name(f'.{out.name}.{uuid.uuid4().hex}.partial')
  with removed_in_the_end(partial):
    with files.writing(out, 'another --out'):
      partial.mkdir(parents=True)
      lines = form.write(weights, partial, out) or ()
    for line in lines:
      print(line)
    verify.check_written(weights, partial)
    folders = {args.source: args.source, args.to: partial}
    texts = alike(texts, weights.usage, folders)
    print(f'Comparing {len(texts)} texts ...', flush=True)
    sides = [
        ('dualenc_jax', verify.ours(weights)),
        (f'the {args.to}', form.encode(partial, weights.usage)),
        *source_side(args, weights),
    ]
    for line in verify.compare(sides, texts):
      print(line)
    with files.writing(out, 'another --out'):
      partial.replace(out)
  print(f'Wrote {out}, in float32: {form.text}.')


@contextlib.contextmanager
def removed_in_the_end(folder: pathlib.Path) -> Iterator[None]:
  """Leaves no folder behind, whatever ends the block; SIGTERM, too."""
  is_main = threading.current_thread() is threading.main_thread()
  before = None
  if is_main:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  try:
    yield
  finally:
    shutil.rmtree(folder, ignore_errors=True)
    if is_main:
      signal.signal(signal.SIGTERM, before)


def check_out(out: pathlib.Path) -> None:
  """Raises UserError unless the output is a new or an empty folder."""
  if out.is_symlink() or (
      out.exists() and (not out.is_dir() or any(out.iterdir()))
  ):
    raise UserError(
        f'--out {out} is there already. Give a new folder: nothing is'
        ' overwritten.'
    )


def alike(
    texts: Sequence[str],
    usage: Usage,
    folders: Mapping[str, str | pathlib.Path],
) -> Sequence[str]:
  """The texts that all tokenizers give the ids of the SentencePiece file.

  Others would show that tokenizers differ, in very few texts, and not whether
  the model is the same.

  Args:
    texts: n of them.
    usage: vocabulary and lengths.
    folders: of transformers or sentence-transformers, by name; others have no
      tokenizer.

  Raises:
    UserError: one differs in more than a tenth of the texts.
  """
  kept = set(range(len(texts)))
  for name, folder in folders.items():
    folder = pathlib.Path(folder).expanduser()
    folder = folder if folder.is_dir() else folder.parent
    if not (
        peers.has_tokenizer(folder) and peers.is_installed('transformers')
    ):
      continue
    other = peers.other_ids(folder, usage, texts)
    if 10 * len(other) > len(texts):
      raise UserError(
          f'The tokenizer of {name} gives {len(other)} of {len(texts)} texts'
          f' other ids than {usage.vocabulary}, such as'
          f' {texts[min(other)][:100]!r}. Give the vocabulary that the model'
          ' was trained with, --vocabulary=.'
      )
    if other:
      print(
          f'The tokenizer of {name} gives {len(other)} of {len(texts)} texts'
          ' other ids than the SentencePiece file; they are left out.'
      )
    kept -= other
  return [texts[i] for i in sorted(kept)]


def read_texts(path: str) -> list[str]:
  """Lines of a file that are not empty."""
  try:
    file = pathlib.Path(path).expanduser()
    lines = file.read_text(encoding='utf-8').splitlines()
  except (OSError, ValueError) as e:
    raise UserError(
        f'--texts {path} cannot be read: {e}. Give a UTF-8 file, a text a line.'
    ) from e
  texts = [line for line in lines if line.strip()]
  if not texts:
    raise UserError(f'--texts {path} has no text. Give some, one a line.')
  return texts


def open_source(args: argparse.Namespace) -> Weights:
  """The source, with the vocabulary, lengths and prefixes that flags give."""
  weights = opening.read(args.source, args.step)
  given = {
      name: value
      for name in ('query_prefix', 'passage_prefix')
      if (value := getattr(args, name)) is not None
  }
  tokenizer = loaded.make_tokenizer(
      weights, args.vocabulary, args.query_length, args.passage_length
  )
  usage = dataclasses.replace(
      weights.usage,
      vocabulary=tokenizer.vocabulary.file,
      query_length=tokenizer.query_length,
      passage_length=tokenizer.passage_length,
      **given,
  )
  return dataclasses.replace(weights, usage=usage)


def describe(weights: Weights) -> str:
  """What a checkpoint is, in a line or two."""
  model, usage = weights.model(), weights.usage
  parts = {name.split('/')[0] for name in weights.tensors}
  own = sorted(part for part in parts if part.startswith('passage_'))
  size = weights.encoder
  lines = (
      f'{weights.kind}: {size.num_layers} layers,'
      f' {model.token_embedder.features} wide,'
      f' {" x ".join(size.activations)}, {len(weights.tensors)} tensors, '
      + (
          f'embeddings of {model.projection.features}'
          if weights.has_projection
          else 'no projection'
      )
      + (f', passages with their own {", ".join(own)}' if own else '')
      + f'; queries of {usage.query_length} tokens'
      + (f' after {usage.query_prefix!r}' if usage.query_prefix else '')
      + f', passages of {usage.passage_length}'
      + (f' after {usage.passage_prefix!r}' if usage.passage_prefix else '')
      + '.'
  )
  reasons = list(weights.left_out.values())
  reasons += ['the loss'] * len(weights.loss)
  reasons += ['optimizer'] * len(weights.optimizer)
  if reasons:
    lines += f' Left out: {count_reasons(reasons)}.'
  return lines


def source_side(
    args: argparse.Namespace, weights: Weights
) -> list[tuple[str, verify.Encode]]:
  """The source as it is used where it comes from, if that is installed."""
  reader = opening.reader_of(args.source)
  folder = pathlib.Path(args.source).expanduser()
  if reader is own:
    return [('the trained model', trained(folder, args.step, weights.usage))]
  folder = folder if folder.is_dir() else folder.parent
  if reader is sentence_transformers:
    name = 'sentence_transformers'
    encode = peers.sentence_transformers(folder, weights.usage)
  elif reader is hugging_face and not (folder / MODULES).is_file():
    name, encode = 'transformers', peers.hugging_face(folder, weights.usage)
  else:
    return []
  if not peers.is_installed(name, 'torch'):
    print(
        f'{name} is not installed, so the source is read by dualenc_jax alone;'
        " to compare both: pip install 'dualenc-jax[convert]'."
    )
    return []
  return [(f'the source in {name}', encode)]


def trained(
    folder: pathlib.Path, step: int | None, usage: Usage
) -> verify.Encode:
  """A model_dir's side, as the other commands build it from its config."""

  def encode(texts: Sequence[str]) -> verify.Vectors:
    model = model_dir.load(str(folder), step)
    tokenizer = loaded.tokenizer_of(usage)
    return verify.encode_with(
        model.experiment.model, model.params, tokenizer, texts
    )

  return encode
