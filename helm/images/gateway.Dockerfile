# The gateway: no torch, no compiler, no pip at run time.
#   docker build -f helm/images/gateway.Dockerfile -t paceline/gateway:0.1.0 .
# A release pins the base: --build-arg PYTHON_DIGEST=sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG PYTHON_DIGEST=

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY paceline ./paceline
COPY gateway ./gateway
RUN python -m venv --without-pip /opt/paceline \
    && python -m pip --python /opt/paceline install --no-cache-dir -c constraints.txt ".[gateway,telemetry]"

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}}
RUN python -m pip uninstall --yes pip setuptools wheel
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
CMD ["python", "-m", "gateway", "--help"]
