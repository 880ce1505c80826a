"""Loading a flow file: an ordinary Python file that builds one `Flow` at its top level."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from understudy.flow.errors import FlowError, UserError
from understudy.flow.flow import Flow

NO_SPARK_YET = " There is no Spark yet when a flow file is loaded: do this inside the fragment."


def load(path: str | Path) -> Flow:
    """The one flow that the file builds, validated. Any mistake in it is a FlowError with file and line."""
    return load_with_files(path)[0]


def load_with_files(path: str | Path) -> tuple[Flow, list[Path]]:
    """The flow, and the files it was made of: this one, and the neighbours that it was first to import."""
    file = Path(path)
    if not file.is_file():
        is_not = "this is a folder" if file.is_dir() else "there is no such file"
        raise FlowError(f"{path}: {is_not}. Name the Python file that builds the flow.")
    before = set(sys.modules)
    module = _execute(file)
    flows = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Flow)}
    if not flows:
        raise FlowError(f'{path}: no flow in it. Build one at the top level: flow = understudy.Flow("name").')
    if len(flows) > 1:
        found = ", ".join(f"{name} ({flow.name!r})" for name, flow in flows.values())
        raise FlowError(f"{path}: {len(flows)} flows in it, but a run takes one: {found}. Split the file.")
    ((_, flow),) = flows.values()
    try:
        flow.validate()
    except FlowError as problem:
        raise FlowError(f"{path}: {problem}") from None
    imported = [sys.modules[name] for name in sys.modules.keys() - before]
    return flow, [file.resolve(), *_neighbours(file.resolve().parent, imported)]


def _neighbours(folder: Path, modules: Sequence[ModuleType]) -> list[Path]:
    """The files of modules below a folder, but for packages that are installed there."""
    files = [Path(module.__file__).resolve() for module in modules if getattr(module, "__file__", None)]  # type: ignore[arg-type]
    return sorted(f for f in files if f.is_relative_to(folder) and "site-packages" not in f.parts)


def _execute(file: Path) -> ModuleType:
    resolved = file.resolve()
    # A flow file may import its neighbours, as a script may.
    if str(resolved.parent) not in sys.path:
        sys.path.insert(0, str(resolved.parent))
    name = f"understudy_flow_{resolved.stem}"
    spec = spec_from_file_location(name, resolved, submodule_search_locations=None)
    if spec is None or spec.loader is None:
        raise FlowError(f"{file}: not a Python file. Its name must end in .py.")
    module = module_from_spec(spec)
    # Dataclasses look their module up while it runs. Afterwards it must be gone, so that Spark ships the
    # file's functions to its workers by value: no worker could import this name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as problem:
        place = file if problem.lineno is None else f"{file}:{problem.lineno}"
        raise FlowError(f"{place}: {problem.msg}.") from None
    except UserError as problem:
        raise FlowError(f"{place_of(file, problem)}: {problem}") from None
    except (Exception, SystemExit) as problem:
        innermost = traceback.extract_tb(problem.__traceback__)[-1].filename
        advice = NO_SPARK_YET if "pyspark" in Path(innermost).parts else ""
        raise FlowError(f"{place_of(file, problem)}: {type(problem).__name__}: {problem}{advice}") from None
    finally:
        del sys.modules[name]
    return module


def place_of(file: Path, problem: BaseException) -> str:
    """The file and the line of it that led to the problem, however deep below that line it arose."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(problem.__traceback__)
        if frame.filename == str(file.resolve())
    ]
    return f"{file}:{lines[-1]}" if lines else str(file)
