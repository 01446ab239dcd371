"""The connections of clients: accepting them, strict HTTP/1.1, time limits, and clients that read slowly."""
