# A server for one model:
#   docker build -t vitrail --build-arg TORCH="--index-url ADDRESS_OF_THE_CPU_BUILDS" .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs/mine:/model:ro" -e VITRAIL_TOKEN vitrail
# A run, a model folder or an exported file is mounted at /model; further options of `vitrail serve` go after its name:
#   docker run ... vitrail /model --max-batch 32
# It finishes accepted requests before it exits; `docker stop --time 40` leaves it enough time.

FROM python:3.12-slim AS build
ARG TORCH
# The default build for Linux includes gigabytes of CUDA libraries, so the index is required before anything is downloaded.
RUN : "${TORCH:?name the index of the CPU builds: --build-arg TORCH='--index-url ADDRESS', from PyTorch, Get Started}"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH="/venv/bin:$PATH"
RUN python -m venv /venv
WORKDIR /src
COPY constraints.txt ./
RUN pip install -c constraints.txt pip hatchling && pip install -c constraints.txt --no-deps $TORCH torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install -c constraints.txt --no-build-isolation ".[serve,onnx,fast]"

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 vitrail
COPY --from=build /venv /venv
ENV PATH="/venv/bin:$PATH" PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_TELEMETRY=1
# By number, so that a cluster can verify that it is not root.
USER 10001
WORKDIR /home/vitrail
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# In exec form, so that the server itself, not a shell, is process 1 and receives the signal.
ENTRYPOINT ["vitrail", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/model"]
