"""The registry of model families: one small file describes each family."""

from octavo_engine.model.families.afmoe import AFMOE
from octavo_engine.model.families.albert import ALBERT_FAMILIES
from octavo_engine.model.families.apertus import APERTUS, APERTUS1P5
from octavo_engine.model.families.arcee import ARCEE, JAIS2, NEMOTRON
from octavo_engine.model.families.aria import ARIA_TEXT
from octavo_engine.model.families.axk1 import AXK1
from octavo_engine.model.families.axk2 import AXK2
from octavo_engine.model.families.baichuan import BAICHUAN, BAICHUAN_7B
from octavo_engine.model.families.bailing import BAILING_HYBRID
from octavo_engine.model.families.bailing_moe import BAILING_MOE, BAILING_MOE_V2
from octavo_engine.model.families.bamba import BAMBA
from octavo_engine.model.families.bart_families import BART_DECODERS
from octavo_engine.model.families.beam import BEAM
from octavo_engine.model.families.bert import BERT_FAMILIES
from octavo_engine.model.families.bert_decoders import BERT_DECODERS
from octavo_engine.model.families.bitnet import BITNET
from octavo_engine.model.families.bloom import BLOOM
from octavo_engine.model.families.chameleon import CHAMELEON
from octavo_engine.model.families.chatglm import CHATGLM, CHATGLM_GENERATING
from octavo_engine.model.families.cohere import COHERE
from octavo_engine.model.families.cohere2 import COHERE2
from octavo_engine.model.families.cohere2_moe import COHERE2_MOE
from octavo_engine.model.families.cohere_compass import COHERE_COMPASS
from octavo_engine.model.families.cosmos3 import COSMOS3_EDGE, COSMOS3_OMNI
from octavo_engine.model.families.ctrl import CTRL
from octavo_engine.model.families.cwm import CWM
from octavo_engine.model.families.dbrx import DBRX
from octavo_engine.model.families.deepseek import DEEPSEEK_V3, GLM4_MOE_LITE
from octavo_engine.model.families.deepseek_ocr import DEEPSEEK_OCR2
from octavo_engine.model.families.deepseek_v1 import DEEPSEEK
from octavo_engine.model.families.deepseek_v2 import DEEPSEEK_V2
from octavo_engine.model.families.deepseek_v4 import DEEPSEEK_V4
from octavo_engine.model.families.diffllama import DIFFLLAMA
from octavo_engine.model.families.doge import DOGE
from octavo_engine.model.families.dots3_note import DOTS3_NOTE
from octavo_engine.model.families.embedding_gemma2 import EMBEDDING_GEMMA2
from octavo_engine.model.families.ernie import ERNIE4_5, PADDLE_OCR
from octavo_engine.model.families.ernie_moe import ERNIE4_5_MOE
from octavo_engine.model.families.ernie_vl_moe import ERNIE4_5_VL_MOE
from octavo_engine.model.families.eurobert import EUROBERT_FAMILIES
from octavo_engine.model.families.exaone import EXAONE
from octavo_engine.model.families.exaone4 import EXAONE4
from octavo_engine.model.families.exaone_moe import EXAONE_MOE
from octavo_engine.model.families.fairseq import BIOGPT, XGLM
from octavo_engine.model.families.falcon import FALCON, RW
from octavo_engine.model.families.falcon_h1 import FALCON_H1
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.flint import FLINT
from octavo_engine.model.families.gemma import GEMMA
from octavo_engine.model.families.gemma2 import GEMMA2, VAULTGEMMA
from octavo_engine.model.families.gemma3 import GEMMA3
from octavo_engine.model.families.gemma3n import GEMMA3N
from octavo_engine.model.families.gemma4 import GEMMA4, GEMMA4_UNIFIED
from octavo_engine.model.families.glm import GLM, GLM4, GLM_OCR
from octavo_engine.model.families.glm4_moe import DOTS1, GLM4_MOE, SOLAR_OPEN
from octavo_engine.model.families.glm5_next import GLM5_NEXT
from octavo_engine.model.families.gpt2 import GPT2
from octavo_engine.model.families.gpt_bigcode import GPT_BIGCODE
from octavo_engine.model.families.gpt_neo import GPT_NEO
from octavo_engine.model.families.gpt_neox import GPT_NEOX
from octavo_engine.model.families.gpt_neox_japanese import GPT_NEOX_JAPANESE
from octavo_engine.model.families.gpt_oss import GPT_OSS
from octavo_engine.model.families.gptj import CODEGEN, GPTJ
from octavo_engine.model.families.granite import GRANITE
from octavo_engine.model.families.granite_hybrid import GRANITE_HYBRID
from octavo_engine.model.families.granite_moe import GRANITE_MOE, GRANITE_MOE_SHARED, GRANITE_MOE_SWA
from octavo_engine.model.families.granite_swa import GRANITE_SWA
from octavo_engine.model.families.gte import GTE_FAMILIES
from octavo_engine.model.families.helium import HELIUM
from octavo_engine.model.families.hrm_text import HRM_TEXT
from octavo_engine.model.families.hunyuan import HUNYUAN
from octavo_engine.model.families.hunyuan_moe import HUNYUAN_MOE
from octavo_engine.model.families.hy_v3 import HY_V3
from octavo_engine.model.families.hy_v4 import HY_V4, HY_V4_VL_TEXT
from octavo_engine.model.families.hyperclovax import HYPERCLOVAX
from octavo_engine.model.families.internlm import INTERNLM
from octavo_engine.model.families.internlm2 import INTERNLM2
from octavo_engine.model.families.jamba import JAMBA
from octavo_engine.model.families.jetmoe import JETMOE
from octavo_engine.model.families.jina_bert import JINA_BERT_FAMILIES
from octavo_engine.model.families.jina_embeddings import JINA_EMBEDDINGS_FAMILIES
from octavo_engine.model.families.kimi_linear import KIMI_LINEAR
from octavo_engine.model.families.kolibri import KOLIBRI1
from octavo_engine.model.families.laguna import LAGUNA
from octavo_engine.model.families.lara_mini import LARA_MINI
from octavo_engine.model.families.lfm2 import LFM2
from octavo_engine.model.families.lfm2_moe import LFM2_MOE
from octavo_engine.model.families.lfm3 import LFM3
from octavo_engine.model.families.llama import EMU3, LLAMA
from octavo_engine.model.families.llama4 import LLAMA4
from octavo_engine.model.families.llama_bidirectional import LLAMA_BIDIRECTIONAL_FAMILIES
from octavo_engine.model.families.llama_shapes import LLAMA_SHAPES
from octavo_engine.model.families.longcat import LONGCAT_FLASH
from octavo_engine.model.families.mamba import FALCON_MAMBA, MAMBA, MAMBA2
from octavo_engine.model.families.mellum import MELLUM
from octavo_engine.model.families.mimo_v2 import MIMO_V2_FLASH
from octavo_engine.model.families.minicpm import MINICPM
from octavo_engine.model.families.minicpm3 import MINICPM3, YOUTU
from octavo_engine.model.families.minimax import MINIMAX
from octavo_engine.model.families.minimax_m2 import MINIMAX_M2
from octavo_engine.model.families.minimax_m3 import MINIMAX_M3, MINIMAX_M3_PUBLISHED
from octavo_engine.model.families.minimax_text_01 import MINIMAX_PUBLISHED
from octavo_engine.model.families.ministral import MINISTRAL, MINISTRAL3
from octavo_engine.model.families.mistral import MISTRAL
from octavo_engine.model.families.mistral4 import MISTRAL4
from octavo_engine.model.families.mistral_large4 import MISTRAL_LARGE4
from octavo_engine.model.families.mixtral import MIXTRAL
from octavo_engine.model.families.mllama import MLLAMA
from octavo_engine.model.families.modernbert import MODERNBERT_FAMILIES
from octavo_engine.model.families.modernbert_decoder import MODERNBERT_DECODER
from octavo_engine.model.families.molmo2 import MOLMO2_TEXT
from octavo_engine.model.families.mpnet import MPNET_FAMILIES
from octavo_engine.model.families.mpt import MPT, MPT_PUBLISHED
from octavo_engine.model.families.muse_glimmer import MUSE_GLIMMER
from octavo_engine.model.families.nanochat import NANOCHAT
from octavo_engine.model.families.nemotron_h import NEMOTRON_H
from octavo_engine.model.families.nemotron_nas import NEMOTRON_NAS
from octavo_engine.model.families.nomic_bert import NOMIC_BERT_FAMILIES
from octavo_engine.model.families.olmo import OLMO
from octavo_engine.model.families.olmo2 import OLMO2
from octavo_engine.model.families.olmo3 import OLMO3
from octavo_engine.model.families.olmo_hybrid import OLMO_HYBRID
from octavo_engine.model.families.olmoe import FLEX_OLMO, OLMOE
from octavo_engine.model.families.openai_gpt import OPENAI_GPT
from octavo_engine.model.families.opt import OPT
from octavo_engine.model.families.orion import ORION
from octavo_engine.model.families.persimmon import PERSIMMON
from octavo_engine.model.families.phi import PHI
from octavo_engine.model.families.phi3 import PHI3
from octavo_engine.model.families.phi4_multimodal import PHI4_MM, PHI4_MULTIMODAL
from octavo_engine.model.families.phimoe import PHIMOE, PHIMOE_PUBLISHED
from octavo_engine.model.families.qwen import QWEN
from octavo_engine.model.families.qwen2 import MIMO, QWEN2
from octavo_engine.model.families.qwen2_moe import QWEN2_MOE
from octavo_engine.model.families.qwen3 import QWEN3
from octavo_engine.model.families.qwen3_moe import QWEN3_MOE
from octavo_engine.model.families.qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from octavo_engine.model.families.qwen3_vl_moe import QWEN3_VL_MOE
from octavo_engine.model.families.qwen4_exp import QWEN4_EXP
from octavo_engine.model.families.recurrent_gemma import RECURRENT_GEMMA
from octavo_engine.model.families.reward_models import REWARD_MODELS
from octavo_engine.model.families.roformer import LATER_BERT_DECODERS
from octavo_engine.model.families.sarvam import SARVAM_MLA, SARVAM_MOE
from octavo_engine.model.families.seed_oss import INTERNLM3, SEED_OSS
from octavo_engine.model.families.smollm3 import SMOLLM3
from octavo_engine.model.families.sparse_index import DEEPSEEK_V32, GLM_MOE_DSA
from octavo_engine.model.families.stablelm import STABLELM, STABLELM_EPOCH
from octavo_engine.model.families.starcoder2 import STARCODER2
from octavo_engine.model.families.step3p7 import STEP3P5, STEP3P7
from octavo_engine.model.families.telechat2 import TELECHAT2
from octavo_engine.model.families.ultrabert import ULTRABERT_FAMILIES
from octavo_engine.model.families.without_head import family_without_head
from octavo_engine.model.families.zamba import ZAMBA
from octavo_engine.model.families.zamba2 import ZAMBA2
from octavo_engine.model.families.zaya import ZAYA

