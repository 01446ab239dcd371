"""The pool of text workers, which prepare requests in processes of their own, and the messages to and from them."""
