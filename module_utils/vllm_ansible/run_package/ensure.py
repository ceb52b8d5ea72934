# SPDX-License-Identifier: Apache-2.0
"""Brings one package to the state that is wanted, and says what that took."""

import contextlib
import os
import shutil
from typing import Any, Dict, List, NamedTuple, Optional

from ansible.module_utils.vllm_ansible import locks
from ansible.module_utils.vllm_ansible.progress import Progress
from ansible.module_utils.vllm_ansible.run_package import failures, installed, packages, runner, trust
from ansible.module_utils.vllm_ansible.run_package.packages import PackageError

# One installer at a time on a host; the vendor's own check is by process name.
LOCK = "/run/vllm-run-package.lock"
CANN = ("toolkit", "ops", "nnal")
# Where the installation guides have the uninstallers, those of one version first.
UNINSTALLERS = {
    "driver": ("{home}/script/uninstall.sh",),
    "firmware": ("{home}/script/uninstall.sh",),
    "toolkit": ("{home}/{machine}-linux/script/uninstall.sh", "{home}/cann_uninstall.sh"),
    "ops": ("{home}/{machine}-linux/script/ops_uninstall.sh", "{home}/opp_kernel/script/uninstall.sh"),
    "nnal": ("{home}/scripts/uninstall.sh", "{root}/nnal/nnal_uninstall.sh"),
}


class Wanted(NamedTuple):
    """What the task asks for; the names are the module's options."""

    component: str
    version: Optional[str]
    src: Optional[str]
    sha256: Optional[str]
    chip: Optional[str]
    install_path: str
    install_for_all: bool
    extra_flags: List[str]
    accept_eula: bool
    signature_path: Optional[str]
    ca_path: Optional[str]
    crl_path: Optional[str]
    work_path: str
    timeout_seconds: Optional[int]


