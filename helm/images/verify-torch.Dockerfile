# The verifier on torch, in three variants; none has a compiler or pip at run time.
#   docker build -f helm/images/verify-torch.Dockerfile -t paceline/verify-torch-cuda:0.1.0 .
#   docker build ... --build-arg TORCH_INDEX=URL -t paceline/verify-torch-cpu:0.1.0 .
#   docker build ... --build-arg TORCH_INDEX=URL --build-arg EXTRA=demo -t paceline/verify-demo:0.1.0 .
# The package index's own torch brings CUDA libraries along and needs only the node's driver.
# TORCH_INDEX is an index of CPU builds; the image is then about 3 GB smaller.
# A release pins the base: --build-arg PYTHON_DIGEST=sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG PYTHON_DIGEST=

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}} AS build
ARG EXTRA=verify
ARG TORCH_INDEX=
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY paceline ./paceline
COPY verify_service ./verify_service
RUN python -m venv --without-pip /opt/paceline \
    && if [ -n "${TORCH_INDEX}" ]; then \
        python -m pip --python /opt/paceline install --no-cache-dir -c constraints.txt \
            --index-url "${TORCH_INDEX}" torch; \
    fi \
    && python -m pip --python /opt/paceline install --no-cache-dir -c constraints.txt ".[${EXTRA},telemetry]"

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}}
RUN python -m pip uninstall --yes pip setuptools wheel
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /tmp
EXPOSE 50052 9464
STOPSIGNAL SIGTERM
CMD ["python", "-m", "verify_service", "--help"]
