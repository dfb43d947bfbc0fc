"""Conversion between forms: read, written, read back, compared, moved."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.checkpoints import (
  hugging_face,
  loading,
  merging,
  model_dirs,
  opening,
  plain,
  sentence_transformers,
  t5x_legacy,
  two_towers,
  verify,
)
from dualenc_jax.checkpoints.sentence_transformers.modules import MODULES
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import count_reasons, Usage, Weights
from dualenc_jax.models import T5Encoder
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

_INSTALL = "pip install 'dualenc-jax[convert]'"


@dataclasses.dataclass(frozen=True)
class Form:
  """A form that models are written in.

  Attributes:
    text: its description, for people.
    write: makes it in an empty folder; returns lines to print, if any.
    encode: (folder, usage) -> the `verify.Encode` of what opens it; None where
      that is the reader here, whose tensors are compared bit by bit.
    packages: those that `encode` needs.
    usage_beside: whether lengths and prefixes lie in a file of their own, as
      the form has no place for them.
    needs_projection: whether the form cannot hold a bare T5.
    may_be_alone: whether a query tower has it without its passage tower.
    keeps_codec: whether the codec of the model is written, too.
  """

  text: str
  write: Callable[[Weights, pathlib.Path], Sequence[str] | None]
  encode: Callable[[pathlib.Path, Usage], verify.Encode] | None = None
  packages: Sequence[str] = ()
  usage_beside: bool = False
  needs_projection: bool = True
  may_be_alone: bool = False
  keeps_codec: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
  """What is converted.

  Attributes:
    path: the checkpoint, a folder or a file.
    step: of the checkpoint in a model_dir; None for the newest.
    vocabulary: as of `loading.load`.
    usage: lengths and prefixes that are not those of the checkpoint, by name.
    dim: as of `truncation.of_weights`; None for all components.
    activations: as of `Weights.with_activations`.
  """

  path: str
  step: int | None = None
  vocabulary: str | None = None
  usage: Mapping[str, Any] = dataclasses.field(default_factory=dict)
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
    """
    weights = opening.read(self.path, self.step, self.dim)
    said = weights.usage.facts()
    if self.activations is not None:
      weights = weights.with_activations(self.activations)
    if weights.described:
      model_dirs.model_of(weights.described, weights.path)
    usage = dataclasses.replace(weights.usage, **self.usage)
    tokenizer = make_tokenizer(
        dataclasses.replace(weights, usage=usage), self.vocabulary
    )
    usage = dataclasses.replace(
        usage, vocabulary=tokenizer.vocabulary.file,
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
    source: Source | Merge, name: str, form: Form, out: pathlib.Path,
    say: Callable[[str], None] = print, query_alone: bool = False,
    verified: bool | None = None,
) -> None:
  """Writes the form of a name beside the output, compares, and moves it there.

  Args:
    out: a new or an empty folder.
    say: gets a line for people about each step.
    query_alone: leave out the passage tower, but for its digest; a source that
      is a query tower alone stays one.
    verified: compare what both sides make of a few texts, beside the tensors;
      None for where the packages of the form are installed.

  Raises:
    UserError: the source cannot be read or not be written so; what was written
      is not the same; or the output exists. Nothing is left then.
  """
  check_out(out)
  if query_alone:
    _check_may_be_alone(name, form)
  absent = ', '.join(verify.absent(*form.packages))
  if absent and verified:
    raise UserError(
        f'--verify compares --to={name} with the original library. Not'
        f' installed: {absent}. {_INSTALL}, or give --no-verify.'
    )
  weights, other = source.read()
  say(f'{weights.path}: {describe(weights)}')
  if weights.passage_tower:
    _check_may_be_alone(name, form, f'{weights.path} is a query tower alone. ')
  if not weights.encoder.num_layers:
    raise UserError(
        f'{weights.path} has no layers: it is a bag of pieces, which'
        f' --to={name} cannot hold. To serve it, use Retriever.save.'
    )
  if (form.needs_projection or query_alone) and not weights.has_projection:
    raise UserError(
        f'{weights} has no projection: it is a pretrained T5, which --to={name}'
        ' cannot hold. Train a dual encoder from it,'
        f' --gin.INITIAL_CHECKPOINT_PATH={weights.path}, or give --to=hf, t5x'
        ' or safetensors.'
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
    if verified is False:
      say('All tensors are the same; no texts were compared.')
    elif absent:
      say(
          f'{absent} is not installed, so that all tensors were compared, but'
          f' no texts; to compare them, too: {_INSTALL}.'
      )
    else:
      _compare(source, weights, other, name, form, partial, say)
  say(f'Wrote {out}, in float32: {form.text}.')


def _compare(
    source: Source | Merge, weights: Weights, other: Mapping[str, int | str],
    name: str, form: Form, folder: pathlib.Path, say: Callable[[str], None],
) -> None:
  """Encodes texts with the source and with what was written of it."""
  folders = {p: pathlib.Path(p) for p in source.folders} | {name: folder}
  texts = _alike(weights.usage, folders, folder, say)
  sides = [('dualenc_jax', verify.ours(weights))]
  if form.encode is not None:
    sides.append((f'the {name}', form.encode(folder, weights.usage)))
  for path in source.folders:
    sides += _source_side(path, weights, other, say)
  if len(sides) == 1:
    say('All tensors are the same; no texts were compared.')
    return
  say(f'Comparing {len(texts)} texts ...')
  for line in verify.compare(sides, texts, bool(weights.passage_tower)):
    say(line)


def _check_may_be_alone(name: str, form: Form, found: str = '') -> None:
  """Raises UserError unless a form can have a query tower alone."""
  if form.may_be_alone:
    return
  able = [name for name, form in FORMS.items() if form.may_be_alone]
  raise UserError(
      f'{found}--to={name} needs both towers. Convert a query tower alone'
      f" (--tower=query) --to={', '.join(able[:-1])} or {able[-1]}."
  )


def check_out(out: pathlib.Path) -> None:
  """Raises UserError unless the output is a new or an empty folder."""
  if out.is_symlink() or (
      out.exists() and (not out.is_dir() or any(out.iterdir()))
  ):
    raise UserError(
        f'--out {out} already exists. Give a new folder: nothing is'
        ' overwritten.'
    )


def _folder_of(path: str | pathlib.Path) -> pathlib.Path:
  folder = pathlib.Path(path).expanduser()
  return folder if folder.is_dir() else folder.parent


def _alike(
    usage: Usage, folders: Mapping[str, pathlib.Path], out: pathlib.Path,
    say: Callable[[str], None],
) -> Sequence[str]:
  """The texts to which all tokenizers give the ids of the SentencePiece file.

  Others would show that tokenizers differ, in very few texts, and not whether
  the model is the same; they are said, and in the README of the output where
  its own differs. UserError where one differs in more than a tenth, without
  the odd ones.
  """
  texts = verify.TEXTS
  kept = set(range(len(texts)))
  for name, folder in folders.items():
    other = verify.other_ids(_folder_of(folder), usage, texts)
    if not other:
      continue
    found = (
        f'The tokenizer of {name} gives {len(other)} of {len(texts)} texts'
        ' other ids than'
    )
    if 10 * sum(texts[i] not in verify.ODD for i in other) > len(texts):
      raise UserError(
          f'{found} {usage.vocabulary}, such as {texts[min(other)][:100]!r}.'
          ' Give the vocabulary that the model was trained with, --vocabulary=.'
      )
    shortest = min((texts[i] for i in other), key=len)
    found += f' the SentencePiece file, such as {shortest[:200]!r}'
    say(f'{found}; they are left out.')
    if folder == out:
      with (out / 'README.md').open('a', encoding='utf-8') as readme:
        readme.write(f'\n{found}.\n')
    kept -= other
  return [texts[i] for i in sorted(kept)]


def describe(weights: Weights) -> str:
  """The kind, sizes and usage of a checkpoint, in a line or two."""
  model, usage, size = weights.model(), weights.usage, weights.encoder
  parts = {name.split('/')[0] for name in weights.tensors}
  own = sorted(part for part in parts if part.startswith('passage_'))
  alone = ', a query tower alone' if weights.passage_tower else ''
  guessed = '' if weights.names_activations else ' (by their number)'
  facts = [
      f'{weights.kind}{alone}: {size.num_layers} layers',
      f'{model.token_embedder.features} wide',
      f'{" x ".join(size.activations)}{guessed}',
  ]
  if size.num_buckets != T5Encoder.num_buckets:
    facts.append(f'{size.num_buckets} buckets of relative positions')
  facts.append(f'{len(weights.tensors)} tensors')
  if weights.has_projection:
    facts.append(f'embeddings of {model.projection.features}')
  else:
    facts.append('no projection')
  if own:
    facts.append(f'passages with their own {", ".join(own)}')
  queries, passages = (
      f'{length}' + (f' after {prefix!r}' if prefix else '')
      for length, prefix in (
          (f'{usage.query_length} tokens', usage.query_prefix),
          (usage.passage_length, usage.passage_prefix),
      )
  )
  reasons = list(weights.left_out.values())
  reasons += ['the loss'] * len(weights.loss)
  reasons += ['optimizer'] * len(weights.optimizer)
  return (
      f'{", ".join(facts)}; queries of {queries}, passages of'
      f' {passages}.'
      + (f' Left out: {count_reasons(reasons)}.' if reasons else '')
  )


def _source_side(
    path: str, weights: Weights, other: Mapping[str, int | str],
    say: Callable[[str], None],
) -> list[tuple[str, verify.Encode]]:
  """The source as it is used where it comes from, if that is installed.

  `other` are lengths and prefixes that are not its own.
  """
  reader, folder = opening.reader_of(path), _folder_of(path)
  if reader is sentence_transformers:
    name = 'sentence_transformers'
    encode = verify.sentence_transformers(folder, other)
  elif reader is hugging_face and not (folder / MODULES).is_file():
    name, encode = 'transformers', verify.hugging_face(folder, weights.usage)
  else:
    return []
  if verify.absent(name, 'torch'):
    say(
        f'{name} is not installed, so the source is read by dualenc_jax alone;'
        f' to compare both: {_INSTALL}.'
    )
    return []
  if other and reader is sentence_transformers:
    listed = ', '.join(f'{name} {value!r}' for name, value in other.items())
    say(f'The source gets what its folder does not say: {listed}.')
  return [(f'the source in {name}', encode)]


# All but a model_dir, whose config is a command's to write.
FORMS = {
    'sentence_transformers': Form(
        'opens with SentenceTransformer(folder)',
        sentence_transformers.write,
        lambda folder, usage: verify.sentence_transformers(folder),
        ('torch', 'sentence_transformers'),
    ),
    'hf': Form(
        'opens with T5EncoderModel; projection.safetensors beside',
        hugging_face.write,
        verify.hugging_face,
        ('torch', 'transformers'),
        usage_beside=True,
        needs_projection=False,
    ),
    't5x': Form(
        'a legacy checkpoint of T5X', t5x_legacy.write, usage_beside=True,
        needs_projection=False,
    ),
    'jax_export': Form(
        'programs that run with JAX and flatbuffers alone; Retriever.from_dir'
        ' opens them',
        lambda weights, folder: artifact.write(
            loading.load(weights), folder, passage_tower=weights.passage_tower
        ),
        verify.exported,
        may_be_alone=True,
        keeps_codec=True,
    ),
    'safetensors': Form(
        'tensors by name', plain.write, needs_projection=False,
        may_be_alone=True,
    ),
}
