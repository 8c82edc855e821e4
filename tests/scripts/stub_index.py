"""Package indexes in one local server, with small wheels made on the spot, for the tests of the installation.

The server answers plain requests (`http://127.0.0.1:PORT/simple/`) and is an HTTPS proxy: with HTTPS_PROXY
set to its address and its certificate trusted, every host that pip or uv asks for is this server, so they
can be run as on a machine with nothing configured. What it has is laid below prefixes of the path: `simple`
is the default index of both, `whl/cpu` that of uv's `--torch-backend cpu`. Other prefixes are free.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import ssl
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def wheel(
    name: str, version: str, files: dict[str, str] | None = None, tag: str = "py3-none-any"
) -> tuple[str, bytes]:
    """File name and bytes of a wheel; a file below `bin/` becomes a program of the environment."""
    base = f"{name.replace('-', '_')}-{version}"
    content = (
        {f"{name.replace('-', '_')}/__init__.py": f"__version__ = {version!r}\n"} if files is None else {}
    )
    for path, text in (files or {}).items():
        content[f"{base}.data/scripts/{path[4:]}" if path.startswith("bin/") else path] = text
    content[f"{base}.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content[f"{base}.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
    record = []
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text.encode())}")
    content[f"{base}.dist-info/RECORD"] = "\n".join([*record, f"{base}.dist-info/RECORD,,", ""])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in content.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100755 if ".data/scripts/" in path else 0o100644) << 16
            archive.writestr(entry, text)
    return f"{base}-{tag}.whl", buffer.getvalue()


class Authority:
    """A certificate authority: `file` is to be trusted, and it signs a certificate for any host."""

    def __init__(self, folder: Path):
        self.folder, self.file = folder, folder / "authority.pem"
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stub authority")])
        self.file.write_bytes(
            self._signed(self.name, self.key, None).public_bytes(serialization.Encoding.PEM)
        )

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, host: str | None) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder(self.name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def context(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host[:60])])
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem = self.folder / f"{host}.{threading.get_ident()}.pem"
        pem.write_bytes(private + self._signed(name, key, host).public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return context


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StubIndex

    def log_message(self, *args) -> None:
        pass

    def do_CONNECT(self) -> None:
        host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.authority.context(host).wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_GET(self) -> None:
        prefix, _, name = unquote(self.path).strip("/").rpartition("/")
        self.server.asked.append(f"{prefix}/{name}")
        if prefix in self.server.silent:
            self.server.closing.wait(60)
        if prefix == "files":
            self.reply(self.server.files.get(name), "application/octet-stream")
        else:
            files = self.server.pages.get((prefix, name))
            page = "".join(f'<a href="/files/{file}">{file}</a>\n' for file in files or [])
            self.reply(page.encode() if files else None, "text/html")

    def reply(self, body: bytes | None, kind: str) -> None:
        self.send_response(404 if body is None else 200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


class StubIndex(ThreadingHTTPServer):
    """`asked`: the paths of all requests so far; `silent`: prefixes for which no answer comes."""

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.authority = Authority(folder)
        self.files: dict[str, bytes] = {}
        self.pages: dict[tuple[str, str], list[str]] = {}
        self.asked: list[str] = []
        self.silent: set[str] = set()
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, prefix: str, name: str, version: str, **options) -> None:
        """Lay a wheel below a prefix."""
        file, body = wheel(name, version, **options)
        self.files[file] = body
        self.pages.setdefault((prefix, name), []).append(file)

    def handle_error(self, request, client_address) -> None:
        pass  # clients break connections off

    def stop(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        self.thread.join()
