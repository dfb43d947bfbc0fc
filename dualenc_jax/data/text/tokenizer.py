"""Texts to token rows: SentencePiece vocabularies, without TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import pathlib
from typing import Any

import numpy as np
import sentencepiece

from dualenc_jax.data.text.ragged import Ragged, row_offsets
from dualenc_jax.utils.errors import (
  did_you_mean,
  did_you_mean_or_known,
  expect,
  UserError,
)

PAD, EOS, UNK = 0, 1, 2
# Settings of a `Vocabulary` and what T5 has.
SPECIAL_TOKENS = {'add_bos': False, 'add_eos': True}
# The rows of embeddings are a multiple of it, for the hardware.
_MULTIPLE = 64
# Most tokens of a text: a length from a stranger's file must fit the memory.
LONGEST = 2**16
PREFIXES = 'query_prefix', 'passage_prefix'
# Names of the two prefixes among the prompts of sentence-transformers.
QUERY, DOCUMENT = 'query', 'document'
SHIPPED = pathlib.Path(__file__).parent / 'vocabularies'


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """A SentencePiece model whose padding is 0 and EOS 1, as in T5 and Gemma.

  Attributes:
    path: a SentencePiece model file, or the name of a shipped vocabulary, such
      as 'python_code_8k'.
    extra_ids: ids after the pieces (T5 has 100); they count in `size`, no text
      is ever encoded to them.
    add_bos: whether BOS is put before every text, as in Gemma.
    add_eos: whether EOS is put after every text; BOS or EOS is needed, so that
      no text is without tokens.
  """

  path: str
  extra_ids: int = 0
  add_bos: bool = False
  add_eos: bool = True

  def __post_init__(self):
    expect(
        self.add_bos or self.add_eos, 'Vocabulary.add_eos', self.add_eos,
        'True, or add_bos, so that an empty text has a token',
    )

  @property
  def size(self) -> int:
    """Number of ids, pieces and extra ids."""
    return self._processor.get_piece_size() + self.extra_ids

  @property
  def token_dtype(self) -> np.dtype:
    """The smallest unsigned dtype that holds every id."""
    return np.dtype(np.uint16 if self.size <= 65536 else np.uint32)

  @property
  def unk(self) -> int:
    """The id of what has no piece."""
    return self._processor.unk_id()

  @property
  def bos(self) -> int:
    """The id of BOS, -1 if there is none."""
    return self._processor.bos_id()

  @property
  def special_tokens(self) -> dict[str, bool]:
    """The settings of BOS and EOS that are not T5's, by name."""
    values = {name: getattr(self, name) for name in SPECIAL_TOKENS}
    return {n: x for n, x in values.items() if x != SPECIAL_TOKENS[n]}

  @functools.cached_property
  def sha256(self) -> str:
    """The digest of the model file, and of BOS and EOS if not as in T5."""
    digest = hashlib.sha256(self.file.read_bytes())
    if self.special_tokens:
      digest.update(repr(sorted(self.special_tokens.items())).encode())
    return digest.hexdigest()

  def encode(
      self, texts: Sequence[str], max_length: int, threads: int = -1
  ) -> Ragged:
    """Token ids of each text, at most `max_length`, with BOS and EOS.

    Texts are cut first and ended after, as by T5X's `append_eos_after_trim`:
    no row lacks EOS where `add_eos` is set. `threads` is -1 for one on each
    core.
    """
    rows = self._processor.encode_as_numpy(
        list(texts), add_bos=self.add_bos, add_eos=self.add_eos,
        num_threads=threads,
    )
    rows = [row[:max_length] for row in rows]
    offsets = row_offsets(rows)
    values = np.empty(offsets[-1], self.token_dtype)
    if rows:
      np.concatenate(rows, out=values, casting='unsafe')
    if self.add_eos:
      values[offsets[1:] - 1] = EOS
    return Ragged(values, offsets)

  def check_ends(self, user: str) -> None:
    """Raises UserError unless texts have EOS and no BOS, as `user` needs."""
    if self.special_tokens:
      raise UserError(
          f'{user} needs texts with EOS and without BOS, but Vocabulary has'
          f' {self.special_tokens}. Give --gin.data.Vocabulary.add_bos=False'
          ' --gin.data.Vocabulary.add_eos=True.'
      )

  def pieces(self, text: str) -> np.ndarray:
    """Token ids of a whole text without BOS and EOS."""
    return self._processor.encode_as_numpy([text], num_threads=1)[0]

  def decode(self, ids: np.ndarray) -> str:
    """The text of a row of `encode`, as normalised, without BOS and EOS.

    Ids that are not pieces, which a model may write, are left out.
    """
    pieces = self._processor.get_piece_size()
    return self._processor.decode(ids[ids < pieces].tolist())

  @functools.cached_property
  def file(self) -> pathlib.Path:
    """The SentencePiece model file."""
    path = pathlib.Path(self.path).expanduser()
    if path.is_file():
      return path
    shipped = {file.stem: file for file in sorted(SHIPPED.glob('*.model'))}
    if self.path in shipped:
      return shipped[self.path]
    raise UserError(
        f'Vocabulary.path: {self.path!r} is neither a file nor a shipped one.'
        f'{did_you_mean(self.path, shipped)} Shipped: {", ".join(shipped)}.'
    )

  @functools.cached_property
  def _processor(self) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
      processor.load(str(self.file))
    except (OSError, RuntimeError) as error:
      raise UserError(
          f'Vocabulary.path: {self.file} is not a SentencePiece model: {error}'
      ) from error
    ids = processor.pad_id(), processor.eos_id()
    if ids != (PAD, EOS):
      raise UserError(
          f'Vocabulary.path: {self.file} has the ids (pad, eos) {ids}; expected'
          f' {(PAD, EOS)}, as in T5 and Gemma. Train it with these.'
      )
    if self.add_bos and processor.bos_id() < 0:
      raise UserError(
          f'Vocabulary.add_bos is set, but {self.file} has no BOS. Give'
          ' --gin.data.Vocabulary.add_bos=False, or a vocabulary with one.'
      )
    return processor


