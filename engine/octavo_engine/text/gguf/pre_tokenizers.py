"""How text is cut into words before byte pairs are merged, by the name in `tokenizer.ggml.pre`.

The expressions are those of the models' own tokenizer.json, where it is known; llama.cpp's `llama-vocab.cpp` says which
name stands for which, and gives the others.
"""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACES}"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_LLAMA3 = rf"{_WORD}|\p{{N}}{{1,3}}{_TAIL}"
_QWEN2 = rf"{_WORD}|\p{{N}}{_TAIL}"
_QWEN35 = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_SPACES}"
_SEED = rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_SPACES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = rf"{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|" + "".join(
    [*(rf"\s{{{count}}}(?!\S)|" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")), r"\s"]
)

_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED_TAIL = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_SPACES}"


def _cased(suffixes: str, without: str = "") -> str:
    """Return words in which no capital follows a small letter; `without` takes characters away from the letters."""
    before, upper, lower = r"[^\r\n\p{L}\p{N}]?", f"[{_UPPER}{without}]", f"[{_LOWER}{without}]"
    return f"{before}{upper}*{lower}+{suffixes}|{before}{upper}+{lower}*{suffixes}"


_TEKKEN = rf"{_cased('')}|\p{{N}}{_CASED_TAIL}"
_GPT4O = rf"{_cased(_SUFFIXES + '?')}|\p{{N}}{{1,3}}{_CASED_TAIL}"
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = rf"\p{{Han}}+|{_cased(_SUFFIXES + '?', _NOT_HAN)}|\p{{N}}{{1,3}}{_TAIL}"
_YOUTU = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_cased(_SUFFIXES + '?')}|\p{{N}}{_CASED_TAIL}",
)

_CJK = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{_SPACES}"
)
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, _PUNCTUATED)
_HAN_AND_HANGUL = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯ\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
    "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e"
    "\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f"
    "\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _HAN_AND_HANGUL,
    r"\p{N}",
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_THREES_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_AFMOE_SCRIPTS = (
    "[一-鿿㐀-䶿\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "([\\t\\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2_WORDS,
)

_LIKE_LLAMA3 = "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"
_SPLITS: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys((*_LIKE_LLAMA3, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"), _QWEN2),
    **dict.fromkeys(("kormo", "f2llmv2", "solar-open"), _QWEN2),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"), _GPT4O),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    "afmoe": (_THREES_FROM_THE_RIGHT, _AFMOE_SCRIPTS, _PUNCTUATED),
    "chameleon": _CHAMELEON,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-llm": _DEEPSEEK_LLM,
    "exaone-moe": _EXAONE_MOE,
    "jais-2": _JAIS2,
    "kimi-k2": _KIMI,
    "minicpm5": (r"\p{N}{1,3}", rf"{_WORD}|\p{{N}}+{_TAIL}"),
    "qwen35": _QWEN35,
    "seed-coder": _SEED,
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "tekken": _TEKKEN,
    "viking": (_BLOOM, r"\p{N}"),
    "youtu": _YOUTU,
}
_SINGLE_DIGITS = frozenset(
    {"smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"}
)
"""Pre-tokenizers that cut as GPT-2's does, and each digit from the next one."""
ROBERTA = frozenset({"roberta-bpe", "jina-v1-en", "jina-v2-code"})
"""Pre-tokenizers that cut as GPT-2's does, of models with RoBERTa's special tokens."""
_GPT2 = frozenset(
    {"default", "gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling", "exaone4", "modern-bert"}
    | {"jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum"}
    | ROBERTA
)
CHARACTERS = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
"""Names of vocabularies of characters rather than of bytes, whose text is not cut into words."""
COMPOSED = frozenset({"qwen2", "qwen35", "command-r", "mpt", "olmo", "modern-bert"})
"""Pre-tokenizers of models whose texts are composed first (Unicode's NFC), which llama.cpp leaves out."""
IGNORE_MERGES = frozenset(
    {*_LIKE_LLAMA3, "tekken", "llama4", "gpt-4o", "minicpm5", "youtu", "granite-embed-multi-97m", "glm4", "glm5"}
)
"""Pre-tokenizers after which a word that is in the vocabulary becomes one token, without merges."""
BOS_BY_DEFAULT = frozenset({*_LIKE_LLAMA3, "tekken", "chameleon"})
"""Pre-tokenizers of models whose prompts begin with the BOS token if the metadata does not say so."""


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer of a vocabulary of bytes; ValueError, with the known names, if `name` is unknown."""
    if (split := _SPLITS.get(name)) is not None:
        cuts = (split,) if isinstance(split, str) else split
        return pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in cuts),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if name == "falcon":
        threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")
        punctuation = pre_tokenizers.Punctuation("contiguous")
        return pre_tokenizers.Sequence([punctuation, words, pre_tokenizers.Digits(individual_digits=False), threes])
    if name in _GPT2:
        return words
    known = ", ".join(sorted({*_SPLITS, *_SINGLE_DIGITS, *_GPT2, *CHARACTERS, "falcon"}))
    raise ValueError(f"its metadata names the pre-tokenizer {name[:80]!r}; this version knows {known}")
