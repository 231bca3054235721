"""What is generated is current, and the generator notices when it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from gate import recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_docs", ROOT / "tools/docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_current(docs: ModuleType) -> None:
    assert docs.main(["--check"]) == 0


def test_a_stale_file_is_named_and_mended(
    docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    assert docs.main(["--check"]) == 1
    assert "docs/checks.md" in capsys.readouterr().err
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    (tmp_path / "docs/checks.md").write_text("edited by hand")
    assert docs.main(["--check"]) == 1


def test_every_check_has_all_its_sections_on_the_page(docs: ModuleType) -> None:
    page = (ROOT / "docs/checks.md").read_text()
    for check in docs.CHECKS:
        assert f"## {check.CODE}\n" in page
        assert tuple(docs.sections(check)) == docs.SECTIONS
        for text in docs.sections(check).values():
            assert text
            assert text in page


def test_every_key_of_a_recipe_is_on_the_page_with_its_default() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    tables = {"At the top": recipe.Recipe} | {
        f"[{name}]": field.annotation
        for name, field in recipe.Recipe.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, recipe.Table)
    }
    assert len(tables) == 6
    for title, model in tables.items():
        part = page.split(f"## {title}\n")[1].split("\n## ")[0]
        keys = [line.split("`")[1] for line in part.splitlines() if line.startswith("| `")]
        assert keys == [name for name in model.model_fields if f"[{name}]" not in tables]
    assert "| `repetitions` | `3` |" in page
    assert "| `name` | required |" in page


def test_an_unknown_argument_is_a_usage_error(docs: ModuleType) -> None:
    assert docs.main(["--chekc"]) == 64
