"""Pages of the documentation site that are not in docs/, without copies.

    mkdocs build --strict          # mkdocs.yml names this file as its hook

README, CHANGELOG, CONTRIBUTING, SECURITY and the READMEs of benchmarks/ and results/ are pages unchanged;
programs in examples/ and notebooks become pages. Links are written for readers of the repository: here they
become links to pages of the site, or plain words if the site lacks the target.
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
"""The page of the site for each path in the repository; files in docs/ keep their relative path."""

IMAGES = {"image/png": "png", "image/svg+xml": "svg"}


def sources() -> dict[str, str]:
    """Return the page or picture of the site for every path in the repository that the site shows."""
    pages = {path: page for path, page in MOVED.items() if not path.endswith("/")}
    for file in sorted(ROOT.glob("results/*")):
        path = f"results/{file.name}"
        if file.suffix in (".md", ".png") and path not in pages:
            pages[path] = path
    for file in sorted(ROOT.glob("examples/*.py")):
        pages[f"examples/{file.name}"] = f"examples/{file.stem}.md"
    for file in sorted(ROOT.glob("docs/**/*")):
        path = file.relative_to(ROOT).as_posix()
        if file.suffix == ".ipynb":
            pages[path] = posixpath.relpath(path, "docs").replace(".ipynb", ".md")
        elif file.is_file():
            pages[path] = posixpath.relpath(path, "docs")
    return pages


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/, and a page with pictures for each notebook."""
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
    """Replace the links of a page."""
    pages = sources()
    here = next((path for path, uri in pages.items() if uri == page.file.src_uri), page.file.src_uri)
    generated = {f"docs/{file.src_uri}": file.src_uri for file in files}  # including pictures of notebooks
    return turned(markdown, here, page.file.src_uri, generated | pages)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Link every picture to its full size."""
    return re.sub(
        r'(?<!<a )(<img [^>]*?src="([^":]+\.png)"[^>]*>)(?!</a>)',
        lambda image: f'<a href="{image[2]}" title="Larger">{image[1]}</a>',
        html,
    )


def turned(markdown: str, path: str, page: str, shown: dict[str, str]) -> str:
    """Return the text of the file at `path`, with links for its page of the site.

    `shown`: the pages of the site by path in the repository.

    >>> shown = {"docs/data.md": "data.md", "CHANGELOG.md": "changelog.md"}
    >>> turned("[a](../CHANGELOG.md#x) [b](../deploy/) `[c](d)`", "docs/data.md", "data.md", shown)
    '[a](changelog.md#x) b `[c](d)`'
    """

    def link(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        words, target, anchor = match["words"], match["target"], match["anchor"] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        full_path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        target_page = shown.get(full_path) or MOVED.get(f"{full_path}/")
        if target_page is None:
            return match[0] if match["mark"] else words  # a missing picture fails the build
        address = posixpath.relpath(target_page, posixpath.dirname(page))
        return f"{match['mark']}[{words}]({address}{anchor})"

    code = r"(?P<code>^ *```.*?^ *```|^(?: {4}|\t)[^\n]*|`[^`\n]*`)"
    links = r"(?P<mark>!?)\[(?P<words>(?:`[^`\n]*`|[^\]`])*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)"
    return re.sub(f"{code}|{links}", link, markdown, flags=re.M | re.S)


def program_page(file: Path) -> str:
    """Return the page of a program, which shows its source."""
    return f"# {file.stem}\n\n```python\n{file.read_text(encoding='utf-8')}```\n"


def notebook_page(file: Path) -> tuple[str, dict[str, bytes]]:
    """Return the page of a notebook with the output of its cells, and its pictures by name."""
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
            elif printed := "".join(output.get("text", data.get("text/plain", ""))):
                text.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(text) + "\n", pictures
