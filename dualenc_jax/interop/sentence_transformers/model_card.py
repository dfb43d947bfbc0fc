"""The README.md of a folder: what it is and how it is opened."""

from collections.abc import Sequence
import json
import re

from dualenc_jax.interop.weights import Weights

_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- sentence-similarity
- feature-extraction
- t5
---

# T5 dual encoder

Embeds queries and passages as vectors of {dim} numbers and norm one; their
inner product is their cosine. Written by dualenc_jax from a {kind}.

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer('path/to/this/folder')
scores = model.encode_query(queries) @ model.encode_document(passages).T
```

| | queries | passages |
|---|---|---|
| most tokens | {query_length} | {passage_length} |
| prompt | {query_prompt} | {passage_prompt} |
| layers of the T5 encoder | {query_layers} | {passage_layers} |
"""


def text(weights: Weights, notes: Sequence[str]) -> str:
  """The card of a dual encoder.

  Args:
    weights: with a projection.
    notes: sentences to add.
  """
  usage = weights.usage
  passage_encoder = weights.passage_encoder or weights.encoder
  card = _CARD.format(
      kind=weights.kind,
      dim=weights.tensors['projection/kernel'].shape[1],
      query_length=usage.query_length or 'not known',
      passage_length=usage.passage_length or 'not known',
      query_prompt=_quoted(usage.query_prefix),
      passage_prompt=_quoted(usage.passage_prefix),
      query_layers=weights.encoder.num_layers,
      passage_layers=passage_encoder.num_layers,
  )
  return card + ''.join(f'\n{note}\n' for note in notes)


def _quoted(prompt: str) -> str:
  """A prompt as JSON, with its spaces to be seen, in a cell of a table."""
  if not prompt:
    return 'none'
  text = json.dumps(prompt, ensure_ascii=False).replace('|', r'\|')
  # Longer than any within it, or that one would end it.
  fence = '`' * (1 + max(map(len, re.findall('`+', text)), default=0))
  return f'{fence}{text}{fence}'
