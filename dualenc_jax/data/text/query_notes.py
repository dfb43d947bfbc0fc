"""Notes for the user on tokens of a query that a model cuts or misses."""

from collections.abc import Iterator

from dualenc_jax.data.text.tokenizer import LONGEST, Tokenizer, UNK


def of(tokenizer: Tokenizer, query: str) -> Iterator[str]:
  """Sentences on what of a query the model does not see; of most none."""
  vocabulary, most = tokenizer.vocabulary, tokenizer.query_length
  prefix = tokenizer.query_prefix
  tokens = vocabulary.encode([prefix + query], LONGEST).row(0)
  if len(tokens) > most:
    kept = vocabulary.decode(tokens[: most - 1])
    yield (
        f'The query has {len(tokens):,} tokens, and the model reads {most:,}:'
        f' it is cut after {"..." * (len(kept) > 30)}{kept[-30:]!r}.'
    )
  # Less EOS.
  pieces = vocabulary.encode([query], LONGEST).row(0)[:-1]
  unknown = pieces == UNK
  if not vocabulary.decode(pieces[~unknown]).strip():
    yield (
        'The vocabulary knows no piece of the query, so that its hits mean'
        ' nothing. Ask in the language that the model was trained in.'
    )
  elif unknown.any():
    yield (
        f'The vocabulary does not know {unknown.sum()} of the {len(pieces)}'
        ' pieces of the query.'
    )
