"""Notes on figures of one model that are not all of one kind."""

from collections.abc import Iterator, Mapping, Sequence

from dualenc_jax.results.folder import Result


def notes(results: Mapping[str, Sequence[Result]]) -> tuple[str, ...]:
  """What differs between results that stand in one table.

  Args:
    results: by the model's name.

  Returns:
    A sentence for each model whose results are of several checkpoints or
    training runs, or of passages and of documents; none where all are alike.
  """
  return tuple(
      f'Figures{f" of {name}" if len(results) > 1 else ""} are of {what}.'
      for name, own in results.items()
      for what in _mixed(own)
  )


def _mixed(results: Sequence[Result]) -> Iterator[str]:
  facts = [result.provenance for result in results]
  # A result that does not tell its step or run may be of the others'.
  steps = {fact.get('checkpoint_step') for fact in facts} - {None}
  if len(steps) > 1:
    yield f'steps {_listed(f"{step:,}" for step in sorted(steps))}'
  runs = {fact.get('run_id') for fact in facts} - {None}
  if len(runs) > 1:
    yield f'{len(runs)} training runs'
  separators = {fact.get('document_separator') for fact in facts}
  if len(separators) > 1:
    documents = sorted(separators - {None})
    names = [f'documents (ids up to {s!r})' for s in documents]
    yield _listed([*['passages'] * (None in separators), *names])


def _listed(words: Iterator[str] | Sequence[str]) -> str:
  """'a, b and c'."""
  *first, last = words
  return f'{", ".join(first)} and {last}'
