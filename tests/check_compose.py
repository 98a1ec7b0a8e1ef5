"""Checks the deployment files and examples against the programs; no container engine is needed.

Reads docker-compose.yml, the Dockerfile and examples/, and proves that what they name is
there: files, build stages, services, volumes, programs, sub-commands, flags, configuration
keys, variables, a job's keys, REST fields, metrics. It starts no container.

    python3 tests/check_compose.py [--bin-dir target/debug]
"""

import argparse
import ast
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = {"allotment-server", "allotment-agent", "allot", "nvml-sim-machine"}
CONFIGS = {"server": "server/src/config.rs", "agent": "agent/src/config.rs"}
# Variables that the images of others read; their documentation is not at hand here.
FOREIGN_VARIABLES = re.compile(r"POSTGRES_|GF_")
HELP_SECONDS = 30  # a debug build of a large program starts in far less

problems = []
checks = 0


def check(true, sentence):
    global checks
    checks += 1
    if not true:
        problems.append(sentence)
    return true


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


# ---- programs and their flags


class Programs:
    def __init__(self, folder):
        self.folder = folder

    @functools.cache
    def help(self, *words):
        result = subprocess.run(
            [self.folder / words[0], *words[1:], "--help"],
            capture_output=True, text=True, timeout=HELP_SECONDS, check=False,
        )
        return result.stdout if result.returncode == 0 else None

    def check_line(self, words, where):
        """A command line: its sub-command and each of its flags must be in the help."""
        program = pathlib.Path(words[0]).name
        if not check(program in PROGRAMS, f"{where}: {program} is none of this project's programs"):
            return
        path = [program]
        if len(words) > 1 and not words[1].startswith("-"):
            path.append(words[1])
        text = self.help(*path)
        if not check(text is not None, f"{where}: `{' '.join(path)} --help` fails"):
            return
        for word in words[1:]:
            if word.startswith("--"):
                flag = word.split("=")[0]
                known = re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text)
                check(known, f"{where}: `{' '.join(path)}` has no flag {flag}")


# ---- configuration keys, as the Rust structures have them


def structures(source):
    """name -> {field: type} of each structure that is read from a file."""
    found = {}
    for attributes, name, body in re.findall(
        r"#\[derive\(([^)]*)\)\][^{;]*?pub struct (\w+) \{(.*?)\n\}", source, re.S
    ):
        if "Deserialize" in attributes:
            fields = re.findall(
                r'^(?:    #\[serde\((?:rename = "(\w+)")?[^\n]*\)\]\n)?    pub (\w+): (.+?),$', body, re.M
            )
            found[name] = {renamed or field: kind for renamed, field, kind in fields}
    return found


def check_keys(table, name, known, where, path=""):
    fields = known[name]
    for key, value in table.items():
        if not check(key in fields, f"{where}: {path}{key} is no key of the configuration"):
            continue
        inner = re.sub(r"^(?:Option|Vec)<(.+)>$", r"\1", fields[key])
        if inner in known:
            for part in value if isinstance(value, list) else [value]:
                check_keys(part, inner, known, where, f"{path}{key}.")


def check_complete(table, name, known, where, path=""):
    """Each key of the configuration stands in the example."""
    for field, kind in known[name].items():
        if not check(field in table, f"{where}: {path}{field} is missing; the example shows every key"):
            continue
        if kind in known:
            check_complete(table[field], kind, known, where, f"{path}{field}.")


def check_config_text(kind, text, where, complete=False):
    if not check((ROOT / CONFIGS[kind]).is_file(), f"{CONFIGS[kind]} does not exist"):
        return
    known = structures(read(CONFIGS[kind]))
    if not check("Config" in known, f"{CONFIGS[kind]}: no structure Config was found"):
        return
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        check(False, f"{where}: {error}")
        return
    check_keys(table, "Config", known, where)
    if complete:
        check_complete(table, "Config", known, where)


def check_example_configs():
    for kind in CONFIGS:
        path = f"examples/config/{kind}.toml"
        # A default that is shown is a comment of the form `#key = value`.
        text = re.sub(r"^#(?=\[|[\w.]+ *=)", "", read(path), flags=re.M)
        check_config_text(kind, text, path, complete=True)
        check_config_text(kind, read(path), path)


# ---- Dockerfile


def stages():
    """name -> its base and instructions."""
    found, current = {}, None
    for line in re.sub(r"\\\n", " ", read("Dockerfile")).splitlines():
        line = line.strip()
        if match := re.match(r"FROM (\S+) AS (\S+)$", line):
            current = found.setdefault(match[2], {"base": match[1], "lines": []})
        elif current is not None and line and not line.startswith("#"):
            current["lines"].append(line)
    return found


def start_command(found, stage):
    """ENTRYPOINT and CMD of a stage, its bases included."""
    if stage not in found:
        return None, None
    entry, words = start_command(found, found[stage]["base"])
    for line in found[stage]["lines"]:
        if line.startswith("ENTRYPOINT "):
            entry, words = json.loads(line.removeprefix("ENTRYPOINT ")), None
        elif line.startswith("CMD "):
            words = json.loads(line.removeprefix("CMD "))
    return entry, words