class Session:
    """One task on one host.

    host: a :class:`ansible.module_utils.vllm_ansible.host.Host`. run_command: ``AnsibleModule.run_command``.
    environment: what the installer inherits.
    """

    def __init__(self, wanted: Wanted, host: Any, run_command: Any, environment: Dict[str, str], progress: Progress):
        self.wanted = wanted
        self.host = host
        self.run_command = run_command
        self.environment = environment
        self.progress = progress
        self.kind = packages.COMPONENTS[wanted.component]
        self.log = self.kind.log
        self.rc: Optional[int] = None
        self.interrupted = False

    def state(self) -> installed.Installed:
        """What is installed now."""
        return installed.read(self.host, self.wanted.component, self.wanted.install_path, self.wanted.chip)

    def package(self) -> str:
        """The package as messages name it."""
        name = " ({0})".format(os.path.basename(self.wanted.src)) if self.wanted.src else ""
        version = " " + self.wanted.version if self.wanted.version else ""
        return self.wanted.component + version + name

    # -- present -------------------------------------------------------------------------------------------------

    def plan_present(self, before: installed.Installed) -> str:
        """What has to be done: none, install, upgrade, downgrade, replace (another chip's) or complete."""
        wanted = self.wanted
        assert wanted.version is not None
        if before.problems:
            return "complete"
        if before.version is None:
            return "install"
        if not packages.same_version(before.version, wanted.version):
            return "downgrade" if packages.older(wanted.version, before.version) else "upgrade"
        if wanted.chip and before.chip and before.chip.lower() != wanted.chip.lower():
            return "replace"
        return "none"

    def check_request(self, before: installed.Installed) -> None:
        """Refuse what cannot work whatever the host is like when its turn comes."""
        wanted = self.wanted
        if wanted.component in CANN and not wanted.accept_eula:
            raise PackageError(
                "{0} was not installed: an installation without questions accepts the vendor's licence. Read it in the "
                "package and set accept_eula.".format(self.package()),
                code="eula",
            )
        if wanted.src:
            problems = packages.name_problems(
                os.path.basename(wanted.src),
                wanted.component,
                wanted.version or "",
                wanted.chip,
                self.host.system()["machine"],
            )
            if problems:
                raise PackageError(
                    "{0} is not the package that was asked for: {1}. Set src to the right file.".format(
                        wanted.src, "; ".join(problems)
                    ),
                    code="wrong_package",
                )
        if wanted.component == "driver" and before.root and before.root.rstrip("/") != wanted.install_path.rstrip("/"):
            raise PackageError(
                "A driver is installed in {0}, not in {1}. Set install_path to {0}, or remove it first.".format(
                    before.root, wanted.install_path
                ),
                code="other_path",
            )

    def check_order(self) -> None:
        """Refuse a package whose foundation is not there; check mode does not know what earlier tasks would bring."""
        wanted = self.wanted
        if wanted.component == "firmware":
            driver = installed.read(self.host, "driver", wanted.install_path)
            if driver.version is None:
                raise PackageError(
                    "{0} was not installed: there is no driver. On a first installation the driver comes first.".format(
                        self.package()
                    ),
                    code="wrong_order",
                )
        elif wanted.component in ("ops", "nnal"):
            toolkit = installed.read(self.host, "toolkit", wanted.install_path)
            if toolkit.version is None or toolkit.problems:
                raise PackageError(
                    "{0} was not installed: there is no whole toolkit in {1}. Install the toolkit {2} first.".format(
                        self.package(), wanted.install_path, wanted.version
                    ),
                    code="wrong_order",
                )
            if not packages.same_version(toolkit.version, wanted.version):
                raise PackageError(
                    "{0} was not installed: the toolkit is {1}, and CANN packages of one version go together. "
                    "Install the toolkit {2} first.".format(self.package(), toolkit.version, wanted.version),
                    code="wrong_order",
                )

    def check_package(self) -> None:
        """Refuse to run anything that is not the very package that was meant."""
        wanted = self.wanted
        if not wanted.src or not wanted.sha256:
            raise PackageError(
                "{0} has to be installed. Set src to the package on the host and sha256 to its digest.".format(
                    self.package()
                ),
                code="no_file",
            )
        trust.check_digest(wanted.src, wanted.sha256, self.progress.count_bytes)
        if wanted.signature_path:
            trust.check_signature(
                self.run_command, wanted.src, wanted.signature_path, wanted.ca_path or "", wanted.crl_path
            )

    def install(self, action: str, before: installed.Installed) -> installed.Installed:
        """Run the installer; returns what is installed then. Raises PackageError for everything but success."""
        wanted = self.wanted
        assert wanted.src is not None and wanted.version is not None
        upgrade = action in ("upgrade", "downgrade")
        flags = packages.install_flags(wanted.component, upgrade, wanted.install_path, wanted.install_for_all)
        # What an earlier run left half done stays so when this one is refused at the door.
        self.interrupted = bool(before.problems)
        installed.open_journal(self.host, wanted.component, wanted.version)
        outcome, log = self._run(["bash", wanted.src] + flags + list(wanted.extra_flags), "install")
        after = self.state()
        text = outcome.output
        if outcome.timed_out:
            raise self._timed_out(outcome, log)
        if outcome.rc not in self.kind.installed or failures.archive_refused(text):
            raise self._failure("installed", outcome, log)
        if not packages.same_version(after.version, wanted.version) or len(after.problems) > 1:
            # The one problem that remains is the journal, which is closed below.
            raise PackageError(
                "{0}: the installer left with {1}, but {2} is what its records say now{3}. Log: {4}. It is not "
                "whole; run the task again, which installs it once more.".format(
                    self.package(),
                    outcome.rc,
                    after.version or "nothing",
                    ": " + " ".join(after.problems[:-1]) if after.problems[:-1] else "",
                    self.log,
                ),
                code="half_installed",
                **self._details(outcome, log),
            )
        installed.close_journal(self.host, wanted.component)
        self._remember_reboot(outcome)
        return self.state()

    # -- absent --------------------------------------------------------------------------------------------------

    def plan_absent(self, before: installed.Installed) -> str:
        """remove or none. A version that is named is removed only when it is the one that is there."""
        wanted = self.wanted
        if before.problems:
            return "remove"
        if before.version is None:
            return "none"
        if wanted.version and not packages.same_version(before.version, wanted.version):
            return "none"
        return "remove"

    def remove(self, before: installed.Installed) -> installed.Installed:
        """Run the uninstaller that came with the package, or else the package; returns what is installed then."""
        wanted = self.wanted
        argv = self._uninstaller(before)
        if argv is None and before.home is None:
            # Nothing but the note of an installation that never got anywhere.
            installed.close_journal(self.host, wanted.component)
            return self.state()
        if argv is None:
            if not wanted.src:
                raise PackageError(
                    "{0} in {1} has no uninstaller. Set src and sha256 to its package, which can remove it.".format(
                        self.package(), before.home
                    ),
                    code="no_uninstaller",
                )
            self.check_package()
            argv = ["bash", wanted.src, "--uninstall"]
            if wanted.component in CANN and wanted.install_path != packages.ASCEND_ROOT:
                argv.append("--install-path=" + wanted.install_path)
        outcome, log = self._run(argv, "remove")
        if outcome.timed_out:
            raise self._timed_out(outcome, log)
        if outcome.rc not in self.kind.installed or failures.archive_refused(outcome.output):
            raise self._failure("removed", outcome, log)
        installed.close_journal(self.host, wanted.component)
        after = self.state()
        if after.problems or (after.version is not None and packages.same_version(after.version, before.version)):
            raise PackageError(
                "{0}: the uninstaller left with {1}, but {2} is still there. Log: {3}.".format(
                    self.package(), outcome.rc, " ".join(after.problems) or after.version, self.log
                ),
                code="not_removed",
                **self._details(outcome, log),
            )
        self._remember_reboot(outcome)
        return after

    def _uninstaller(self, before):
        """The command of the uninstaller on the host, or None."""
        if before.home is None:
            return None
        machine = self.host.system()["machine"]
        names = UNINSTALLERS[self.wanted.component]
        for script in (name.format(home=before.home, root=before.root, machine=machine) for name in names):
            if self.host.exists(script):
                flags = [] if self.wanted.component in CANN else ["--quiet"]
                return ["bash", self.host.real_path(script)] + flags
        return None

    # -- running -------------------------------------------------------------------------------------------------

    def _run(self, argv, stage):
        """Run an installer and return its outcome and what it added to the vendor's logs."""
        wanted = self.wanted
        environment = dict(self.environment, LC_ALL="C", LANG="C")
        if wanted.component == "nnal" and stage == "install":
            # Its installer wants the toolkit's environment.
            source = installed.set_env(self.host, wanted.install_path)
            if source is not None:
                argv = ["bash", "-c", '. "$1"; shift; exec "$@"', "-", self.host.real_path(source)] + argv
        logged = self._logs()
        with runner.scratch(wanted.work_path) as folder:
            outcome = runner.run(
                argv,
                dict(environment, TMPDIR=folder),
                wanted.timeout_seconds or self.kind.timeout_seconds,
                self.progress.update,
                stage,
                # A removal was asked for; some uninstallers ask again.
                "Y\n" if stage == "remove" else "",
            )
        self.rc = outcome.rc
        added = []
        for path, text in sorted(self._logs().items()):
            known = logged.get(path, "")
            # A log that was rotated meanwhile is new from its start.
            if text != known:
                added.append((path, text[len(known) :] if text.startswith(known) else text))
        grown = [path for path, _text in added]
        if grown and self.kind.log not in grown:
            self.log = grown[0]
        return outcome, "\n".join(text for _path, text in added)

    def _logs(self):
        """The vendor's installation logs and their texts."""
        names = self.host.list_directory(packages.LOGS)
        paths = ["{0}/{1}".format(packages.LOGS, name) for name in names if name.endswith("install.log")]
        return {path: self.host.read(path) or "" for path in paths}

    def _remember_reboot(self, outcome):
        lines = [line for line in failures.lines_of(outcome.output) if failures.REBOOT.search(line)]
        if outcome.rc in self.kind.reboot or lines:
            reason = lines[-1] if lines else "{0}: exit code {1}".format(self.package(), outcome.rc)
            installed.note_reboot(self.host, self.wanted.component, reason)

    def _details(self, outcome, log):
        return {
            "package": self.package(),
            "exit_code": outcome.rc,
            "log": self.log,
            "log_tail": (failures.lines_of(outcome.output) + failures.lines_of(log))[-30:],
        }

    def _failure(self, done, outcome, log):
        cause = failures.diagnose(outcome.output, log)
        if cause.refused and not self.interrupted:
            installed.close_journal(self.host, self.wanted.component)
        return PackageError(
            "{0} was not {1}: exit code {2}. Seen: '{3}'. Log: {4}. {5}".format(
                self.package(), done, outcome.rc, cause.seen, self.log, cause.hint.format(package=self.wanted.src)
            ),
            code=cause.code,
            seen=cause.seen,
            hint=cause.hint.format(package=self.wanted.src),
            **self._details(outcome, log),
        )

    def _timed_out(self, outcome, log):
        lines = failures.lines_of(outcome.output)
        seen = lines[-1] if lines else "nothing was printed"
        hint = "It is not whole now. "
        if "Waiting for device startup" in seen:
            hint += "A device does not start; the BIOS option Above 4G Decoding being off is said to be a cause. "
        hint += "Look at the log and at dmesg, reboot the host if the devices hang, and run again."
        return PackageError(
            "{0}: the installer did not end within {1} seconds and was ended. Seen last: '{2}'. Log: {3}. {4}".format(
                self.package(), self.wanted.timeout_seconds or self.kind.timeout_seconds, seen, self.log, hint
            ),
            code="timeout",
            seen=seen,
            hint=hint,
            **self._details(outcome, log),
        )


