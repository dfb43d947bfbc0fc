"""Conversion between forms: read, written, read back, compared, moved."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.checkpoints import (
  checkpoint_reader,
  formats,
  hugging_face,
  hugging_face_gemma,
  loading,
  sentence_transformers_writer,
  static_embedding,
  t5x_legacy,
  transforms,
  verification,
)
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import (
  count_reasons,
  EMBEDDING,
  PROJECTION,
  Weights,
)
from dualenc_jax.models import GemmaEncoder
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

_INSTALL = "pip install 'dualenc-jax[convert]'"
# sentence-transformers and what it needs.
_PACKAGES = 'torch', 'sentence_transformers'
_Log = Callable[[str], None]
_Side = tuple[str, verification.Encode]


@dataclasses.dataclass(frozen=True)
class Form:
  """A form that models are written in.

  Attributes:
    text: its description, for people.
    write: writes it into an empty folder; returns lines to print, if any.
    encode: makes the `verification.Encode` of the program that opens a folder;
      None to compare tensors alone.
    packages: those that `encode` needs.
    usage_in_file: whether lengths and prefixes lie in a file of their own, as
      the form has no place for them.
    needs_projection: whether the form cannot hold a bare T5.
    query_only_ok: whether it can hold a query tower without its passage tower.
    keeps_codec: whether the codec of the model is written, too.
    as_bag: what a model without layers is written as; None where the form has
      no such models.
  """

  text: str
  write: Callable[[Weights, pathlib.Path], Sequence[str] | None]
  encode: Callable[[pathlib.Path], verification.Encode] | None = None
  packages: Sequence[str] = ()
  usage_in_file: bool = False
  needs_projection: bool = True
  query_only_ok: bool = False
  keeps_codec: bool = False
  as_bag: Callable[[Weights], Weights] | None = None


@dataclasses.dataclass(frozen=True)
class Source:
  """A checkpoint to convert.

  Attributes:
    path: a folder or a file.
    step: of the checkpoint in a model_dir; None for the best or newest.
    vocabulary: as of `loading.load`.
    usage: lengths and prefixes that are not those of the checkpoint, by name.
    dim: as of `transforms.truncate`; None for all components.
  """

  path: str
  step: int | None = None
  vocabulary: str | None = None
  usage: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  dim: int | None = None

  def read(self) -> tuple[Weights, bool]:
    """The checkpoint with this usage, and whether its files have another."""
    weights = formats.read(self.path, self.step, self.dim)
    saved = weights.usage.facts()
    if weights.described:
      checkpoint_reader.build_model(weights.described, weights.path)
    usage = dataclasses.replace(weights.usage, **self.usage)
    tokenizer = make_tokenizer(
        dataclasses.replace(weights, usage=usage), self.vocabulary
    )
    usage = dataclasses.replace(
        usage, vocabulary=tokenizer.vocabulary.file,
        query_length=tokenizer.query_length,
        passage_length=tokenizer.passage_length,
    )
    return dataclasses.replace(weights, usage=usage), usage.facts() != saved

  def sides(self, other_usage: bool) -> list[_Side]:
    """The source in the library that it is of, if that can encode it."""
    is_theirs = formats.detect(self.path) == formats.SENTENCE_TRANSFORMERS
    if not is_theirs or other_usage or verification.missing(_PACKAGES):
      return []
    folder = pathlib.Path(self.path).expanduser()
    encode = verification.sentence_transformers_encoder(folder)
    return [('the source in sentence_transformers', encode)]


@dataclasses.dataclass(frozen=True)
class Merge:
  """Sources whose mean is converted."""

  sources: Sequence[Source]

  def read(self) -> tuple[Weights, bool]:
    """The mean; raises as `Source.read` and `transforms.merge` do."""
    models = [source.read()[0] for source in self.sources]
    return transforms.merge(models), False

  def sides(self, *args: Any) -> list[_Side]:
    """Returns nothing: no other library has the mean."""
    return []


def convert(
    source: Source | Merge, name: str, form: Form, out: pathlib.Path,
    log: _Log = print, query_alone: bool = False, verified: bool = True,
) -> None:
  """Writes a form beside the output, compares, and moves it there.

  Args:
    name: of the form.
    out: a new or an empty folder.
    log: gets a line for people about each step.
    query_alone: leave out the passage tower, except its digest; a source that
      is a query tower alone stays one.
    verified: compare what both sides make of a few texts, beside the tensors,
      where the packages of the form are installed.

  Raises:
    UserError: the source cannot be read or not be written so; what was written
      is not the same; or the output exists. Nothing is left then.
  """
  absent = ', '.join(verification.missing(form.packages))
  weights, other_usage = source.read()
  log(f'{weights.path}: {describe(weights)}')
  if (query_alone or weights.passage_tower) and not form.query_only_ok:
    able = ' or '.join(n for n, form in FORMS.items() if form.query_only_ok)
    raise UserError(
        f'--to={name} needs both towers. For a query tower alone give'
        f' --tower=query --to={able}.'
    )
  problem = None
  if name == 't5x' and isinstance(weights.encoder, GemmaEncoder):
    problem = 'is of the Gemma family: give --to=hf'
  elif name == 'sentence_transformers' and any(
      map(hugging_face_gemma.needs_pictures, weights.encoders)
  ):
    problem = (
        'is a T5Gemma 2, which sentence-transformers opens only with a'
        ' processor of pictures: give --to=hf or --to=jax_export'
    )
  elif name == 't5x' and (
      weights.hidden_maps() or weights.hidden_maps('passage_')
  ):
    problem = (
        'has a chain of projections (Projection.hidden): give --to=hf, or train'
        ' it with one map'
    )
  elif not weights.encoder.num_layers and form.as_bag is None:
    problem = (
        'has no layers, so that its sizes could not be read back and compared:'
        ' give --to=sentence_transformers, or save it from Python,'
        f' Retriever.from_dir({weights.path!r}).save(FOLDER)'
    )
  elif (form.needs_projection or query_alone) and not weights.has_projection:
    problem = (
        'has no projection: train a dual encoder from it,'
        f' --gin.INITIAL_CHECKPOINT_PATH={weights.path}'
    )
  if problem:
    raise UserError(f'--to={name} cannot hold {weights}, which {problem}.')
  if query_alone:
    weights = transforms.query_tower(weights)
    log(
        f'The query tower alone: {weights.encoder.num_layers} layers,'
        f' {len(weights.tensors)} tensors.'
    )
  if weights.codec is not None and not form.keeps_codec:
    log(
        f'Its codec, {weights.codec.name}, is left out: --to={name} has the'
        ' towers alone. An index that `dualenc encode` makes has it.'
    )
  source_weights = weights
  if not weights.encoder.num_layers and form.as_bag is not None:
    weights = form.as_bag(weights)
  with files.new_folder(out, 'another --output_dir') as partial:
    with files.writing(out, 'another --output_dir'):
      lines = form.write(weights, partial) or ()
      if form.usage_in_file:
        usage = weights.usage
        files.write_json(partial / formats.USAGE_FILE, usage.facts())
        usage.save_vocabulary(partial)
    for line in lines:
      log(line)
    verification.check_written(weights, partial)
    sides: list[_Side] = []
    if absent:
      log(f'{absent} is not installed: {_INSTALL} to compare texts.')
    elif verified:
      if form.encode is not None:
        sides.append((f'the {name}', form.encode(partial)))
      sides += source.sides(other_usage)
    if sides:
      log(f'Comparing {len(verification.TEXTS)} texts ...')
      ours = dataclasses.replace(source_weights, usage=weights.usage)
      sides.insert(0, ('dualenc_jax', verification.our_encoder(ours)))
      alone = bool(weights.passage_tower)
      for line in verification.compare(sides, query_alone=alone):
        log(line)
    else:
      log('All tensors are the same; no texts were compared.')
  log(f'Wrote {out}, in float32: {form.text}.')


def describe(weights: Weights) -> str:
  """The kind, sizes and usage of a checkpoint, in a line or two."""
  usage, size = weights.usage, weights.encoder
  alone = ', a query tower alone' if weights.passage_tower else ''
  guessed = '' if weights.names_activations else ' (by their number)'
  dim = 'no projection'
  if weights.has_projection:
    dim = f'embeddings of {weights.tensors[PROJECTION].shape[1]}'
  parts = {name.split('/')[0] for name in weights.tensors}
  own = sorted(part for part in parts if part.startswith('passage_'))
  facts = [
      f'{weights.kind}{alone}: {size.num_layers} layers',
      f'{weights.tensors[EMBEDDING].shape[1]} wide',
      f'{" x ".join(size.activations)}{guessed}',
      f'{len(weights.tensors)} tensors',
      dim,
      f'queries of {usage.query_length} tokens, passages of'
      f' {usage.passage_length}',
  ]
  if own:
    facts.append(f'passages with their own {", ".join(own)}')
  reasons = [*weights.left_out.values(), *['the loss'] * len(weights.loss)]
  if reasons:
    facts.append(f'left out: {count_reasons(reasons)}')
  return f'{", ".join(facts)}.'


# All but a model_dir, whose config is a command's to write.
FORMS = {
    'sentence_transformers': Form(
        'opens with SentenceTransformer(folder)',
        sentence_transformers_writer.write,
        verification.sentence_transformers_encoder,
        _PACKAGES,
        as_bag=static_embedding.as_static,
    ),
    'hf': Form(
        'opens with T5EncoderModel; projection.safetensors beside',
        hugging_face.write,
        usage_in_file=True,
        needs_projection=False,
    ),
    't5x': Form(
        'a legacy checkpoint of T5X', t5x_legacy.write, usage_in_file=True,
        needs_projection=False,
    ),
    'jax_export': Form(
        'programs that run with JAX and flatbuffers alone; Retriever.from_dir'
        ' opens them',
        lambda weights, folder: artifact.write(
            loading.load(weights), folder, passage_tower=weights.passage_tower
        ),
        verification.exported_encoder,
        query_only_ok=True,
        keeps_codec=True,
    ),
}
