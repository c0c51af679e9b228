# Two images from one file:
#   docker build --target exporter   -t gpuscale-exporter   .
#   docker build --target controller -t gpuscale-controller .
# glibc, not musl: the driver's libnvidia-ml.so.1, which the NVIDIA runtime mounts at start, needs it.
# Neither image holds a compiler, pip, NVML or CUDA.

FROM python:3.12-slim AS wheel
WORKDIR /src
RUN pip install --no-cache-dir "hatchling==1.27.0"
COPY pyproject.toml README.md LICENSE ./
COPY gpuscale gpuscale
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

# Wheels only: what would have to be compiled here fails the build instead. Our own is named by its
# path, so that no package index can put another in its place.
FROM python:3.12-slim AS install-exporter
COPY constraints.txt /
COPY --from=wheel /wheel /wheel
RUN python -m venv --without-pip /opt/gpuscale \
    && pip --python /opt/gpuscale/bin/python install --no-cache-dir --only-binary=:all: \
        --constraint /constraints.txt "$(echo /wheel/*.whl)"

FROM python:3.12-slim AS install-controller
COPY constraints.txt /
COPY --from=wheel /wheel /wheel
RUN python -m venv --without-pip /opt/gpuscale \
    && pip --python /opt/gpuscale/bin/python install --no-cache-dir --only-binary=:all: \
        --constraint /constraints.txt "$(echo /wheel/*.whl)[controller]"

FROM python:3.12-slim AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpuscale" \
      org.opencontainers.image.description="A truthful GPU exporter and a forecasting autoscaler for GPU inference on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# void: run anywhere, the image itself asks for no GPU; the DaemonSet says `all` where it is meant.
ENV NVIDIA_VISIBLE_DEVICES=void \
    PATH=/opt/gpuscale/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1
# A number, so that runAsNonRoot can be checked without a user database.
USER 65532:65532
ENTRYPOINT ["gpuscale"]

FROM base AS exporter
COPY --from=install-exporter /opt/gpuscale /opt/gpuscale
EXPOSE 9400
CMD ["exporter"]

FROM base AS controller
COPY --from=install-controller /opt/gpuscale /opt/gpuscale
EXPOSE 6000 8080
CMD ["controller"]