_ALL = (
    LLAMA,
    MLLAMA,
    QWEN,
    QWEN2,
    MIMO,
    QWEN3,
    QWEN3_MOE,
    QWEN3_VL_MOE,
    MISTRAL,
    MIXTRAL,
    GPT_OSS,
    PHI3,
    PHI4_MULTIMODAL,
    PHI4_MM,
    GRANITE,
    OLMO2,
    COHERE2,
    STABLELM,
    STABLELM_EPOCH,
    GEMMA2,
    APERTUS,
    APERTUS1P5,
    ARCEE,
    JAIS2,
    NEMOTRON,
    MUSE_GLIMMER,
    CHAMELEON,
    COHERE,
    COSMOS3_EDGE,
    COSMOS3_OMNI,
    CWM,
    ERNIE4_5,
    HELIUM,
    PADDLE_OCR,
    EXAONE,
    EXAONE4,
    GEMMA,
    GEMMA3,
    GEMMA3N,
    GEMMA4,
    GEMMA4_UNIFIED,
    EMBEDDING_GEMMA2,
    BITNET,
    EMU3,
    CHATGLM,
    CHATGLM_GENERATING,
    GLM,
    GLM4,
    GLM_OCR,
    HRM_TEXT,
    HUNYUAN,
    HYPERCLOVAX,
    MINISTRAL,
    MINISTRAL3,
    MINICPM,
    MOLMO2_TEXT,
    NANOCHAT,
    NEMOTRON_NAS,
    OLMO,
    OLMO3,
    ORION,
    INTERNLM,
    INTERNLM2,
    INTERNLM3,
    SEED_OSS,
    SMOLLM3,
    STARCODER2,
    VAULTGEMMA,
    GRANITE_SWA,
    GPT2,
    GPT_BIGCODE,
    GPT_NEO,
    GPTJ,
    CODEGEN,
    QWEN2_MOE,
    FLEX_OLMO,
    OLMOE,
    GRANITE_MOE,
    GRANITE_MOE_SHARED,
    GRANITE_MOE_SWA,
    BAICHUAN,
    BAICHUAN_7B,
    BAILING_MOE,
    BAILING_MOE_V2,
    SARVAM_MOE,
    DOTS1,
    GLM4_MOE,
    SOLAR_OPEN,
    EXAONE_MOE,
    ERNIE4_5_MOE,
    ERNIE4_5_VL_MOE,
    MIMO_V2_FLASH,
    MINIMAX,
    MINIMAX_M2,
    MINIMAX_M3,
    MINIMAX_M3_PUBLISHED,
    PHIMOE,
    PHIMOE_PUBLISHED,
    HUNYUAN_MOE,
    DBRX,
    LLAMA4,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    GLM_MOE_DSA,
    GLM5_NEXT,
    DOTS3_NOTE,
    FLINT,
    KOLIBRI1,
    MELLUM,
    LAGUNA,
    STEP3P5,
    STEP3P7,
    HY_V3,
    HY_V4,
    HY_V4_VL_TEXT,
    COHERE2_MOE,
    COHERE_COMPASS,
    ARIA_TEXT,
    AFMOE,
    BEAM,
    LFM2,
    LFM2_MOE,
    LFM3,
    TELECHAT2,
    BAMBA,
    GRANITE_HYBRID,
    NEMOTRON_H,
    FALCON_H1,
    JAMBA,
    JETMOE,
    MAMBA,
    FALCON_MAMBA,
    MAMBA2,
    ZAMBA,
    ZAMBA2,
    ZAYA,
    RECURRENT_GEMMA,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN4_EXP,
    OLMO_HYBRID,
    LARA_MINI,
    KIMI_LINEAR,
    BAILING_HYBRID,
    GPT_NEOX,
    GPT_NEOX_JAPANESE,
    CTRL,
    DIFFLLAMA,
    DOGE,
    FALCON,
    RW,
    OPT,
    XGLM,
    BIOGPT,
    BLOOM,
    MPT,
    MPT_PUBLISHED,
    MODERNBERT_DECODER,
    PHI,
    PERSIMMON,
    OPENAI_GPT,
    AXK1,
    AXK2,
    DEEPSEEK,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    SARVAM_MLA,
    DEEPSEEK_OCR2,
    GLM4_MOE_LITE,
    MISTRAL4,
    MISTRAL_LARGE4,
    LONGCAT_FLASH,
    MINICPM3,
    YOUTU,
    *LLAMA_SHAPES,
    *REWARD_MODELS,
    *MINIMAX_PUBLISHED,
    *BERT_FAMILIES,
    *BERT_DECODERS,
    *LATER_BERT_DECODERS,
    *BART_DECODERS,
    *MPNET_FAMILIES,
    *ALBERT_FAMILIES,
    *GTE_FAMILIES,
    *NOMIC_BERT_FAMILIES,
    *EUROBERT_FAMILIES,
    *ULTRABERT_FAMILIES,
    *JINA_EMBEDDINGS_FAMILIES,
    *JINA_BERT_FAMILIES,
    *MODERNBERT_FAMILIES,
    *LLAMA_BIDIRECTIONAL_FAMILIES,
)

FAMILIES: dict[str, Family] = {family.architecture: family for family in _ALL}
"""The families by the name of the architecture in config.json."""


_WITHIN_ANOTHERS_CLASS: dict[tuple[str, str], Family] = {
    ("LlamaForCausalLM", "exaone"): EXAONE,
    ("LlamaForCausalLM", "internlm3"): INTERNLM3,
    ("Glm4MoeForCausalLM", "sarvam_moe"): SARVAM_MOE,
    ("DeepseekV3ForCausalLM", "sarvam_mla"): SARVAM_MLA,
}
"""By class and `model_type`: transformers computes these with another family's class, which its files then name, while
names of tensors and what fields are by default remain the family's own."""


def family_of(architecture: str, model_type: object = None) -> Family | None:
    """Return the family of an architecture, with its head or without; None if it is not supported."""
    if isinstance(model_type, str) and (own := _WITHIN_ANOTHERS_CLASS.get((architecture, model_type))) is not None:
        return own
    return FAMILIES.get(architecture) or family_without_head(architecture, FAMILIES)


__all__ = ["FAMILIES", "Family", "family_of"]
