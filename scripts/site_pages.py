"""What the documentation site shows beside docs/: pages that stand elsewhere, none copied.

    mkdocs build --strict          # mkdocs.yml names this file as its hook

README, CHANGELOG, CONTRIBUTING, SECURITY and the READMEs of benchmarks/ and results/ are pages as they stand;
programs in examples/ and the notebooks become pages. Links are written for readers of the repository, so
they are turned here: to the page, where the site has it, else to their own words. Text is written in docs/,
not here.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "results/README.md": "results/index.md",
    "examples/": "models.md",
}
"""Path in the repository -> page of the site; what is in docs/ keeps its path below it."""

IMAGES = {"image/png": "png", "image/svg+xml": "svg"}


def sources() -> dict[str, str]:
    """Path in the repository -> page or picture of the site, of all that is shown."""
    found = {path: page for path, page in MOVED.items() if not path.endswith("/")}
    for file in sorted(ROOT.glob("results/*")):
        path = f"results/{file.name}"
        if file.suffix in (".md", ".png") and path not in found:
            found[path] = path
    for file in sorted(ROOT.glob("examples/*.py")):
        found[f"examples/{file.name}"] = f"examples/{file.stem}.md"
    for file in sorted(ROOT.glob("docs/**/*")):
        path = file.relative_to(ROOT).as_posix()
        if file.suffix == ".ipynb":
            found[path] = posixpath.relpath(path, "docs").replace(".ipynb", ".md")
        elif file.is_file():
            found[path] = posixpath.relpath(path, "docs")
    return found


def on_files(files: Files, config: Any) -> Files:
    """Adds what stands outside docs/, and a page for each notebook and its pictures."""
    for path, page in sources().items():
        if path.endswith(".ipynb"):
            text, pictures = notebook_page(ROOT / path)
            files.append(File.generated(config, page, content=text))
            for name, picture in pictures.items():
                place = posixpath.join(posixpath.dirname(page), name)
                files.append(File.generated(config, place, content=picture))
        elif path.endswith(".py") and path.startswith("examples/"):
            files.append(File.generated(config, page, content=program_page(ROOT / path)))
        elif not path.startswith("docs/"):
            files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    written = sources()
    here = next((path for path, uri in written.items() if uri == page.file.src_uri), page.file.src_uri)
    made = {f"docs/{file.src_uri}": file.src_uri for file in files}  # pictures of notebooks, too
    return turned(markdown, here, page.file.src_uri, made | written)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """A picture leads to itself: in a column of text, and on a phone, it is smaller than it was drawn."""
    return re.sub(
        r'(?<!<a )(<img [^>]*?src="([^":]+\.png)"[^>]*>)(?!</a>)',
        lambda found: f'<a href="{found[2]}" title="Larger">{found[1]}</a>',
        html,
    )


def turned(markdown: str, path: str, page: str, shown: dict[str, str]) -> str:
    """The text of the file at `path`, with links as they must be on its page of the site.

    >>> shown = {"docs/data.md": "data.md", "CHANGELOG.md": "changelog.md"}
    >>> turned("[a](../CHANGELOG.md#x) [b](../deploy/) `[c](d)`", "docs/data.md", "data.md", shown)
    '[a](changelog.md#x) b `[c](d)`'
    """

    def link(found: re.Match[str]) -> str:
        if found["code"]:
            return found[0]
        words, target, anchor = found["words"], found["target"], found["anchor"] or ""
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        there = shown.get(whole) or MOVED.get(f"{whole}/")
        if there is None:
            return found[0] if found["mark"] else words  # a picture that is not there fails the build
        return f"{found['mark']}[{words}]({posixpath.relpath(there, posixpath.dirname(page))}{anchor})"

    code = r"(?P<code>^ *```.*?^ *```|^(?: {4}|\t)[^\n]*|`[^`\n]*`)"
    links = r"(?P<mark>!?)\[(?P<words>(?:`[^`\n]*`|[^\]`])*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)"
    return re.sub(f"{code}|{links}", link, markdown, flags=re.M | re.S)


def program_page(file: Path) -> str:
    """A program as a page: its first paragraph, and all of it."""
    return f"# {file.stem}\n\n```python\n{file.read_text(encoding='utf-8')}```\n"


def notebook_page(file: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as text, with what its cells printed and drew; and the pictures by name."""
    text, pictures = [], {}
    for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text.append(source)
            continue
        text.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            kind = next((kind for kind in IMAGES if kind in data), None)
            if kind:
                name = f"{file.stem}-{number}.{IMAGES[kind]}"
                pictures[name] = base64.b64decode("".join(data[kind]))
                text.append(f"![{cell['metadata'].get('picture', 'A picture')}]({name})")
            elif said := "".join(output.get("text", data.get("text/plain", ""))):
                text.append(f"```text\n{said.rstrip()}\n```")
    return "\n\n".join(text) + "\n", pictures
