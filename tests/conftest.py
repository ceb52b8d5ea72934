# SPDX-License-Identifier: Apache-2.0
"""Shared test equipment: the import path of our module_utils and a way to run a module in-process.

Works on ansible-core 2.16 and on 2.19 and later, which pass a module its arguments differently.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import ansible.module_utils
import pytest
from ansible.module_utils import basic

try:
    from ansible.module_utils.testing import patch_module_args as _core_patch_module_args  # 2.19 and later
except ImportError:
    _core_patch_module_args = None

ROOT = Path(__file__).resolve().parent.parent

# The one import path for shared code (`ansible.module_utils.vllm_ansible`) works in tests without a copy or a link.
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))


@contextlib.contextmanager
def _module_args(args: Mapping[str, Any]) -> Iterator[None]:
    if _core_patch_module_args is not None:
        with _core_patch_module_args(dict(args)):
            yield
        return
    saved = basic._ANSIBLE_ARGS
    basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": dict(args)}).encode()
    try:
        yield
    finally:
        basic._ANSIBLE_ARGS = saved


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def ascend_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the stand-in packages that this run has built."""
    return tmp_path_factory.mktemp("ascend-packages")


@pytest.fixture
def ascend(tmp_path: Path, ascend_packages: Path) -> Any:
    """A pretended Ascend machine (tests.support.ascend.Machine)."""
    from tests.support.ascend import Machine  # needs the path that was appended above

    return Machine(tmp_path / "machine", ascend_packages)


@pytest.fixture
def module_args() -> Callable[[Mapping[str, Any]], contextlib.AbstractContextManager[None]]:
    """Context manager giving the AnsibleModule built inside it its arguments (internal ones as `_ansible_…`)."""
    return _module_args


class CommandScript:
    """Expected `run_command` calls as data: each entry is (argv, rc, stdout, stderr), in order.

    An argv that differs, a call too many and a call too few all fail the test.
    """

    def __init__(self, expected: Iterable[Sequence[Any]]) -> None:
        self.expected = [tuple(entry) for entry in expected]
        self.calls: list[list[str]] = []

    def __call__(self, _module: Any, args: Any, check_rc: bool = False, **_options: Any) -> tuple[int, str, str]:
        position = len(self.calls)
        self.calls.append(args)
        assert position < len(self.expected), f"unexpected command: {args}"
        argv, rc, out, err = self.expected[position]
        assert list(args) == list(argv), f"command {position}: expected {argv}, got {args}"
        if check_rc and rc != 0:
            _module.fail_json(msg=err, rc=rc, stdout=out, stderr=err, cmd=args)
        return rc, out, err


@pytest.fixture
def run_module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run a module's main() in this process and return the JSON it printed.

    `run_module(module, params, check_mode=False, diff=False, commands=None)`: `module` is the imported module,
    `commands` a list of (argv, rc, stdout, stderr) that replaces `AnsibleModule.run_command`. A module that leaves
    without JSON fails the test; a `fail_json` comes back as a dict with `failed: true`.
    """

    def run(
        module: ModuleType,
        params: Mapping[str, Any],
        check_mode: bool = False,
        diff: bool = False,
        commands: Iterable[Sequence[Any]] | None = None,
    ) -> dict[str, Any]:
        script = CommandScript(commands) if commands is not None else None
        arguments = {**params, "_ansible_check_mode": check_mode, "_ansible_diff": diff}
        output = io.StringIO()
        with monkeypatch.context() as patch, _module_args(arguments), contextlib.redirect_stdout(output):
            if script is not None:
                patch.setattr(basic.AnsibleModule, "run_command", lambda self, *a, **k: script(self, *a, **k))
            with pytest.raises(SystemExit):
                module.main()
        if script is not None:
            missing = script.expected[len(script.calls) :]
            assert not missing, f"commands never run: {[entry[0] for entry in missing]}"
        return json.loads(output.getvalue().strip().splitlines()[-1])

    return run