def ensure(session: Session, present: bool, check_mode: bool) -> Dict[str, Any]:
    """Bring the package to its state, or say what that would take; returns the module's result."""
    host, wanted = session.host, session.wanted
    with contextlib.ExitStack() as stack:
        if not check_mode:
            lock = host.real_path(LOCK)
            waiting = "another installation on this host is waited for"
            stack.enter_context(locks.exclusive(lock, lambda: session.progress.update("wait", None, waiting)))
        before = session.state()
        action = session.plan_present(before) if present else session.plan_absent(before)
        after = before
        if present and action != "none":
            session.check_request(before)
        left = runner.leftovers(wanted.work_path)
        if not check_mode:
            for path in left:
                shutil.rmtree(path, ignore_errors=True)
            if present and action != "none":
                session.check_order()
                session.check_package()
                after = session.install(action, before)
            elif action == "remove":
                after = session.remove(before)
    expected = wanted.version if present else None
    return {
        "changed": action != "none" or bool(left),
        "action": action,
        "component": wanted.component,
        "version": expected if check_mode and action != "none" else after.version,
        "version_before": before.version,
        "home": after.home,
        "problems": before.problems,
        "leftovers": left,
        "reboot_required": installed.pending_reboot(host, wanted.component),
        "log": session.log,
        # Not "rc": for that name Ansible fails a task unless it is 0, and 2 is a success here.
        "exit_code": session.rc,
    }
