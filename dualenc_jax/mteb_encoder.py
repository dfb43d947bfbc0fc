"""A retriever as mteb takes one: `pip install 'dualenc-jax[mteb]'`.

  retriever = dualenc_jax.Retriever.from_dir('my_model')
  model = MtebEncoder(retriever, 'my-lab/my-model', revision='1')
  mteb.evaluate(model, mteb.get_tasks(['SciFact', 'STSBenchmark']))
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

try:
  from mteb.models import ModelMeta
  from mteb.models.abs_encoder import AbsEncoder
  from mteb.models.model_meta import ScoringFunction
  from mteb.types import PromptType
except ImportError as e:
  raise UserError(
      f"mteb is needed here ({e}): pip install 'dualenc-jax[mteb]'."
  ) from e


class MtebEncoder(AbsEncoder):
  """The towers of a retriever behind mteb's `EncoderProtocol`.

  Queries of retrieval and reranking go to the query tower. Everything else goes
  to the passage tower: documents, and all texts of symmetric tasks (STS,
  clustering, classification, pairs), which are compared with each other, so
  that one tower must embed all of them, and which may be as long as passages.

  Prefixes are those of the model, or its prompts with mteb's names:
  'SciFact-query', 'SciFact', 'Retrieval-query', 'Retrieval'; documents take
  only names that end with '-document'. mteb joins titles to texts and
  instructions to queries before they come here.

  Attributes:
    model: the retriever.
    mteb_model_meta: what mteb writes beside its results.
  """

  def __init__(self, retriever: Retriever, name: str, revision: str = '1'):
    """Wraps a retriever; its index is not used.

    Args:
      retriever: opened by `Retriever.from_dir`, say.
      name: 'organisation/model'. mteb keeps its results under name and
        revision, and does not compute again what it has: another model must
        have another name or another revision.
      revision: of the model.
    """
    self.model = retriever
    self.model_prompts = dict(retriever.towers.tokenizer.prompts) or None
    unknown: dict[str, Any] = dict.fromkeys((
        'loader', 'release_date', 'languages', 'n_parameters',
        'memory_usage_mb', 'license', 'open_weights', 'public_training_code',
        'public_training_data', 'training_datasets',
    ))
    self.mteb_model_meta = ModelMeta(
        name=name, revision=revision,
        max_tokens=retriever.towers.tokenizer.passage_length,
        embed_dim=retriever.dim, framework=['JAX'],
        similarity_fn_name=ScoringFunction.COSINE, use_instructions=False,
        **unknown,
    )

  def encode(
      self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any,
      hf_split: str, hf_subset: str, prompt_type: PromptType | None = None,
      **kwargs: Any,
  ) -> np.ndarray:
    """Embeds the texts of a data loader.

    Args:
      inputs: batches with 'text', a list of strings.
      task_metadata: of the task; it is named in messages.
      hf_split: not used.
      hf_subset: not used.
      prompt_type: `PromptType.query` for the query tower; with the task it
        chooses the prompt.
      **kwargs: not used: how many texts are encoded at once does not change
        their embeddings.

    Returns:
      float32 [n, D], of length one.

    Raises:
      UserError: inputs without text, as images.
    """
    texts = []
    for batch in inputs:
      if 'text' not in batch:
        raise UserError(
            f'Task {task_metadata.name} has inputs of'
            f' {", ".join(sorted(batch))}; this model encodes text only.'
        )
      texts += batch['text']
    name = self.get_prompt_name(task_metadata, prompt_type)
    if prompt_type == PromptType.query:
      return self.model.encode_queries(texts, name)
    if prompt_type and name and not name.endswith(f'-{prompt_type.value}'):
      name = None
    return self.model.encode_passages(texts, name)
