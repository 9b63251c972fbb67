# Static binaries in empty images: no shell, no package, no root.
#
#   docker build --target relay .
#   docker build --target host-agent .
#   docker build --target refhost .      the reference host, for trying it out

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /out/ ./cmd/relay ./cmd/host-agent ./test/cmd/refhost \
 && install -d -m 0700 /out/data

FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
USER 65532:65532

FROM base AS relay
COPY --from=build /out/relay /relay
COPY --from=build --chown=65532:65532 /out/data /data
# Plain inside the container: publish the port to this machine only, or give a certificate.
ENV AHP_RELAY_DATA_DIR=/data AHP_RELAY_LISTEN=0.0.0.0:8484 AHP_RELAY_LISTEN_PLAIN=true
VOLUME /data
EXPOSE 8484
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/relay", "check"]
ENTRYPOINT ["/relay"]
CMD ["serve"]

FROM base AS host-agent
COPY --from=build /out/host-agent /host-agent
COPY --from=build --chown=65532:65532 /out/data /data
ENTRYPOINT ["/host-agent"]
CMD ["run"]

FROM base AS refhost
COPY --from=build /out/refhost /refhost
EXPOSE 8090
ENTRYPOINT ["/refhost"]
CMD ["--listen", "0.0.0.0:8090", "--demo"]
