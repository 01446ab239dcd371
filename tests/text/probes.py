"""Texts for which tokenizers often have bugs."""

PROBES = [
    "",
    "Hello, world!",
    "Hello  world, two  spaces",
    "   leading and trailing   ",
    "\n\n\ttabs\r\nand\n\n\nlines\n",
    "I'll don't WE'RE they'd 's",
    "naïve café Ångström e\u0301",
    "東京は日本の首都です。",
    "Привет, мир! مرحبا שלום",
    "🤗 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈",
    "def f(x: int) -> int:\n    return x**2  # square\n",
    '{"a": [1.5e-3, null], "b": "\\u00e9"}',
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "https://example.org/a_b?c=d&e=%20f#g",
    "\u200b\u00a0\ufeff\ufffd",
    "x" * 300,
]
DIGITS = ["12345", "a1b2c3", "in 2024", "x  42", "½ ⅓ Ⅷ ٣", "3.14159265"]