def check_dockerfile(found):
    bins = set()
    for manifest in ROOT.glob("*/Cargo.toml"):
        table = tomllib.loads(manifest.read_text(encoding="utf-8"))
        bins |= {entry["name"] for entry in table.get("bin", [])}
        if (manifest.parent / "src/main.rs").exists() and "bin" not in table:
            bins.add(table["package"]["name"])
    build = "\n".join(found["build"]["lines"])
    built = set(re.findall(r"target/release/([\w.-]+)", build))
    for name in built - {"libnvml_sim.so"}:
        check(name in bins, f"Dockerfile: no crate builds {name}")
    for stage, content in found.items():
        base = content["base"]
        check(base in found or ":" in base, f"Dockerfile: stage {stage} is from {base}, which has no version")
        for line in content["lines"]:
            if not line.startswith("COPY "):
                continue
            words = line.split()[1:]
            origin = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), None)
            sources = [word for word in words[:-1] if not word.startswith("--")]
            if origin is None:
                for source in sources:
                    check((ROOT / source).exists(), f"Dockerfile: {source} does not exist")
            else:
                check(origin in found, f"Dockerfile: there is no stage {origin}")
                for source in sources:
                    if source.startswith("/out/"):
                        name = source.removeprefix("/out/")
                        check(name in built, f"Dockerfile: stage {origin} does not make {source}")


# ---- docker-compose.yml


def interpolated(text, given):
    """The text with ${NAME} and ${NAME:?words} replaced; each name must be given."""

    def replace(match):
        name = match[1]
        check(name in given, f"docker-compose.yml: ${{{name}}} is not in examples/compose/env.example")
        return "x"

    return re.sub(r"\$\{(\w+)(?::\?[^}]*)?\}", replace, text)


def check_compose(programs, found):
    given = set(re.findall(r"^(\w+)=", read("examples/compose/env.example"), re.M))
    text = interpolated(read("docker-compose.yml"), given)
    compose = yaml.safe_load(text)
    services, configs, volumes = compose["services"], compose["configs"], compose["volumes"]
    counts = {target: 0 for target in found}
    for name, service in services.items():
        where = f"docker-compose.yml: {name}"
        for other in service.get("depends_on", {}):
            check(other in services, f"{where}: depends on {other}, which is no service")
        for entry in service.get("volumes", []):
            source, _, rest = entry.partition(":")
            check(rest.startswith("/"), f"{where}: volume {entry} has no place in the container")
            if source.startswith("."):
                check((ROOT / source).is_file(), f"{where}: {source} is no file")
            else:
                check(source in volumes, f"{where}: {source} is no volume")
        for entry in service.get("configs", []):
            check(entry["source"] in configs, f"{where}: {entry['source']} is no configuration")
        for port in service.get("ports", []):
            check(port.startswith("127.0.0.1:"), f"{where}: port {port} is open to other machines")
        check_variables(name, service)
        if "build" not in service:
            check(re.search(r":[\w.]+$", service["image"]), f"{where}: image {service['image']} has no version")
            continue
        target = service["build"]["target"]
        if check(target in found, f"{where}: the Dockerfile has no stage {target}"):
            counts[target] += 1
            entry, words = start_command(found, target)
            entry = service.get("entrypoint", entry) or []
            words = service.get("command", None if "entrypoint" in service else words) or []
            check_start([*entry, *words], where, programs)
    check(counts.get("nvml-sim") == 3, "docker-compose.yml: there must be three agents")
    check(
        sum("server-" in name for name in services) == 2, "docker-compose.yml: there must be two servers"
    )
    for name, config in configs.items():
        check_config_text(name, config["content"], f"docker-compose.yml: configs.{name}")
    scrape = yaml.safe_load(read("examples/prometheus/prometheus.yml"))
    for name in scrape["rule_files"]:
        check((ROOT / "examples/prometheus" / name).is_file(), f"prometheus.yml: {name} is no file beside it")
    for job in scrape["scrape_configs"]:
        for group in job["static_configs"]:
            for target in group["targets"]:
                host = target.split(":")[0]
                check(host in services, f"prometheus.yml: {host} is no service of docker-compose.yml")


def check_start(line, where, programs):
    """What a container starts: one of our programs, or a script that does."""
    if line[0] in PROGRAMS:
        programs.check_line(line, where)
        return
    script = pathlib.Path(line[-1]).name
    path = ROOT / "examples/compose" / script
    check(path.is_file(), f"{where}: {line[-1]} is no file of examples/compose")


def check_variables(name, service):
    where = f"docker-compose.yml: {name}"
    scripts = read("examples/compose/join.py") + read("examples/compose/owner.sh")
    for variable in service.get("environment", {}):
        if not FOREIGN_VARIABLES.match(variable):
            check(variable in scripts, f"{where}: nothing reads the variable {variable}")


# ---- scripts, units, REST, metrics


