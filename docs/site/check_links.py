"""Check the built site: every local page, anchor, image and style exists, and nothing is fetched from elsewhere.

python docs/site/check_links.py site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links, the anchors and the loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag refers to, and its id."""
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        for source in ("src", "href"):
            if tag in ("img", "script", "link", "iframe") and found.get(source) and found.get("rel") != "canonical":
                self.loaded.append(str(found[source]))


def broken(site: Path) -> list[str]:
    """What is wrong, one line each."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}
    if not pages:
        return [f"{site}: no pages"]
    known = {file.resolve(): page for file, page in pages.items()}
    found = []
    for file, page in pages.items():
        for link in page.loaded:
            if urlsplit(link).scheme in ("http", "https") or link.startswith("//"):
                found.append(f"{file}: loads {link}")
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{file}: {link} does not exist")
            elif parts.fragment and target in known and not _has(known[target], unquote(parts.fragment)):
                found.append(f"{file}: {link} has no such anchor")
    for style in site.rglob("*.css"):
        if "url(http" in style.read_text() or "@import" in style.read_text():
            found.append(f"{style}: loads something from elsewhere")
    return found


def _has(page: Page, anchor: str) -> bool:
    return anchor in page.anchors or anchor.startswith("__")


if __name__ == "__main__":
    wrong = broken(Path(sys.argv[1]))
    print("\n".join(wrong) or "all links are good")
    sys.exit(bool(wrong))
