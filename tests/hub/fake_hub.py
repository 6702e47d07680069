"""A hub on localhost: the endpoints of the hub's API that huggingface_hub uses, with the ways in which networks and servers fail.

Files are served as the real hub does: resolve/ redirects to another origin (127.0.0.1 to localhost), which must not see the token.
"""
import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit


class FakeHub:
    """repos: {repo: {file: bytes}}. log: (method, path, Range or '') of every request. Switches, all for files alone:

    cut: bytes after which answers break off, as often as `cuts`. wrong: {(file, offset): how often its byte comes flipped}.
    fail: status codes for the next requests. ranges: whether ranges work. shift: bytes by which ranges are off. pause: an event
    that answers wait for after `pause_at` bytes.
    """

    def __init__(self):
        self.repos, self.log, self.gated, self.private, self.token = {}, [], set(), set(), "hf_right"
        self.cut, self.cuts, self.wrong, self.fail, self.ranges, self.shift = 0, 0, {}, [], True, 0
        self.pause, self.pause_at = None, 0
        self.uploads, self.commits, self.created = {}, [], []
        self.leaked = []                                # Authorization headers that reached the CDN
        self._lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None      # clients that are killed
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self):
        if self.pause is not None:
            self.pause.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def revision(self, repo: str) -> str:
        h = hashlib.sha1()
        for name, data in sorted(self.repos[repo].items()):
            h.update(name.encode() + hashlib.sha1(data).digest())
        return h.hexdigest()

    def fetched(self, start: int = 0) -> list[tuple[int, int]]:
        """(first byte, last byte) of the ranges that the CDN was asked for, from the start-th request of the log on."""
        found = [re.fullmatch(r"bytes=(\d+)-(\d+)", r) for m, p, r in self.log[start:] if m == "GET" and p.startswith("/cdn/")]
        return [(int(m[1]), int(m[2])) for m in found if m]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, body=b"", headers=(), length=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value, status=200):
        self._answer(status, json.dumps(value).encode(), [("Content-Type", "application/json")])

    def _error(self, status, code, message):
        self._answer(status, json.dumps({"error": message}).encode(), [("X-Error-Code", code), ("X-Error-Message", message)])

    def _note(self):
        with self.hub._lock:
            self.hub.log.append((self.command, self.path, self.headers.get("Range", "")))

    def _allowed(self, repo):
        authorised = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if repo not in self.hub.repos or (repo in self.hub.private and not authorised):
            self._error(404 if authorised else 401, "RepoNotFound", "Repository not found")
        elif repo in self.hub.gated and not authorised:
            self._error(403, "GatedRepo", "Access to this model is restricted")
        else:
            return True
        return False

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self._note()
        path = unquote(urlsplit(self.path).path)
        if m := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*m.groups())
        elif m := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._cdn(*m.groups())
        elif m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            if self._allowed(m[1]):
                self._json([{"type": "file", "oid": "0" * 40, "size": len(data), "path": name} for name, data in self.hub.repos[m[1]].items()])
        elif m := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            if self._allowed(m[1]) and m[2] not in (None, "main", self.hub.revision(m[1])):
                self._error(404, "RevisionNotFound", "Invalid rev id")
            elif m[1] in self.hub.repos and self._allowed(m[1]):
                self._json({"id": m[1], "sha": self.hub.revision(m[1]), "siblings": [{"rfilename": n} for n in self.hub.repos[m[1]]]})
        else:
            self._error(404, "NotFound", f"no such page: {self.path}")

    def _resolve(self, repo, revision, name):
        if not self._allowed(repo):
            return
        if revision not in ("main", self.hub.revision(repo)):
            self._error(404, "RevisionNotFound", "Invalid rev id")
        elif name not in self.hub.repos[repo]:
            self._error(404, "EntryNotFound", "Entry not found")
        else:
            data = self.hub.repos[repo][name]
            self._answer(302, b"", [("Location", f"http://localhost:{self.hub.port}/cdn/{repo}/{quote(name)}"),
                                    ("X-Repo-Commit", self.hub.revision(repo)),
                                    ("X-Linked-Size", str(len(data))), ("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')])

    def _cdn(self, repo, name):
        hub = self.hub
        if self.headers.get("Authorization"):
            hub.leaked.append(self.headers["Authorization"])
        if hub.fail:
            return self._answer(hub.fail.pop(0))
        data, status, headers = bytearray(hub.repos[repo][name]), 200, [("ETag", '"of the cdn"'), ("Accept-Ranges", "bytes")]
        with hub._lock:
            flips = [at for (file, at), n in hub.wrong.items() if file == name and n > 0]
        first, last = 0, len(data) - 1
        if hub.ranges and (m := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))):
            first, last = int(m[1]) + hub.shift, min(int(m[2]) + hub.shift, len(data) - 1)
            if first > last:
                return self._answer(416)
            status = 206
            headers.append(("Content-Range", f"bytes {first}-{last}/{len(data)}"))
        for at in flips:
            if first <= at <= last:
                data[at] ^= 1
                with hub._lock:
                    hub.wrong[name, at] -= 1
        body = bytes(data[first:last + 1])
        with hub._lock:
            cut = hub.cuts > 0 and len(body) > hub.cut
            hub.cuts -= cut
        if self.hub.pause is not None and len(body) > hub.pause_at:
            self._answer(status, body[:hub.pause_at], headers, len(body))
            self.wfile.flush()
            hub.pause.wait(30)
            body = body[hub.pause_at:]
            return self.wfile.write(body)
        self._answer(status, body[:hub.cut] if cut else body, headers, len(body))
        if cut:
            self.close_connection = True

    # --- uploads ----------------------------------------------------------------------------------------------------------------

    def do_POST(self):
        self._note()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._error(401, "", "Invalid credentials in Authorization header")
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization', 'me')}/{asked['name']}"
            self.hub.created.append(asked)
            if repo in self.hub.repos:
                self._json({"error": "You already created this model repo", "url": f"{self.hub.url}/{repo}"}, 409)
            else:
                self.hub.repos[repo] = {}
                self._json({"url": f"{self.hub.url}/{repo}", "name": repo, "id": "1"})
        elif m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", path):
            self._json({"files": [{"path": f["path"], "uploadMode": "lfs" if f["size"] > 10_000 else "regular", "shouldIgnore": False}
                                  for f in json.loads(body)["files"]]})
        elif m := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._json({"transfer": "basic", "objects": [
                {"oid": o["oid"], "size": o["size"], "authenticated": True,
                 **({} if o["oid"] in self.hub.uploads else {"actions": {"upload": {"href": f"{self.hub.url}/upload/{o['oid']}"}}})}
                for o in json.loads(body)["objects"]]})
        elif m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", path):
            self._commit(m[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._error(404, "NotFound", f"no such page: {self.path}")

    def do_PUT(self):
        self._note()
        data = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while n := int(self.rfile.readline(), 16):
                data += self.rfile.read(n)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        if hashlib.sha256(data).hexdigest() != oid:
            return self._answer(400)
        self.hub.uploads[oid] = data
        self._answer(200)

    def _commit(self, repo, lines):
        files = self.hub.repos[repo]
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                files[line["value"]["path"]] = self.hub.uploads[line["value"]["oid"]]
            elif line["key"] == "header":
                self.hub.commits.append(line["value"])
        self._json({"success": True, "commitUrl": f"{self.hub.url}/{repo}/commit/1", "commitOid": self.hub.revision(repo)})