def check_scripts(programs):
    for line in read("examples/compose/setup.sh").splitlines():
        if line.startswith("allotment-"):
            programs.check_line(shlex.split(line.split(">")[0]), "setup.sh")
    join = read("examples/compose/join.py")
    for node in ast.walk(ast.parse(join)):
        if isinstance(node, ast.List):
            # What is computed is the value of a flag; the literal words are what is checked.
            words = [word.value if isinstance(word, ast.Constant) else "VALUE" for word in node.elts]
            if words and words[0] in PROGRAMS:
                programs.check_line(words, "join.py")
    sim = read("nvml-sim/src/lib.rs")
    for variable in re.findall(r"ALLOTMENT_\w+", join):
        check(variable in sim, f"join.py: nvml-sim does not read {variable}")


def check_units(programs):
    for path in sorted(ROOT.glob("examples/systemd/*.service")):
        text = path.read_text(encoding="utf-8")
        starts = re.findall(r"^ExecStart=(.+)$", text, re.M)
        check(len(starts) == 1, f"{path.name}: one ExecStart is wanted")
        for start in starts:
            programs.check_line(shlex.split(start), path.name)
    unit = read("examples/systemd/allotment-agent.service")
    check("KillMode=process" in unit, "allotment-agent.service: jobs must outlive the agent (KillMode=process)")


def check_jobs():
    """Each example job has only keys of a spec, and the files that it names."""
    known = structures(read("domain/src/spec.rs"))
    total = re.search(r"FILES_BYTES_MAX: usize = ([\d* ]+);", read("domain/src/spec/check.rs"))
    bytes_max = functools.reduce(lambda one, other: one * other, map(int, total[1].split("*")))
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        where = str(path.relative_to(ROOT))
        job = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "workloads" in job:
            # A scenario and no job: the test of `allot plan` plans it.
            continue
        check_keys(job, "JobSpec", known, where)
        size = 0
        for text in job.get("files", {}).values():
            file = path.parent / text.removeprefix("@")
            if check(text.startswith("@") and file.is_file(), f"{where}: {text} is no file beside it"):
                size += file.stat().st_size
        check(size <= bytes_max, f"{where}: files have {size} bytes; at most {bytes_max} are taken")


def check_rest():
    """The one call of join.py: its path and the fields it reads."""
    path = ROOT / "openapi/openapi.yaml"
    if not check(path.exists(), "openapi/openapi.yaml does not exist"):
        return
    contract = yaml.safe_load(path.read_text(encoding="utf-8"))
    join = read("examples/compose/join.py")
    for route in re.findall(r"\"(/api/v1/[\w/-]+)\"", join):
        # The contract has paths below its server, /api/v1.
        call = contract["paths"].get(route.removeprefix("/api/v1"), {}).get("post")
        if not check(call, f"join.py: there is no POST {route}"):
            continue
        answer = call["responses"]["201"]["content"]["application/json"]["schema"]
        answer = resolve(contract, answer)
        for field in re.findall(r"made\[\"(\w+)\"\]", join):
            check(field in answer["properties"], f"join.py: POST {route} answers without {field}")


def resolve(contract, schema):
    while "$ref" in schema:
        schema = contract["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def check_metrics():
    """Each metric of dashboards and alerts is one that the source of server or agent names, each label too."""
    parts = ("server", "agent")
    source = "\n".join(path.read_text(encoding="utf-8") for part in parts for path in ROOT.glob(f"{part}/src/**/*.rs"))
    where = {}
    for path in sorted((ROOT / "examples/compose/grafana").glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        where[path.name] = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        where[path.name] += [variable["query"]["query"] for variable in dashboard.get("templating", {}).get("list", [])]
    rules = yaml.safe_load(read("examples/prometheus/alerts.yml"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    where["alerts.yml"] = [rule["expr"] for rule in alerts]
    for name, expressions in where.items():
        for metric in re.findall(r"\b(?:allotment|DCGM)_\w+", " ".join(expressions)):
            metric = re.sub(r"_(bucket|sum|count)$", "", metric)
            check(f'"{metric}"' in source, f"{name}: neither server nor agent has a metric {metric}")
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)\"", " ".join(expressions)):
            check(f'"{label}"' in source, f"{name}: neither server nor agent has a label {label}")
    tested = read("examples/prometheus/alerts_test.yml")
    for rule in alerts:
        fires = f"alertname: {rule['alert']}\n        exp_alerts:"
        check(fires in tested, f"alerts_test.yml: nothing tries that {rule['alert']} fires")
        check({"summary", "remedy"} <= set(rule["annotations"]), f"alerts.yml: {rule['alert']} has no remedy")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "target/debug")
    programs = Programs(parser.parse_args().bin_dir.resolve())
    found = stages()
    check_dockerfile(found)
    check_compose(programs, found)
    check_scripts(programs)
    check_units(programs)
    check_example_configs()
    check_jobs()
    check_rest()
    check_metrics()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"deployment files: {checks - len(problems)} passed, {len(problems)} failed")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
