# docker build -t chatelaine .                  the service alone
# docker build -t bank --target bank .          the demo's bank
# docker build -t notes --target notes .        the demo's notes
# docker build -t demo --target demo .          the service with the demo's other server, a child process

FROM node:22-bookworm-slim AS web
WORKDIR /src/web
COPY web .
RUN --mount=type=cache,target=/var/cache/npm npm_config_cache=/var/cache/npm ./build.sh

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
COPY --from=web /src/web/dist web/dist
# Queries are checked against what lies in .sqlx/; no database is needed here.
ENV SQLX_OFFLINE=true
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --bin chatelaine --example bank --example notes \
 && install -D -t /out target/release/chatelaine target/release/examples/bank target/release/examples/notes

FROM debian:bookworm-slim AS base
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home --home-dir /var/lib/chatelaine chatelaine
WORKDIR /var/lib/chatelaine

FROM base AS bank
COPY --from=build /out/bank /usr/local/bin/bank
USER chatelaine
EXPOSE 9000
ENTRYPOINT ["bank", "--listen", "0.0.0.0:9000"]

FROM base AS notes
COPY --from=build /out/notes /usr/local/bin/notes
USER chatelaine
EXPOSE 9001
ENTRYPOINT ["notes", "--listen", "0.0.0.0:9001"]

FROM base AS service
COPY --from=build /out/chatelaine /usr/local/bin/chatelaine
ENV CHATELAINE_LISTEN=0.0.0.0:8080 \
    CHATELAINE_PACKS=/etc/chatelaine/packs \
    CHATELAINE_DATA=/var/lib/chatelaine
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["chatelaine"]
CMD ["serve"]

FROM service AS demo
COPY .ci/demo-requirements.txt /tmp/requirements.txt
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/mcp-time \
 && /opt/mcp-time/bin/pip install --no-cache-dir -r /tmp/requirements.txt
ENV MCP_TIME_COMMAND=/opt/mcp-time/bin/python
USER chatelaine

# The last stage is what a plain `docker build` makes: packs are mounted at /etc/chatelaine/packs.
FROM service
USER chatelaine
