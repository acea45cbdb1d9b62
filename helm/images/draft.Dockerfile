# The draft service: no torch, no compiler, no pip at run time.
#   docker build -f helm/images/draft.Dockerfile -t paceline/draft:0.1.0 .
# A release pins the base: --build-arg PYTHON_DIGEST=sha256:...
# Drafters on a GPU: --build-arg EXTRA=draft-gpu
# huggingface-hub is what init containers fetch a drafter's model with (model.source: hub).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG PYTHON_DIGEST=

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}} AS build
ARG EXTRA=draft
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY paceline ./paceline
COPY draft_service ./draft_service
RUN python -m venv --without-pip /opt/paceline \
    && python -m pip --python /opt/paceline install --no-cache-dir -c constraints.txt \
        ".[${EXTRA},telemetry]" huggingface-hub

FROM ${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}}
RUN python -m pip uninstall --yes pip setuptools wheel
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 50053 9464
STOPSIGNAL SIGTERM
CMD ["python", "-m", "draft_service", "--help"]
