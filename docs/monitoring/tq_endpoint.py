#!/usr/bin/env python3
"""Serves tq_metrics() of one database to Prometheus, at /metrics.

    tq_endpoint.py [--listen ADDRESS:PORT] [CONNINFO]

CONNINFO is an argument of psql: 'host=/run/postgresql dbname=app user=prometheus', or a URI. Without it, PGHOST,
PGPASSFILE and so on apply. One request is answered at a time, by one psql, so a slow server does not collect
connections. The program needs only Python and psql.
"""

import argparse
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

TIMEOUT = 9  # seconds; Prometheus gives up after ten


def metrics(conninfo):
    """The text, or None if the server did not return it."""
    environment = dict(os.environ, PGCLIENTENCODING="UTF8", PGAPPNAME="tq_endpoint", PGCONNECT_TIMEOUT="5")
    command = ["psql", "-XAtqw", "-v", "ON_ERROR_STOP=1", "-c", "SELECT tq_metrics()"]
    if conninfo:
        command += ["-d", conninfo]
    try:
        answer = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        print("no answer within %d s" % TIMEOUT, file=sys.stderr, flush=True)
        return None
    if answer.returncode != 0:
        print(answer.stderr.decode(errors="replace").strip(), file=sys.stderr, flush=True)
        return None
    return answer.stdout.rstrip(b"\n") + b"\n"


class Handler(BaseHTTPRequestHandler):
    conninfo = None

    def do_GET(self):
        if self.path.split("?")[0] != "/metrics":
            self.send_error(404)
            return
        text = metrics(self.conninfo)
        if text is None:
            self.send_error(503, "tq_metrics() failed; see the log of tq_endpoint")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass  # no log line for each scrape


def main():
    parser = argparse.ArgumentParser(description="Serves tq_metrics() of one database to Prometheus.")
    parser.add_argument("--listen", default="127.0.0.1:9188", metavar="ADDRESS:PORT", help="default: %(default)s; port 0: any")
    parser.add_argument("conninfo", nargs="?", metavar="CONNINFO", help="as for psql -d")
    arguments = parser.parse_args()
    address, _, port = arguments.listen.rpartition(":")
    Handler.conninfo = arguments.conninfo
    server = HTTPServer((address, int(port)), Handler)
    print("listening on port %d" % server.server_port, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
