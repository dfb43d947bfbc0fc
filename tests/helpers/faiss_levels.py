"""Makes faiss multiply queries in float32, whatever the processor can do."""

import faiss


def keep_queries() -> None:
  """Keeps faiss from rounding queries to bfloat16, as its vectors are.

  It does where the processor has AMX or AVX512_BF16.
  """
  levels = faiss.SIMDConfig
  if levels.get_level() == faiss.SIMDLevel_AVX512_SPR:
    levels.set_level(faiss.SIMDLevel_AVX512)
