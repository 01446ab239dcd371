"""Retrieval with LangChain: its vector store embeds and searches by Octavo, and a chain answers from what was found.

Needs `pip install langchain-openai`. `make frameworks` runs it.
"""

import os

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

PASSAGES = [
    "The library opens at nine in the morning and closes at eight in the evening.",
    "A reader may borrow up to five books for four weeks.",
    "The reading room is on the second floor, beside the maps.",
]
QUESTION = "How many books may a reader borrow?"
server = {
    "base_url": os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    "api_key": os.environ.get("OPENAI_API_KEY", "none"),
    "model": os.environ.get("MODEL", "smollm2"),
}
# Without check_embedding_ctx_length=False LangChain would send tokens of OpenAI's tokenizer instead of the text.
store = InMemoryVectorStore(OpenAIEmbeddings(**server, check_embedding_ctx_length=False))
store.add_documents([Document(text) for text in PASSAGES])
retriever = store.as_retriever(search_kwargs={"k": 1})
prompt = ChatPromptTemplate.from_template("{passage}\n\nAnswer from this text: {question}")
passage = retriever | (lambda found: found[0].page_content)
chain = (
    {"passage": passage, "question": RunnablePassthrough()}
    | prompt
    | ChatOpenAI(**server, temperature=0, max_tokens=60)
    | StrOutputParser()
)
print(f"nearest passage: {passage.invoke(QUESTION)}")
print(chain.invoke(QUESTION))
