"""ASGI middleware around all endpoints: request ids, API keys, limits of keys and of bodies.

It is plain ASGI instead of Starlette's BaseHTTPMiddleware, so that a client's disconnect still reaches the endpoint.
"""
