#!/usr/bin/env python3
"""Gets PostgreSQL's source of this server's major version from Debian.

The regression suite is not in any binary package.  This asks apt for the
source package with lists and cache of its own below ./build, so that nothing
of the machine's configuration changes and no root is needed.  The newest
version that can be downloaded is taken: security uploads' sources are not
always to be had, nor those of a point release on its first days
(known_sources.txt has a version to fall back on).  A minor version's
difference to the server does not matter, since results are compared with a
direct run and not with a file.

A minor release may change how psql itself reads the scripts (15.19's psql
skips to "\\." after a COPY FROM STDIN that failed), so the psql of the very
version of the sources is fetched too, if the server's is another.

BATON_REGRESS_SOURCE names a source tree to use instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.account import pg_config  # noqa: E402

CACHE = Path(__file__).resolve().parents[2] / "build" / "postgresql-source"
KNOWN_SOURCES = Path(__file__).resolve().parent / "known_sources.txt"


def major_version() -> str:
    found = re.search(r"PostgreSQL (\d+)", pg_config("version"))
    if not found:
        raise RuntimeError("pg_config gives no version")
    return found.group(1)


def source_lists() -> str:
    """The machine's own Debian sources, for binaries and for sources."""
    lines: list[str] = []
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for file in files:
        if not file.is_file():
            continue
        text = file.read_text(errors="replace")
        if file.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = {}
                for line in stanza.splitlines():
                    name, colon, value = line.partition(":")
                    if colon and not line.startswith(("#", " ")):
                        fields[name.strip().lower()] = value.strip()
                if "debian" not in fields.get("uris", ""):
                    continue
                signed = f"[signed-by={fields['signed-by']}] " if "signed-by" in fields else ""
                for suite in fields.get("suites", "").split():
                    for kind in ("deb", "deb-src"):
                        lines.append(f"{kind} {signed}{fields['uris'].split()[0]} {suite} main")
        else:
            for line in text.splitlines():
                if re.match(r"deb(-src)?\s", line) and "debian" in line:
                    for kind in ("deb", "deb-src"):
                        lines.append(re.sub(r"^deb(-src)?\s", f"{kind} ", line))
    return "\n".join(dict.fromkeys(lines)) + "\n"


def apt(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    state = CACHE / "apt"
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (state / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::State::Lists={state / 'lists'}",
        f"Dir::Cache={state / 'cache'}",
        f"Dir::Etc::SourceList={state / 'sources.list'}",
        "Dir::Etc::SourceParts=-",
        "Acquire::Languages=none",
        "APT::Sandbox::User=root",
        "Acquire::Retries=5",
    ]
    command = [tool]
    for option in options:
        command += ["-o", option]
    return subprocess.run(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=CACHE, timeout=600
    )


def refresh_lists() -> subprocess.CompletedProcess[str]:
    (CACHE / "apt").mkdir(parents=True, exist_ok=True)
    (CACHE / "apt" / "sources.list").write_text(source_lists())
    return apt("apt-get", "update")


def fetch_known(major: str, suffix: str) -> tuple[Path | None, str]:
    """Gets the known file of this major version whose name ends so, from the
    machine's own mirror; or None, and why."""
    for line in KNOWN_SOURCES.read_text().splitlines():
        if line.startswith("#") or line.split()[0] != major:
            continue
        _, path, sha256 = line.split()
        if not path.endswith(suffix):
            continue
        roots = re.findall(r"^deb (?:\[.*\] )?(\S+/debian)/?\s", source_lists(), re.MULTILINE)
        if not roots:
            return None, "apt names no mirror of Debian"
        target = CACHE / Path(path).name
        uri = f"{roots[0]}/{path.replace('+', '%2b')}"
        done = apt("/usr/lib/apt/apt-helper", "download-file", uri, str(target), f"SHA256:{sha256}")
        if done.returncode == 0 and target.is_file():
            return target, ""
        return None, f"{target.name}: {done.stdout[-500:]}"
    return None, f"no file {suffix} of {major} is known"


def fetch() -> Path:
    """The root of a source tree of this major version; cached."""
    given = os.environ.get("BATON_REGRESS_SOURCE")
    if given:
        return Path(given)
    major = major_version()
    package = f"postgresql-{major}"
    CACHE.mkdir(parents=True, exist_ok=True)

    def unpacked() -> list[Path]:
        return sorted(p for p in CACHE.glob(f"postgresql-{major}.*") if (p / "src/test/regress/sql").is_dir())

    if unpacked():
        return unpacked()[-1]
    update = refresh_lists()
    shown = apt("apt-cache", "showsrc", "--only-source", package).stdout
    versions = re.findall(r"^Version: (\S+)$", shown, re.MULTILINE)

    def order(version: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", version)]

    failures = []
    if not versions:
        failures.append(f"no source package {package} found\n{update.stdout[-2000:]}\n{shown[-2000:]}")
    for version in sorted(dict.fromkeys(versions), key=order, reverse=True):
        done = apt("apt-get", "source", "--download-only", f"{package}={version}")
        archives = sorted(CACHE.glob(f"{package}_*.orig.tar.*"))
        archives = [a for a in archives if not a.name.endswith(".asc")]
        if done.returncode == 0 and archives:
            subprocess.run(["tar", "-xf", str(archives[-1]), "-C", str(CACHE)], check=True)
            if unpacked():
                return unpacked()[-1]
        failures.append(f"{version}: {done.stdout[-500:]}")
        for archive in archives:
            archive.unlink()
    archive, why = fetch_known(major, ".orig.tar.bz2")
    if archive:
        subprocess.run(["tar", "-xf", str(archive), "-C", str(CACHE)], check=True)
        if unpacked():
            return unpacked()[-1]
    failures.append(why or f"{archive} has no regression suite")
    raise RuntimeError("no source could be downloaded:\n" + "\n".join(failures))


def fetch_psql(source: Path) -> Path | None:
    """A directory with the psql of the sources' version; None: use the server's."""
    version = source.name.partition("-")[2]
    if version in pg_config("version").split() or not version:
        return None
    unpacked = CACHE / f"client-{version}"
    found = sorted(unpacked.glob("usr/lib/postgresql/*/bin/psql"))
    if not found:
        package = f"postgresql-client-{major_version()}"
        refresh_lists()
        versions = re.findall(r"\|\s*(\S+)\s*\|", apt("apt-cache", "madison", package).stdout)
        for candidate in dict.fromkeys(v for v in versions if v.startswith(version)):
            apt("apt-get", "download", f"{package}={candidate}")
            for archive in CACHE.glob(f"{package}_{candidate}*.deb"):
                subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
        if not unpacked.is_dir():
            architecture = subprocess.run(["dpkg", "--print-architecture"], stdout=subprocess.PIPE, text=True)
            archive, _ = fetch_known(major_version(), f"_{architecture.stdout.strip()}.deb")
            if archive and version in archive.name:
                subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
        found = sorted(unpacked.glob("usr/lib/postgresql/*/bin/psql"))
    return found[0].parent if found else None


if __name__ == "__main__":
    if shutil.which("apt-get") is None and "BATON_REGRESS_SOURCE" not in os.environ:
        sys.exit("apt-get is needed, or set BATON_REGRESS_SOURCE")
    tree = fetch()
    print(tree)
    print(fetch_psql(tree) or "the server's own psql")
