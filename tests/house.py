"""Prints the size of the product: `python -m tests.house`.

Small files are those of at most 60 lines, without empty ones.
"""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGES = (
    "batchjob", "batchjob_cli", "batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server",
    "collectors",
)  # fmt: skip
TOOLS = ("grafana", "deploy")
SMALL = 60


def main() -> None:
    print(f"{'':24}{'lines':>8}{'files':>8}{'classes':>8}{f'≤ {SMALL}':>8}")
    texts = {package: read_modules(REPOSITORY / package) for package in (*PACKAGES, *TOOLS)}
    for package, modules in texts.items():
        print_row(package, modules)
    print_row("six packages", [text for package in PACKAGES for text in texts[package]])
    print_row("with grafana and deploy", [text for modules in texts.values() for text in modules])


def read_modules(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.rglob("*.py"))]


def print_row(name: str, modules: list[str]) -> None:
    lines = [text.count("\n") for text in modules]
    classes = sum(
        isinstance(node, ast.ClassDef) for text in modules for node in ast.walk(ast.parse(text))
    )
    small = sum(0 < count <= SMALL for count in lines)
    print(f"{name:24}{sum(lines):8}{len(lines):8}{classes:8}{small:8}")


if __name__ == "__main__":
    main()
