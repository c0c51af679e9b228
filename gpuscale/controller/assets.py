"""The page's files in memory: its own from this package, the charts' library from the plotly package."""

import gzip
import hashlib
import importlib.util
from importlib import resources
from pathlib import Path

from aiohttp import web

PLOTLY_SCRIPT = Path("package_data") / "plotly.min.js"
"""Where the plotly package keeps the library that the page's charts are drawn with."""

_STATIC = {
    "index.html": "text/html",
    "app.js": "text/javascript",
    "dom.js": "text/javascript",
    "gpus.js": "text/javascript",
    "findings.js": "text/javascript",
    "doctor.js": "text/javascript",
    "charts.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}


class StaticFile:
    """A file of the page in memory, plain and compressed, with a tag of its content."""

    def __init__(self, body: bytes, kind: str) -> None:
        self._body = body
        self._kind = kind
        self._gzip = gzip.compress(body, 6, mtime=0)
        self._tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'

    @classmethod
    def load(cls, name: str, kind: str) -> "StaticFile":
        """A file of the folder `static`, of this media type."""
        root = resources.files("gpuscale.controller") / "static" / name
        return cls(root.read_bytes(), kind)

    def answer(self, request: web.Request) -> web.Response:
        """The file, or 304 where the browser has it already."""
        headers = {"ETag": self._tag, "Vary": "Accept-Encoding", "Cache-Control": "no-cache"}
        if unchanged(request, self._tag):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = f"{self._kind}; charset=utf-8"
        body = self._body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = self._gzip
        return web.Response(body=body, headers=headers)


def load_files() -> dict[str, StaticFile]:
    """Every file of the page by name."""
    return {name: StaticFile.load(name, kind) for name, kind in _STATIC.items()}


def load_plotly() -> StaticFile | None:
    """plotly's own script as a file of the page; None where the package is not installed."""
    script = plotly_script()
    return None if script is None else StaticFile(script.encode(), "text/javascript")


def plotly_script() -> str | None:
    """plotly's own script, found without importing the package (which costs a second)."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder) / PLOTLY_SCRIPT
        if file.is_file():
            return file.read_text("utf-8")
    return None


def unchanged(request: web.Request, tag: str) -> bool:
    """Whether the browser says that it has this version already."""
    return tag in request.headers.get("If-None-Match", "")
