"""From one form to another: read, written, read back, compared, moved."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib

from dualenc_jax.errors import UserError
from dualenc_jax.inference import artifact
from dualenc_jax.interop import (
  hugging_face,
  loading,
  merging,
  opening,
  own,
  peers,
  plain,
  sentence_transformers,
  t5x_legacy,
  two_towers,
  verify,
)
from dualenc_jax.interop.sentence_transformers.modules import MODULES
from dualenc_jax.interop.vocabulary import make_tokenizer
from dualenc_jax.interop.weights import count_reasons, Usage, Weights
from dualenc_jax.io import files
from dualenc_jax.models import T5Encoder


@dataclasses.dataclass(frozen=True)
class Form:
  """A form that models are written in.

  Attributes:
    text: what it is, for --help.
    write: makes it in an empty folder; returns lines to print, if any.
    encode: texts by whoever opens it; (folder, usage) -> side of `verify`.
    packages: that `encode` needs.
    usage_beside: lengths and prefixes lie in a file of their own, as it has no
      place for them.
    is_whole: only dual encoders, with a projection, can be written so.
    may_be_alone: a query tower can be written so without its passage tower.
    keeps_codec: a codec that was trained with the towers has a place there.
  """

  text: str
  write: Callable[[Weights, pathlib.Path], Sequence[str] | None]
  encode: Callable[[pathlib.Path, Usage], verify.Encode]
  packages: Sequence[str] = ()
  usage_beside: bool = False
  is_whole: bool = True
  may_be_alone: bool = False
  keeps_codec: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
  """What is converted.

  Attributes:
    path: the checkpoint, a folder or a file.
    step: of the checkpoint in a model_dir; None for the newest.
    vocabulary: a SentencePiece file, or the name of a shipped one; None for
      that of the checkpoint.
    usage: lengths and prefixes that are not those of the checkpoint, by name.
    dim: as of `truncation.of_weights`; None for all components.
    activations: as of `Weights.with_activations`; None for those of the
      checkpoint.
  """

  path: str
  step: int | None = None
  vocabulary: str | None = None
  usage: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
  dim: int | None = None
  activations: Sequence[str] | None = None

  @property
  def folders(self) -> Sequence[str]:
    """What other libraries may open, too."""
    return [self.path]

  def read(self) -> tuple[Weights, dict[str, int | str]]:
    """The checkpoint with this usage.

    Returns:
      It, and those of its lengths and prefixes that its files do not say: given
      ones, and what is usual where they say none.

    Raises:
      UserError: it cannot be read, its model is of classes of the user's own,
        or the vocabulary is another one.
    """
    weights = opening.read(self.path, self.step, self.dim)
    said = weights.usage.facts()
    if self.activations is not None:
      weights = weights.with_activations(self.activations)
    if weights.described:
      own.model_of(weights.described, weights.path)
    usage = dataclasses.replace(weights.usage, **self.usage)
    tokenizer = make_tokenizer(
        dataclasses.replace(weights, usage=usage), self.vocabulary
    )
    usage = dataclasses.replace(
        usage,
        vocabulary=tokenizer.vocabulary.file,
        query_length=tokenizer.query_length,
        passage_length=tokenizer.passage_length,
    )
    other = {n: k for n, k in usage.facts().items() if k != said.get(n)}
    return dataclasses.replace(weights, usage=usage), other


@dataclasses.dataclass(frozen=True)
class Merge:
  """Sources whose mean is converted, with their shares of it."""

  sources: Sequence[Source]
  shares: Sequence[float]
  folders = ()

  def read(self) -> tuple[Weights, dict[str, int | str]]:
    """As of `Source`; raises what `merging.merge` does, too."""
    models = [source.read()[0] for source in self.sources]
    return merging.merge(models, self.shares), {}


def convert(
    source: Source | Merge,
    name: str,
    form: Form,
    out: pathlib.Path,
    texts: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
    query_alone: bool = False,
) -> None:
  """Writes beside the output, compares, and moves it into place.

  Args:
    source: what to convert.
    name: of the form.
    form: to write.
    out: a new or an empty folder.
    texts: to compare with; None for those of `verify.real_texts`.
    say: gets a line for people about each step.
    query_alone: leave out the passage tower, but for its digest; a source that
      is a query tower alone stays one.

  Raises:
    UserError: the source cannot be read or not be written so; what was written
      is not the same; or the output is there. Nothing is left then.
  """
  check_out(out)
  if query_alone:
    check_may_be_alone(name, form)
  peers.check_installed(f'--to={name}', *form.packages)
  texts = texts or verify.real_texts()
  weights, other = source.read()
  say(f'{weights.path}: {describe(weights)}')
  if weights.passage_tower:
    check_may_be_alone(name, form, f'{weights.path} is a query tower alone. ')
  if not weights.encoder.num_layers:
    raise UserError(
        f'{weights.path} has no layers: it is a bag of pieces, which'
        f' --to={name} cannot be. Retriever.save writes it to serve it.'
    )
  if (form.is_whole or query_alone) and not weights.has_projection:
    raise UserError(
        f'{weights.path} ({weights.kind}) has no projection: it is a pretrained'
        f' T5, which --to={name} cannot be. Train a dual encoder from it,'
        f' --gin.INITIAL_CHECKPOINT_PATH={weights.path}, or give --to=hf, t5x,'
        ' npz or safetensors.'
    )
  if query_alone:
    weights = two_towers.query_alone(weights)
    say(
        f'The query tower alone: {weights.encoder.num_layers} layers,'
        f' {len(weights.tensors)} tensors.'
    )
  if weights.codec is not None and not form.keeps_codec:
    say(
        f'Its codec, {weights.codec.name}, is left out: --to={name} has the'
        ' towers alone. An index that `dualenc encode` makes has it.'
    )
  with files.new_folder(out, 'another --out') as partial:
    with files.writing(out, 'another --out'):
      lines = form.write(weights, partial) or ()
      if form.usage_beside:
        usage = weights.usage
        files.write_json(partial / opening.USAGE_FILE, usage.facts())
        usage.save_vocabulary(partial)
    for line in lines:
      say(line)
    verify.check_written(weights, partial)
    folders = {**{p: p for p in source.folders}, name: partial}
    texts = alike(texts, weights.usage, folders, say)
    say(f'Comparing {len(texts)} texts ...')
    sides = [
        ('dualenc_jax', verify.ours(weights)),
        (f'the {name}', form.encode(partial, weights.usage)),
    ]
    for path in source.folders:
      sides += source_side(path, weights, other, say)
    if weights.passage_tower:
      sides = [(side, verify.queries_alone(own)) for side, own in sides]
    for line in verify.compare(sides, texts):
      say(line)
  say(f'Wrote {out}, in float32: {form.text}.')


def check_may_be_alone(name: str, form: Form, found: str = '') -> None:
  """Raises UserError unless a form can have a query tower alone."""
  if form.may_be_alone:
    return
  able = [name for name, form in FORMS.items() if form.may_be_alone]
  raise UserError(
      f'{found}--to={name} has both towers: a query tower alone, as of'
      f' --tower=query, goes --to={", ".join(able[:-1])} or {able[-1]}.'
  )


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
    say: Callable[[str], None],
) -> Sequence[str]:
  """The texts that all tokenizers give the ids of the SentencePiece file.

  Others would show that tokenizers differ, in very few texts, and not whether
  the model is the same.

  Args:
    texts: n of them.
    usage: vocabulary and lengths.
    folders: of transformers or sentence-transformers, by name; others have no
      tokenizer.
    say: gets a line about texts that are left out.

  Raises:
    UserError: one differs in more than a tenth of the texts.
  """
  kept = set(range(len(texts)))
  for name, folder in folders.items():
    folder = pathlib.Path(folder).expanduser()
    folder = folder if folder.is_dir() else folder.parent
    other = peers.other_ids(folder, usage, texts)
    if 10 * len(other) > len(texts):
      raise UserError(
          f'The tokenizer of {name} gives {len(other)} of {len(texts)} texts'
          f' other ids than {usage.vocabulary}, such as'
          f' {texts[min(other)][:100]!r}. Give the vocabulary that the model'
          ' was trained with, --vocabulary=.'
      )
    if other:
      say(
          f'The tokenizer of {name} gives {len(other)} of {len(texts)} texts'
          ' other ids than the SentencePiece file; they are left out.'
      )
    kept -= other
  return [texts[i] for i in sorted(kept)]


def describe(weights: Weights) -> str:
  """What a checkpoint is, in a line or two."""
  model, usage = weights.model(), weights.usage
  parts = {name.split('/')[0] for name in weights.tensors}
  own = sorted(part for part in parts if part.startswith('passage_'))
  size = weights.encoder
  lines = (
      weights.kind
      + (', a query tower alone' if weights.passage_tower else '')
      + f': {size.num_layers} layers,'
      f' {model.token_embedder.features} wide,'
      f' {" x ".join(size.activations)}'
      + (' (by their number)' if not weights.tells_activations else '')
      + (
          f', {size.num_buckets} buckets of relative positions'
          if size.num_buckets != T5Encoder.num_buckets
          else ''
      )
      + f', {len(weights.tensors)} tensors, '
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
    path: str,
    weights: Weights,
    other: Mapping[str, int | str],
    say: Callable[[str], None],
) -> list[tuple[str, verify.Encode]]:
  """The source as it is used where it comes from, if that is installed.

  Args:
    path: of the source.
    weights: what was read there.
    other: lengths and prefixes that are not its own.
    say: gets a line on what is not compared, or not as it is.
  """
  reader = opening.reader_of(path)
  folder = pathlib.Path(path).expanduser()
  folder = folder if folder.is_dir() else folder.parent
  if reader is sentence_transformers:
    name = 'sentence_transformers'
    encode = peers.sentence_transformers(folder, other)
  elif reader is hugging_face and not (folder / MODULES).is_file():
    name, encode = 'transformers', peers.hugging_face(folder, weights.usage)
  else:
    return []
  if not peers.is_installed(name, 'torch'):
    say(
        f'{name} is not installed, so the source is read by dualenc_jax alone;'
        " to compare both: pip install 'dualenc-jax[convert]'."
    )
    return []
  if other and reader is sentence_transformers:
    listed = ', '.join(f'{name} {value!r}' for name, value in other.items())
    say(f'The source gets what its folder does not say: {listed}.')
  dim = weights.model().projection.features
  return [(f'the source in {name}', verify.first_components(encode, dim))]


def read_back(folder: pathlib.Path, usage: Usage) -> verify.Encode:
  """The side of a form that this library opens itself."""
  weights = opening.read(folder)
  return verify.ours(dataclasses.replace(weights, usage=usage))


def read_artifact(folder: pathlib.Path, usage: Usage) -> verify.Encode:
  """The side of exported programs, which bring their own tokenizer."""
  del usage

  def encode(texts: Sequence[str]) -> verify.Vectors:
    opened = artifact.Artifact.open(folder)
    if opened.manifest.passage_tower is None:
      return verify.encode_with(opened, texts)
    queries = opened.queries(opened.tokenizer.encode_queries(texts))
    return verify.Vectors(queries, queries)

  return encode


# All but a model_dir, whose config is a command's to write.
FORMS = {
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
        usage_beside=True,
        is_whole=False,
    ),
    't5x': Form(
        'a legacy checkpoint of T5X',
        t5x_legacy.write,
        read_back,
        usage_beside=True,
        is_whole=False,
    ),
    'jax_export': Form(
        'programs that run with JAX alone; Retriever.from_dir opens them',
        lambda weights, folder: artifact.write(
            loading.load(weights), folder, passage_tower=weights.passage_tower
        ),
        read_artifact,
        may_be_alone=True,
        keeps_codec=True,
    ),
    'npz': Form(
        'tensors by name, for NumPy',
        plain.write_npz,
        read_back,
        is_whole=False,
        may_be_alone=True,
    ),
    'safetensors': Form(
        'tensors by name',
        plain.write_safetensors,
        read_back,
        is_whole=False,
        may_be_alone=True,
    ),
}
