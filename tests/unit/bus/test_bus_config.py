"""One way in: every value has an origin, and a typo names its file, line and nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest
from aegis_bus import config
from aegis_bus.config import ConfigError, load, parse_duration


class Place:
    """The three files and the environment of a process."""

    def __init__(self, folder: Path) -> None:
        self.system, self.home, self.cwd = folder / "etc" / "aegis.toml", folder / "home", folder / "work"
        self.user = self.home / ".config" / "aegis" / "aegis.toml"
        self.local = self.cwd / "aegis.toml"
        for path in (self.system, self.user, self.local):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.env: dict[str, str] = {}

    def load(self, flags: dict[str, object] | None = None, config_file: str | None = None) -> config.Config:
        return load(flags, config_file=config_file, env=self.env, cwd=self.cwd, home=self.home, system_file=self.system)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_without_anything_there_are_the_defaults(place: Place) -> None:
    settings = place.load()
    assert (settings.job.max_retry, settings.hang.timeout, settings.logs.level, settings.master.common_share) == (3, 600.0, "info", 0.2)
    assert settings.origin("job.maxRetry") == "default"


def test_the_nearer_source_wins_and_says_so(place: Place) -> None:
    key = "job.maxRetry"
    seen = [(place.load().job.max_retry, place.load().origin(key))]
    named = place.cwd / "special.toml"
    for write in (
        lambda: place.system.write_text("[job]\nmaxRetry = 4\n"),
        lambda: place.user.write_text("# mine\n\n[job]\nmaxRetry = 5\n"),
        lambda: place.local.write_text("[job]\nspares = 1\nmaxRetry = 6\n"),
        lambda: (named.write_text("job.maxRetry = 7\n"), place.env.update(AEGIS_CONFIG="special.toml")),
        lambda: place.env.update(AEGIS_JOB_MAX_RETRY="8"),
    ):
        write()
        seen.append((place.load().job.max_retry, place.load().origin(key)))
    flagged = place.load({key: 9, "job.spares": None})
    seen.append((flagged.job.max_retry, flagged.origin(key)))
    assert seen == [
        (3, "default"),
        (4, f"{place.system}:2"),
        (5, "~/.config/aegis/aegis.toml:4"),
        (6, "aegis.toml:3"),
        (7, "special.toml:1"),
        (8, "AEGIS_JOB_MAX_RETRY"),
        (9, "flag"),
    ]
    assert flagged.job.spares == 1


def test_a_flag_that_names_a_file_beats_the_variable_that_does(place: Place) -> None:
    (place.cwd / "a.toml").write_text("[job]\nspares = 1\n")
    (place.cwd / "b.toml").write_text("[job]\nspares = 2\n")
    place.env["AEGIS_CONFIG"] = "a.toml"
    assert place.load(config_file="b.toml").job.spares == 2


def test_an_unknown_key_names_file_line_and_the_nearest(place: Place) -> None:
    place.local.write_text("\n" * 10 + '[hang]\ntimout = "10min"\n')
    with pytest.raises(ConfigError) as caught:
        place.load()
    assert str(caught.value) == 'E130 aegis.toml:12: unknown key hang.timout. Did you mean hang.timeout? (value "10min" would be read as 600 s)'
    assert caught.value.code == "E130"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[job]\nmax_retry = 1\n", "E130 aegis.toml:2: unknown key job.max_retry. Did you mean job.maxRetry?"),
        ("[hangs]\ntimeout = 1\n", "E130 aegis.toml:1: unknown section [hangs]. Did you mean [hang]?"),
        ("[zzzzzz]\n", "E130 aegis.toml:1: unknown section [zzzzzz]. Known: "),
        ("[job]\nzzzzzzzzz = 1\n", "E130 aegis.toml:2: unknown key job.zzzzzzzzz. See aegis config show"),
        ("job = 3\n", "E130 aegis.toml:1: [job] is a section, not a value"),
        ('[job]\nmaxRetry = "many"\n', 'E130 aegis.toml:2: job.maxRetry = "many": expected a whole number'),
        ("[job]\nmaxRetry = 1.5\n", "E130 aegis.toml:2: job.maxRetry = 1.5: expected a whole number"),
        ("[job]\nmaxRetry = true\n", "E130 aegis.toml:2: job.maxRetry = True: expected a whole number"),
        (
            '[hang]\ntimeout = "soon"\n',
            'E130 aegis.toml:2: hang.timeout = "soon": expected a duration such as 10min, 90s, 24h or a number of seconds',
        ),
        ("[hang]\ntimeout = -1\n", "E130 aegis.toml:2: hang.timeout = -1: expected a duration"),
        ('[master]\ncommonShare = "120%"\n', 'E130 aegis.toml:2: master.commonShare = "120%": expected a share from 0 to 1, or 0% to 100%'),
        ('[logs]\nlevel = "loud"\n', 'E130 aegis.toml:2: logs.level = "loud": expected one of debug, info, warning, error'),
        ("[job\n", "E130 aegis.toml: not TOML: "),
    ],
)
def test_a_mistake_in_a_file_is_named(place: Place, text: str, message: str) -> None:
    place.local.write_text(text)
    with pytest.raises(ConfigError) as caught:
        place.load()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("section", ["bus", "credentials"])
def test_a_cloned_folder_is_not_trusted_with_servers_and_secrets(place: Place, section: str) -> None:
    text = {"bus": 'servers = ["nats://evil:4222"]', "credentials": 'server = "evil:1"'}[section]
    place.local.write_text(f"[{section}]\n{text}\n")
    with pytest.raises(ConfigError, match=rf"^E130 aegis\.toml:1: \[{section}\] may not be set by the file of the working folder"):
        place.load()
    place.local.rename(place.user)
    assert place.load().origin(f"{section}.{text.split()[0]}") == "~/.config/aegis/aegis.toml:2"


def test_a_misspelt_variable_is_named_and_foreign_ones_are_left_alone(place: Place) -> None:
    place.env = {"AEGIS_JOB": "x", "AEGIS_INCARNATION": "3", "AEGIS_NATS_SERVER": "/bin/nats-server", "AEGIS_JOB_ID": "llm-2", "HOME": "/x"}
    place.load()
    place.env["AEGIS_HANG_TIMEOUTS"] = "1"
    with pytest.raises(ConfigError, match=r"^E130 environment: unknown variable AEGIS_HANG_TIMEOUTS\. Did you mean AEGIS_HANG_TIMEOUT\?"):
        place.load()


def test_a_bad_value_of_a_variable_names_the_variable(place: Place) -> None:
    place.env = {"AEGIS_HANG_TIMEOUT": "later"}
    with pytest.raises(ConfigError, match=r'^E130 AEGIS_HANG_TIMEOUT: hang\.timeout = "later": expected a duration'):
        place.load()


def test_an_unknown_flag_and_a_missing_file_are_named(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"^E130 flag: unknown key job\.maxRetries\. Did you mean job\.maxRetry\?"):
        place.load({"job.maxRetries": 1})
    with pytest.raises(ConfigError, match=r"^E130 --config: there is no file nowhere\.toml"):
        place.load(config_file="nowhere.toml")


def test_lists_shares_and_texts_read_the_same_in_file_and_environment(place: Place) -> None:
    place.user.write_text('[bus]\nservers = ["nats://a:1", "nats://b:2"]\n[master]\ncommonShare = 0.3\n[job]\nnprocPerNode = 8\n')
    from_file = place.load()
    place.user.unlink()
    place.env = {"AEGIS_BUS_SERVERS": "nats://a:1, nats://b:2", "AEGIS_MASTER_COMMON_SHARE": "30%", "AEGIS_JOB_NPROC_PER_NODE": "8"}
    from_env = place.load()
    assert from_file == from_env
    assert from_env.bus.servers == ("nats://a:1", "nats://b:2")
    assert from_env.job.nproc_per_node == "8"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10min", 600), ("10 min", 600), ("500ms", 0.5), ("90s", 90), ("24h", 86400), ("7d", 604800), ("0", 0), (12, 12), (1.5, 1.5), ("2m", 120)],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "min", "10 parsecs", "-1s", True, None, "1e3", [1]])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


def test_every_setting_has_a_row_with_its_origin(place: Place) -> None:
    place.env = {"AEGIS_BUS_LEASE_TTL": "2s"}
    rows = {key: (value, origin) for key, value, origin in place.load().rows()}
    assert rows["bus.leaseTtl"] == (2.0, "AEGIS_BUS_LEASE_TTL")
    assert rows["logs.level"] == ("info", "default")
    assert set(rows) == set(config.KEYS)