def vocab_size(vocabulary: Vocabulary) -> int:
  """Rows of the embeddings of a vocabulary, its size rounded up."""
  return -(-vocabulary.size // _MULTIPLE) * _MULTIPLE


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """Encodes queries and passages, with the BOS and EOS of the vocabulary.

  Attributes:
    query_length, passage_length: most tokens, BOS and EOS included.
    query_prefix: in front of every query, such as 'query: '; its tokens count.
    passage_prefix: in front of every passage and hard negative.
    prompts: other prefixes by name, for `prompted`.
    default_prompt: name of the prompt for a text of neither side, as in
      `encode` of sentence-transformers; '' for none, None for the prefix that
      both sides share, if they do.
  """

  vocabulary: Vocabulary
  query_length: int = 64
  passage_length: int = 256
  query_prefix: str = ''
  passage_prefix: str = ''
  prompts: Mapping[str, str] = dataclasses.field(
      default_factory=dict, hash=False
  )
  default_prompt: str | None = None

  def __post_init__(self):
    for name in ('query_length', 'passage_length'):
      value = getattr(self, name)
      least = 1 + self.vocabulary.add_bos + self.vocabulary.add_eos
      expect(
          least <= value <= LONGEST, f'Tokenizer.{name}', value,
          f'at least {least}: one token beside BOS and EOS, and at most'
          f' {LONGEST:,}',
      )
    for name in PREFIXES:
      text = getattr(self, name)
      expect(
          isinstance(text, str), f'Tokenizer.{name}', text,
          "a string, '' for none",
      )
    check_prompts('Tokenizer.prompts (PROMPTS)', self.prompts)
    if self.default_prompt:
      self.prompt(self.default_prompt, 'Tokenizer.default_prompt: the model')

  @property
  def prefixes(self) -> dict[str, str]:
    """Prefixes that are not empty, by name."""
    return {n: getattr(self, n) for n in PREFIXES if getattr(self, n)}

  @property
  def own_facts(self) -> dict[str, Any]:
    """The prompts, and what else is not T5's, as JSON, if there is any."""
    facts: dict[str, Any] = dict(self.vocabulary.special_tokens)
    if self.prompts:
      facts['prompts'] = dict(self.prompts)
    if self.default_prompt is not None:
      facts['default_prompt'] = self.default_prompt
    return facts

  @property
  def all_prompts(self) -> dict[str, str]:
    """The prompts, and both prefixes as 'query' and 'document'."""
    own = {QUERY: self.query_prefix, DOCUMENT: self.passage_prefix}
    return {**own, **self.prompts}

  def prompt(self, name: str, model: object = 'The model') -> str:
    """The text of a prompt; raises UserError if there is no such prompt.

    `model` is the name of the model in the error.
    """
    if name not in self.all_prompts:
      raise UserError(
          f'{model} has no prompt {name!r}.'
          f'{did_you_mean_or_known(name, self.all_prompts)} Prompts are set in'
          ' training (PROMPTS).'
      )
    return self.all_prompts[name]

  def prompted(
      self, query: str | None = None, passage: str | None = None,
      model: object = 'The model',
  ) -> 'Tokenizer':
    """The tokenizer with named prompts as prefixes; None leaves a prefix.

    Raises:
      UserError: no such prompt exists.
    """
    chosen = zip(PREFIXES, (query, passage))
    texts: dict[str, Any] = {
        p: self.prompt(n, model) for p, n in chosen if n is not None
    }
    return dataclasses.replace(self, **texts) if texts else self

  def query_warnings(self, query: str) -> Iterator[str]:
    """Yields sentences on tokens of a query that the model does not see."""
    vocabulary, limit = self.vocabulary, self.query_length
    tokens = vocabulary.encode([self.query_prefix + query], LONGEST).row(0)
    if len(tokens) > limit:
      kept = vocabulary.decode(tokens[: limit - vocabulary.add_eos])
      yield (
          f'The query has {len(tokens):,} tokens, and the model reads'
          f' {limit:,}: it is cut after'
          f' {"..." * (len(kept) > 30)}{kept[-30:]!r}.'
      )
    pieces = vocabulary.pieces(query)
    unknown = pieces == vocabulary.unk
    if not vocabulary.decode(pieces[~unknown]).strip():
      yield (
          'The vocabulary knows no piece of the query: its hits mean nothing.'
          ' Ask in the language that the model was trained in.'
      )
    elif unknown.any():
      yield (
          f'The vocabulary does not know {unknown.sum()} of the {len(pieces)}'
          ' pieces of the query.'
      )

  def encode_queries(self, texts: Sequence[str], threads: int = -1) -> Ragged:
    """Rows of at most `query_length` token ids."""
    texts = [self.query_prefix + text for text in texts]
    return self.vocabulary.encode(texts, self.query_length, threads)

  def encode_passages(self, texts: Sequence[str], threads: int = -1) -> Ragged:
    """Rows of at most `passage_length` token ids."""
    texts = [self.passage_prefix + text for text in texts]
    return self.vocabulary.encode(texts, self.passage_length, threads)


def queries_of_length(
    tokenizer: Tokenizer, tokens: int, count: int
) -> list[str]:
  """Queries that have exactly so many tokens, prefix and EOS included.

  They are at most `count`, of random words that are one token each; equal
  tokenizers give equal texts.

  Raises:
    UserError: there are no such queries.
  """
  vocabulary = tokenizer.vocabulary
  rng = np.random.default_rng(0)
  ids = rng.permutation(vocabulary.size - vocabulary.extra_ids)[:4096]
  pieces = [vocabulary.decode(ids[i : i + 1]) for i in range(len(ids))]
  pieces = [piece for piece in pieces if piece.isalpha()]
  lengths = tokenizer.encode_queries(pieces).lengths
  fixed = int(min(lengths, default=1)) - 1  # Tokens of prefix and EOS.
  words = [w for w, length in zip(pieces, lengths) if length == fixed + 1]
  texts: list[str] = []
  if words and fixed < tokens <= tokenizer.query_length:
    drawn = rng.choice(words, (count, tokens - fixed))
    texts = list(map(' '.join, drawn.tolist()))
    whole = [tokenizer.query_prefix + text for text in texts]
    lengths = vocabulary.encode(whole, tokens + 1).lengths
    texts = [t for t, length in zip(texts, lengths) if length == tokens]
  if not texts:
    raise UserError(
        f'Cannot make a query of {tokens} tokens, of which prefix and EOS take'
        f' {fixed}, for a model that reads {tokenizer.query_length}. Give'
        ' another length, or queries of your own.'
    )
  return texts


def check_prompts(where: str, prompts: object) -> None:
  """Raises UserError, naming `where`, unless prompts are texts by name."""
  if not isinstance(prompts, Mapping) or not all(
      isinstance(part, str) for pair in prompts.items() for part in pair
  ):
    raise UserError(
        f"{where} is {prompts!r:.80}; expected texts by name:"
        " {'nli': 'classify: '}."
    )
  for name in (QUERY, DOCUMENT):
    if name in prompts:
      side = 'QUERY' if name == QUERY else 'PASSAGE'
      raise UserError(f'{where} has {name!r}. Give {side}_PREFIX in its place.')
