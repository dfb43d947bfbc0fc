"""The forms that a model is written in, and who opens them."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib

from dualenc_jax.inference import artifact
from dualenc_jax.interop import (
  hugging_face,
  loading,
  opening,
  peers,
  plain,
  sentence_transformers,
  t5x_write,
  verify,
)
from dualenc_jax.interop.weights import Usage, Weights
from dualenc_jax.io import files

# What to write, where, and what that will be called: lines to print.
Writer = Callable[
    [Weights, pathlib.Path, pathlib.Path], Sequence[str] | None
]


@dataclasses.dataclass(frozen=True)
class Form:
  """A form that models are written in.

  Attributes:
    text: what it is, for --help.
    write: makes it in an empty folder.
    encode: texts by whoever opens it; (folder, usage) -> side of `verify`.
    packages: that `encode` needs.
    is_whole: only dual encoders, with a projection, can be written so.
  """

  text: str
  write: Writer
  encode: Callable[[pathlib.Path, Usage], verify.Encode]
  packages: Sequence[str] = ()
  is_whole: bool = True


def alone(write: Callable[..., Sequence[str] | None]) -> Writer:
  """A writer that does not care what its folder will be called."""
  return lambda weights, folder, out: write(weights, folder)


def with_usage(write: Callable[..., None]) -> Writer:
  """A writer of a form that has no place for lengths and prefixes."""

  def write_both(weights, folder, out):
    del out
    write(weights, folder)
    files.write_json(folder / opening.USAGE_FILE, weights.usage.facts())
    weights.usage.save_vocabulary(folder)

  return write_both


def read_back(folder: pathlib.Path, usage: Usage) -> verify.Encode:
  """The side of a form that this library opens itself."""
  weights = opening.read(folder)
  return verify.ours(dataclasses.replace(weights, usage=usage))


def read_artifact(folder: pathlib.Path, usage: Usage) -> verify.Encode:
  """The side of exported programs, which bring their own tokenizer."""
  del usage
  opened = artifact.Artifact.open
  return lambda texts: verify.encode_with(opened(folder), texts)


# All but a model_dir, whose config is a command's to write.
FORMS = {
    'sentence_transformers': Form(
        'opens with SentenceTransformer(folder)',
        alone(sentence_transformers.write),
        lambda folder, usage: peers.sentence_transformers(folder),
        ('torch', 'sentence_transformers'),
    ),
    'hf': Form(
        'opens with T5EncoderModel; projection.safetensors beside',
        with_usage(hugging_face.write),
        peers.hugging_face,
        ('torch', 'transformers'),
        is_whole=False,
    ),
    't5x': Form(
        'a legacy checkpoint of T5X',
        with_usage(t5x_write.write),
        read_back,
        is_whole=False,
    ),
    'jax_export': Form(
        'programs that run with JAX alone; Retriever.from_dir opens them',
        alone(lambda w, folder: artifact.write(loading.load(w), folder)),
        read_artifact,
    ),
    'npz': Form(
        'tensors by name, for NumPy',
        alone(plain.write_npz),
        read_back,
        is_whole=False,
    ),
    'safetensors': Form(
        'tensors by name',
        alone(plain.write_safetensors),
        read_back,
        is_whole=False,
    ),
}
