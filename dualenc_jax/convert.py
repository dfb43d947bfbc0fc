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
from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import shutil
import sys

from dualenc_jax import cli
from dualenc_jax import new_model_dir
from dualenc_jax import runtime
from dualenc_jax import serving
from dualenc_jax.errors import UserError
from dualenc_jax.interop import hugging_face
from dualenc_jax.interop import loaded
from dualenc_jax.interop import opening
from dualenc_jax.interop import peers
from dualenc_jax.interop import plain
from dualenc_jax.interop import sentence_transformers
from dualenc_jax.interop import t5x_write
from dualenc_jax.interop import verify
from dualenc_jax.interop.weights import Usage
from dualenc_jax.interop.weights import Weights

Writer = Callable[[Weights, pathlib.Path], Sequence[str] | None]


@dataclasses.dataclass(frozen=True)
class Form:
  """A form that models are written in.

  Attributes:
    text: what it is, for --help.
    write: makes it in an empty folder; may return lines to print.
    encode: texts by whoever opens it; (folder, usage) -> side of `verify`.
    packages: that `encode` needs.
    is_whole: only dual encoders, with a projection, can be written so.
  """

  text: str
  write: Writer
  encode: Callable[[pathlib.Path, Usage], verify.Encode]
  packages: Sequence[str] = ()
  is_whole: bool = True


def read_back(folder: pathlib.Path, usage: Usage) -> verify.Encode:
  """The side of a form that this library opens itself."""
  weights = opening.read(folder)
  own = dataclasses.replace(
      usage, vocabulary=weights.usage.vocabulary or usage.vocabulary
  )
  return verify.ours(dataclasses.replace(weights, usage=own))


def read_artifact(folder: pathlib.Path, usage: Usage) -> verify.Encode:
  """The side of exported programs, which bring their own tokenizer."""

  def encode(texts: Sequence[str]) -> verify.Vectors:
    artifact = serving.Artifact.open(folder)
    tokenizer = artifact.tokenizer
    return verify.Vectors(
        artifact.queries(tokenizer.encode_queries(texts)),
        artifact.passages(tokenizer.encode_passages(texts)),
    )

  return encode


FORMS = {
    'model_dir': Form(
        'what training writes: to evaluate, encode, search, train from',
        new_model_dir.write,
        read_back,
    ),
    'sentence_transformers': Form(
        'opens with SentenceTransformer(folder)',
        sentence_transformers.write,
        lambda folder, usage: peers.sentence_transformers(folder),
        ('torch', 'sentence_transformers'),
    ),
    'hf': Form(
        'opens with T5EncoderModel; projection.safetensors beside',
        hugging_face.write,
        peers.hugging_face,
        ('torch', 'transformers'),
        is_whole=False,
    ),
    't5x': Form(
        'a legacy checkpoint of T5X',
        t5x_write.write,
        read_back,
        is_whole=False,
    ),
    'jax_export': Form(
        'programs that run with JAX alone; Retriever.from_dir opens them',
        lambda weights, folder: serving.write(loaded.load(weights), folder),
        read_artifact,
    ),
    'npz': Form(
        'tensors by name, for NumPy',
        plain.write_npz,
        read_back,
        is_whole=False,
    ),
    'safetensors': Form(
        'tensors by name',
        plain.write_safetensors,
        read_back,
        is_whole=False,
    ),
}


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
  out = pathlib.Path(args.out).expanduser()
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
  partial = out.with_name(f'.{out.name}.{os.getpid()}.partial')
  try:
    partial.mkdir(parents=True)
    for line in form.write(weights, partial) or ():
      print(line)
    usage = verify.same_when_read(weights, partial)
    sides = [
        ('dualenc_jax', verify.ours(dataclasses.replace(weights, usage=usage))),
        (f'the {args.to}', form.encode(partial, usage)),
        *source_side(args.source, weights),
    ]
    for line in verify.compare(sides, texts):
      print(line)
    partial.replace(out)
  except OSError as e:
    raise UserError(
        f'{out} cannot be written: {e.strerror or e}. Make room, or give'
        ' another --out.'
    ) from e
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  print(f'Wrote {out}.')


def check_out(out: pathlib.Path) -> None:
  """Raises UserError unless the output is a new or an empty folder."""
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise UserError(
        f'--out {out} is there already. Give a new folder: nothing is'
        ' overwritten.'
    )


def read_texts(path: str) -> list[str]:
  """Lines of a file that are not empty."""
  try:
    lines = pathlib.Path(path).read_text(encoding='utf-8').splitlines()
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
  if reasons:
    counted = [f'{reasons.count(r)} of {r}' for r in dict.fromkeys(reasons)]
    lines += f' Left out: {", ".join(counted)}.'
  return lines


def source_side(
    path: str, weights: Weights
) -> list[tuple[str, verify.Encode]]:
  """The source as its own library encodes it, if that is installed."""
  folder, reader = pathlib.Path(path).expanduser(), opening.reader_of(path)
  if reader is sentence_transformers:
    name = 'sentence_transformers'
    encode = peers.sentence_transformers(folder, weights.usage)
  elif reader is hugging_face:
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


if __name__ == '__main__':
  sys.exit(cli.run(main))
