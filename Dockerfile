# syntax=docker/dockerfile:1

# One build, four images: `docker build --target server|agent|allot|nvml-sim .`

FROM node:22-bookworm-slim AS assets
WORKDIR /src/web
COPY web/package.json web/package-lock.json ./
RUN npm ci
COPY web/ ./
RUN npm run build

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
COPY --from=assets /src/web/dist web/dist
# The checked queries lie in .sqlx: no database is needed to build.
ENV SQLX_OFFLINE=true
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --workspace --bins --lib \
    && mkdir /out \
    && cp target/release/allotment-server target/release/allotment-agent target/release/allot \
          target/release/nvml-sim-machine target/release/libnvml_sim.so /out/

FROM debian:bookworm-slim AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*

# The control plane. It needs its configuration at /etc/allotment/server.toml and a database.
FROM base AS server
RUN useradd --system --no-create-home --shell /usr/sbin/nologin allotment
COPY --from=build /out/allotment-server /usr/local/bin/
USER allotment
EXPOSE 8080 8443 8444 9090
ENTRYPOINT ["allotment-server"]
CMD ["serve", "--config", "/etc/allotment/server.toml"]

# The command line alone, for scripts and CI.
FROM base AS allot
COPY --from=build /out/allot /usr/local/bin/
ENTRYPOINT ["allot"]

# The node agent. It starts as root and runs each job as its team's own user. Python is
# here for the jobs: the agent itself does not need it.
FROM base AS agent
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/allotment-agent /usr/local/bin/
VOLUME /var/lib/allotment-agent
ENTRYPOINT ["allotment-agent"]
CMD ["run", "--config", "/etc/allotment/agent.toml"]

# The agent on simulated GPUs: what docker-compose.yml starts.
FROM agent AS nvml-sim
COPY --from=build /out/nvml-sim-machine /usr/local/bin/
COPY --from=build /out/libnvml_sim.so /usr/local/lib/allotment/
COPY examples/compose/join.py /usr/local/lib/allotment/
ENTRYPOINT ["python3", "/usr/local/lib/allotment/join.py"]
CMD []
