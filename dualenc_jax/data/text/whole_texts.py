"""Whole texts in place of tokens, for models with tokenizers of their own."""

from collections.abc import Iterator, Sequence
import dataclasses

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary


@dataclasses.dataclass(frozen=True)
class Utf8(Vocabulary):
  """The bytes of UTF-8 as a vocabulary, without a file, BOS or EOS."""

  path: str = 'utf-8'

  @property
  def size(self) -> int:
    return 256

  @property
  def sha256(self) -> str:  # type: ignore[override] # No file is read.
    return self.path


@dataclasses.dataclass(frozen=True)
class WholeTexts(Tokenizer):
  """Rows that are the UTF-8 of texts, whole and without a prefix.

  `Ragged.text` returns them. Lengths and prefixes are what the model itself
  cuts texts to, in its tokens, and puts before them.
  """

  vocabulary: Vocabulary = Utf8()

  def encode_queries(self, texts: Sequence[str], threads: int = -1) -> Ragged:
    return Ragged.from_texts(texts)

  encode_passages = encode_queries

  def query_warnings(self, query: str) -> Iterator[str]:
    return iter(())
