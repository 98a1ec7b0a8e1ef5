#!/bin/sh
# Brings the schema up to date, seeds the demo organisation, and lays out the certificate by
# which agents know the servers. `seed-demo` prints the log-ins only when it makes them, so
# what it printed first is what is kept.
set -eu
allotment-server migrate --config /etc/allotment/server.toml
allotment-server ca --config /etc/allotment/server.toml > /seed/ca.pem
umask 077
allotment-server seed-demo --config /etc/allotment/server.toml > /seed/new.json
if [ -s /seed/new.json ]; then
    mv /seed/new.json /seed/seed.json
else
    rm /seed/new.json
fi
test -s /seed/seed.json || {
    echo "setup: the demo exists, but its log-ins are not in the volume 'seed'; start anew with: docker compose down --volumes" >&2
    exit 1
}
