# One image per daemon: docker build --target env_server -t longturn-env-server .
# Each entry point takes the daemon's options, such as --config and --set. Paths in settings are relative to
# /home/longturn, and everything that is written goes to /home/longturn/runs.
FROM python:3.12-slim AS base
ENV OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
# A run folder is for its owner only: --build-arg USER_ID=$(id -u) makes whoever owns a mounted runs/ the container's user.
ARG USER_ID=1000
RUN useradd --create-home --non-unique --uid "$USER_ID" longturn \
    && install --directory --owner longturn /home/longturn/runs
VOLUME /home/longturn/runs
WORKDIR /app
COPY constraints constraints
COPY pyproject.toml README.md LICENSE ./
COPY longturn longturn
COPY env_server env_server
COPY clients clients
COPY local_engine local_engine
COPY learner learner

FROM base AS env_server
RUN apt-get update && apt-get install -y --no-install-recommends gcc make libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --constraint constraints/tested.txt '.[server-textworld]'
USER longturn
WORKDIR /home/longturn
# Generated games, kept with the runs.
ENV LONGTURN_CACHE=/home/longturn/runs/.cache
EXPOSE 50051
ENTRYPOINT ["longturn", "serve"]

FROM base AS actors
RUN pip install --constraint constraints/tested.txt '.[clients]'
USER longturn
WORKDIR /home/longturn
ENTRYPOINT ["longturn", "act"]

# The two stages below take the torch build that pip's own settings offer: pass --build-arg TORCH_INDEX=URL for a CPU build.
FROM base AS engine
ARG TORCH_INDEX=
RUN PIP_EXTRA_INDEX_URL="$TORCH_INDEX" pip install --constraint constraints/tested.txt '.[engine]'
USER longturn
WORKDIR /home/longturn
EXPOSE 30000
ENTRYPOINT ["longturn", "engine"]

FROM base AS learner
ARG TORCH_INDEX=
RUN PIP_EXTRA_INDEX_URL="$TORCH_INDEX" pip install --constraint constraints/tested.txt '.[learner,report]'
USER longturn
WORKDIR /home/longturn
ENTRYPOINT ["longturn", "learn"]
