"""A double of the server of Weights & Biases on 127.0.0.1, as far as wandb 0.31 asks for it."""

import base64
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "0123456789abcdef0123456789abcdef01234567"


class WandbServer:
    """Takes runs for whoever has the key, and keeps the lines of their history with the time when each came.

    Args:
        port: Of 127.0.0.1; 0 is a free one.
        runs: Of a server that was here before.
    """

    def __init__(self, port=0, runs=None):
        self.runs = {} if runs is None else runs
        self.refuses_rows = False
        self._sockets = []
        self._http = _server(self, port)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def environment(self):
        return {"WANDB_BASE_URL": f"http://127.0.0.1:{self.port}", "WANDB_API_KEY": KEY}

    def all_rows(self, run):
        """What the history of a run is, in order."""
        lines = self.runs[run]["history"] if run in self.runs else {}
        return [json.loads(lines[place][0]) for place in sorted(lines)]

    def rows(self, run):
        """The same without the rows of pictures and tables, which have rows of their own."""
        return [row for row in self.all_rows(run) if not {"samples/grid", "ladder/parts", "levels"} & row.keys()]

    def times(self, run):
        """When each part of the history came, once for each request."""
        return sorted({came for _, came in self.runs.get(run, {"history": {}})["history"].values()})

    def close(self):
        """Go away, as a network does: what is connected breaks off too."""
        self._http.shutdown()
        self._http.server_close()
        for socket in self._sockets:
            try:
                socket.shutdown(2)
            except OSError:  # it is closed
                continue

    def answer(self, question, variables):
        name = re.search(r"(?:query|mutation)\s+(\w+)", question)
        name = name.group(1) if name else ""
        if name == "RunResumeStatus":
            model = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}, "bucket": None}
            known = variables["name"] in self.runs
            return {"model": {**model, "bucket": self._bucket(variables["name"])} if known else None}
        if name == "UpsertBucket":
            new = variables["name"] not in self.runs
            self.runs.setdefault(variables["name"], {"history": {}, "files": []})
            return {"upsertBucket": {"bucket": self._bucket(variables["name"]), "inserted": new}}
        if name == "CreateRunFiles":
            place = f"http://127.0.0.1:{self.port}/put/{variables['run']}"
            files = [{"name": file, "uploadUrl": f"{place}/{file}"} for file in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {"serverInfo": {"features": []}} if name == "ServerFeaturesQuery" else {}

    def _bucket(self, run):
        lines = self.runs[run]["history"]
        tail = [lines[max(lines)][0]] if lines else []
        return {
            "id": run,
            "name": run,
            "displayName": run,
            "project": {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}},
            "config": "{}",
            "summaryMetrics": "{}",
            "wandbConfig": '{"t": 1}',
            "historyLineCount": len(lines),
            "historyTail": json.dumps(tail),
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "logLineCount": 0,
        }

    def take(self, run, sent):
        history = sent.get("files", {}).get("wandb-history.jsonl")
        if history is not None:
            now = time.monotonic()
            for i, line in enumerate(history["content"]):
                self.runs[run]["history"][history["offset"] + i] = (line, now)
        if "exitcode" in sent:
            self.runs[run]["exitcode"] = sent["exitcode"]


def _server(double, port):
    allowed = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            """Nothing."""

        def _answer(self, status, content):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            rows = self.path.endswith("/file_stream")
            if self.path != "/graphql" and not rows:  # telemetry
                self._answer(200, {})
            elif self.headers.get("Authorization") != allowed or (rows and double.refuses_rows):
                self._answer(401, {"errors": [{"message": "wrong key"}]})
            elif rows:
                double.take(self.path.split("/")[-2], json.loads(body))
                self._answer(200, {})
            else:
                asked = json.loads(body)
                self._answer(200, {"data": double.answer(asked["query"], asked.get("variables") or {})})

        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            _, _, run, file = self.path.split("/", 3)
            double.runs[run]["files"].append(file.split("?")[0])
            self._answer(200, {})

        def do_GET(self):
            self._answer(200, {})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def process_request(self, request, address):
            double._sockets.append(request)
            super().process_request(request, address)

        def handle_error(self, request, address):
            """Nothing: whoever asked has gone."""

    return Server(("127.0.0.1", port), Handler)
