# The verifier on TensorRT-LLM, on NVIDIA's release image, which holds torch, CUDA and the engine
# (and compilers, which are NVIDIA's and stay).
#   docker build -f helm/images/verify-tensorrt-llm.Dockerfile -t paceline/verify-tensorrt-llm:0.1.0 .
# A release pins the bases: --build-arg RELEASE_DIGEST=sha256:... --build-arg PYTHON_DIGEST=sha256:...
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG PYTHON_DIGEST=
ARG RELEASE_IMAGE=nvcr.io/nvidia/tensorrt-llm/release:1.2.1
ARG RELEASE_DIGEST=

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY paceline ./paceline
COPY verify_service ./verify_service
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${RELEASE_IMAGE}${RELEASE_DIGEST:+@${RELEASE_DIGEST}}
COPY helm/images/tensorrt-llm-constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /tmp/wheels
# The environment sees NVIDIA's packages and adds only what is missing there; without the extra
# `verify`, nothing could replace NVIDIA's torch.
RUN python3 -m venv --system-site-packages /opt/paceline \
    && /opt/paceline/bin/pip install --no-cache-dir -c /tmp/constraints.txt "$(echo /tmp/wheels/*.whl)[telemetry]" \
    && rm -r /tmp/wheels /tmp/constraints.txt
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 50052 9464
STOPSIGNAL SIGTERM
CMD ["python", "-m", "verify_service", "--help"]
