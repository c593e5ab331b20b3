"""A pipeline file turns into a config, or into every problem that it has, each at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.config import Alerts, Bounds, PipelineConfig, TableRule, file_reader
from tidemark.config.sections import SECTIONS
from tidemark.errors import PipelineFileInvalid
from tidemark.names import TableName

SHOP = Path(__file__).parent / "pipelines" / "shop.yaml"
REPOSITORY = Path(__file__).resolve().parents[3]
LEAST = "source: {connection: a}\ntables: [shop.*]\nlake: /lake\n"


def written(folder: Path, text: str, name: str = "shop.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    """The problems of a file, as "line: message"."""
    config, listed_problems = file_reader.read(written(folder, text))
    assert (config is None) == bool(listed_problems)
    return [f"{problem.line}: {problem.message}" for problem in listed_problems]


class TestSoundFile:
    def test_every_option_arrives(self) -> None:
        assert file_reader.load(SHOP) == PipelineConfig(
            pipeline="shop",
            source_connection="shop_source",
            slot="tidemark_shop",
            publication="tidemark_shop",
            manage_publication=True,
            tables=(
                TableRule("shop.*", line=9),
                TableRule(
                    "shop.customers",
                    leave_out=("notes",),
                    mask={"email": "sha256", "phone": "null"},
                    target={"credit": "decimal(20,4)", "profile": "text"},
                    line=10,
                ),
            ),
            lake=str(REPOSITORY / "tests" / "unit" / ".tidemark" / "lake"),
            ledger_connection="tidemark_ledger",
            spark_connection="spark_default",
            spark_conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4"},
            schedule="*/5 * * * *",
            auto_backfill=True,
            mask_salt_connection="shop_mask_salt",
            alerts=Alerts(
                notifier="airflow.providers.smtp.notifications.smtp.SmtpNotifier",
                health="warn",
                max_lag_s=1800,
                wal_share=0.8,
            ),
            bounds=Bounds(batch_rows=100_000, wait_s=0),
            path=str(SHOP),
        )

    def test_the_least_file_has_every_default(self, tmp_path: Path) -> None:
        config = file_reader.load(written(tmp_path, LEAST, "My-Shop.yaml"))
        assert (config.pipeline, config.slot, config.publication) == ("My-Shop", "tidemark_my_shop", "tidemark_my_shop")
        assert config.manage_publication
        assert (config.ledger_connection, config.spark_connection) == ("tidemark_ledger", "spark_default")
        assert (config.schedule, config.bounds) == ("*/5 * * * *", Bounds())

    def test_the_publication_is_named_like_a_slot_that_is_given(self, tmp_path: Path) -> None:
        text = LEAST.replace("connection: a", "connection: a, slot: own")
        assert file_reader.load(written(tmp_path, text)).publication == "own"

    @pytest.mark.parametrize(
        ("written_as", "read_as"),
        [
            ("/data/lake", "/data/lake"),
            ("lake", "{folder}/lake"),
            ("../lake", "{parent}/lake"),
            ("file:///data/lake", "/data/lake"),
            ("s3a://bucket/lake/", "s3a://bucket/lake"),
            ("s3://bucket/lake", "s3a://bucket/lake"),
            ("{root: lake}", "{folder}/lake"),
        ],
    )
    def test_a_lake_is_a_uri_or_becomes_an_absolute_path(self, tmp_path: Path, written_as: str, read_as: str) -> None:
        config = file_reader.load(written(tmp_path, LEAST.replace("/lake", written_as)))
        assert config.lake == read_as.format(folder=tmp_path, parent=tmp_path.parent)

    @pytest.mark.parametrize("path", ["p%41", "q?x", "h%23", "a//b", "/a"])
    def test_a_lake_is_no_folder_that_is_read_in_two_ways(self, tmp_path: Path, path: str) -> None:
        with pytest.raises(PipelineFileInvalid, match="which Spark takes for another folder"):
            file_reader.load(written(tmp_path, LEAST.replace("/lake", f"s3://bucket/{path}")))
        for accepted in ("a b", "é", "x+y", "a=b/"):
            file_reader.load(written(tmp_path, LEAST.replace("/lake", f"s3://bucket/{accepted}")))

    def test_a_lake_is_in_no_other_storage(self, tmp_path: Path) -> None:
        (problem,) = problems(tmp_path, LEAST.replace("/lake", "hdfs://host/lake"))
        assert problem.startswith("3: lake.root cannot be at hdfs://: name a folder, or a place in s3://")

    def test_a_lake_may_name_the_connection_of_its_object_store(self, tmp_path: Path) -> None:
        lake = "{root: s3://bucket/lake, connection: lake_s3}"
        config = file_reader.load(written(tmp_path, LEAST.replace("/lake", lake)))
        assert (config.lake, config.lake_connection) == ("s3a://bucket/lake", "lake_s3")

    def test_a_setting_of_spark_is_what_the_file_has_letter_by_letter(self, tmp_path: Path) -> None:
        config = file_reader.load(
            written(tmp_path, LEAST + "spark: {conf: {spark.a: 3.10, spark.b: yes, spark.c: 1_0}}")
        )
        assert config.spark_conf == {"spark.a": "3.10", "spark.b": "yes", "spark.c": "1_0"}

    def test_null_means_for_good_or_none(self, tmp_path: Path) -> None:
        config = file_reader.load(written(tmp_path, LEAST + "maintenance: {put_aside_days: null, schedule: null}\n"))
        assert (config.maintenance.put_aside_days, config.maintenance.schedule) == (None, None)

    def test_a_null_schedule_is_none(self, tmp_path: Path) -> None:
        assert file_reader.load(written(tmp_path, LEAST + "schedule: null\n")).schedule is None


class TestProblems:
    def test_all_problems_of_a_file_are_said_at_once_in_the_order_of_lines(self, tmp_path: Path) -> None:
        text = (
            "pipline: shop\n"
            "source: {conection: a, slot: Big}\n"
            "tables: [shop]\n"
            "lake: 5\n"
            "bounds: {batch_row: 3, wait_s: soon, batch_bytes: 0}\n"
            "schedule: 5\n"
        )
        assert problems(tmp_path, text) == [
            "1: unknown key 'pipline'; did you mean 'pipeline'?",
            "2: source.connection is missing: Airflow connection of the source database",
            "2: source.slot must be lower-case letters, digits and '_', at most 63, not 'Big'",
            "2: unknown key 'conection' in source; did you mean 'connection'?",
            "3: the name of a table must be of the form schema.table, where a part that holds a dot is quoted: "
            "schema.\"a.b\", not 'shop'",
            "4: lake must be a mapping with the keys root, connection, or the root alone, not the number 5",
            "5: bounds.batch_bytes must be a whole number, 1 or more, not the number 0",
            "5: bounds.wait_s must be a whole number, 0 or more, not 'soon'",
            "5: unknown key 'batch_row' in bounds; did you mean 'batch_rows'?",
            "6: schedule must be a cron expression or preset in quotes, or null, not the number 5",
        ]

    def test_the_error_names_file_and_line(self, tmp_path: Path) -> None:
        path = written(tmp_path, LEAST + "bound: {}\n")
        with pytest.raises(PipelineFileInvalid, match=f"^{path}:4: unknown key 'bound'; did you mean 'bounds'"):
            file_reader.load(path)

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ("batch_rows: 1", "4: unknown key 'batch_rows'; 'batch_rows' belongs to bounds"),
            (
                "manage_publicatoin: no",
                "4: unknown key 'manage_publicatoin'; did you mean 'manage_publication' in source?",
            ),
            ("lake: /b", "4: 'lake' stands twice in the file"),
            (
                "lakes: /b",
                "4: unknown key 'lakes'; known are pipeline, source, tables, lake, ledger, spark, "
                "schedule, evolve, auto_backfill, mask_salt_connection, alerts, merge, follow, maintenance, bounds",
            ),
            ("alerts: {notifier: mail}", "4: alerts.notifier must be the dotted path of a class, not 'mail'"),
            ("notifier: a.b", "4: unknown key 'notifier'; 'notifier' belongs to alerts"),
            ("alerts: {health: wran}", "4: alerts.health must be red or warn, not 'wran'; did you mean 'warn'?"),
            ("alerts: {wal_share: 7}", "4: alerts.wal_share must be a number above 0, and 1 at most, not the number 7"),
            ("alerts: {wal_share: most}", "4: alerts.wal_share must be a number above 0, and 1 at most, not 'most'"),
            ("alerts: {max_lag_s: 0}", "4: alerts.max_lag_s must be a whole number, 1 or more, not the number 0"),
            ("ledger: tidemark", "4: ledger must be a mapping with the keys connection, not 'tidemark'"),
            (
                "spark: {conf: {executor: 3}}",
                "4: spark.conf 'executor' is no Spark setting: their names begin with 'spark.'",
            ),
            (
                "ledger: {connection: 'postgres://u:p@h/d'}",
                "4: ledger.connection must be the id of an Airflow connection, without address or secret",
            ),
            ("pipeline: a/b", "4: pipeline must be letters, digits, '_' and '-', at most 64, not 'a/b'"),
            ("bounds: {batch_rows: true}", "4: bounds.batch_rows must be a whole number, 1 or more, not true"),
            (
                "bounds: {park_after: 5}",
                "4: unknown key 'park_after' in bounds; known are batch_rows, batch_bytes, wait_s, wal_valve_bytes",
            ),
            ("evolve: frozen", "4: evolve must be follow, freeze or ask, not 'frozen'; did you mean 'freeze'?"),
            ("auto_backfill: later", "4: auto_backfill must be true or false, not 'later'"),
            (
                "alerts: {wal_share: .inf}",
                "4: alerts.wal_share must be a number above 0, and 1 at most, not the number inf",
            ),
            ("pipeline: !env SHOP", "4: 'SHOP' cannot be read as !env"),
            ("alerts: &a {notifier: *a}", "4: an alias stands within what it names"),
            (
                "merge: {every: 60}",
                "4: merge.every must be a whole number with s, m, h or d, from 1m to 1d, not the number 60",
            ),
            ("merge: {every: 2d}", "4: merge.every must be a whole number with s, m, h or d, from 1m to 1d, not '2d'"),
            (
                "maintenance: {put_aside_days: 0}",
                "4: maintenance.put_aside_days must be a whole number, 1 or more, not the number 0",
            ),
            ("spark: {conf: {spark.x: [1]}}", "4: spark.conf spark.x must be a text or a number, not a list"),
            (
                "follow: {every: 0s}",
                "4: follow.every must be a whole number with s or m, from 1s to 5m, not '0s'",
            ),
            (
                "follow: 2s\nschedule: null",
                '4: follow needs a schedule: a run follows until the next one is due; "@continuous" is one',
            ),
            (
                "follow: 2s\nmerge: {applications: 2}",
                "4: follow needs merge.applications: 1, since a run that follows has one Spark application",
            ),
            ("bounds: {batch_rows: 1.5}", "4: bounds.batch_rows must be a whole number, 1 or more, not the number 1.5"),
        ],
    )
    def test_one_problem(self, tmp_path: Path, more: str, message: str) -> None:
        assert problems(tmp_path, LEAST + more + "\n") == [message]

    @pytest.mark.parametrize(
        "setting",
        [
            "spark.hadoop.fs.s3a.secret.key",
            "spark.hadoop.fs.s3a.bucket.lake.session.token",
            "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net",
            "spark.hadoop.fs.azure.sas.c.shop.blob.core.windows.net",
            "spark.hadoop.fs.azure.account.oauth2.client.secret",
            "spark.authenticate.secret",
            "spark.ssl.keyPassword",
        ],
    )
    def test_a_setting_of_spark_that_is_a_secret_is_refused_by_its_name(self, tmp_path: Path, setting: str) -> None:
        (problem,) = problems(tmp_path, LEAST + f"spark: {{conf: {{{setting}: sesame}}}}\n")
        assert problem.startswith(
            f"4: spark.conf {setting} is a secret, and would stand in spark-submit's command line"
        )
        assert "sesame" not in problem

    @pytest.mark.parametrize(
        "setting",
        [
            "spark.hadoop.fs.s3a.access.key",
            "spark.kubernetes.authenticate.driver.oauthTokenFile",
            "spark.hadoop.hadoop.security.credential.provider.path",
            "spark.hadoop.fs.s3a.aws.credentials.provider",
            "spark.network.crypto.enabled",
        ],
    )
    def test_a_setting_that_says_where_a_secret_is_is_none(self, tmp_path: Path, setting: str) -> None:
        assert problems(tmp_path, LEAST + f"spark: {{conf: {{{setting}: there}}}}\n") == []

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ("{leave_out: [a]}", "the name of a table is missing"),
            ("{name: s.t, leave_out: a}", "leave_out must be a list of columns, not 'a'"),
            ("{name: s.t, mask: {a: md5}}", "mask of column 'a' must be null, sha256 or clear, not 'md5'"),
            ("{name: s.t, mask: {a: sha25}}", "did you mean 'sha256'?"),
            ("{name: s.t, target: {a: decimal}}", "must be text or decimal(p,s)"),
            ("{name: s.t, target: {a: 'decimal(39,2)'}}", "must be text or decimal(p,s)"),
            ("{name: s.t, target: {a: 'decimal(4,5)'}}", "must be text or decimal(p,s)"),
            (
                "{name: s.t, leave_out: [a], mask: {a: null}}",
                "column 'a' of s.t is left out and has a mask or target too",
            ),
            ("{name: s.t, target: {a: text}, mask: {a: sha256}}", "a hash is always text"),
            ("{name: s.t, mask: {a: null, a: sha256}}", "'a' stands twice in mask"),
            ("{name: s.t, columns: [a]}", "unknown key 'columns' in tables[]; known are name"),
        ],
    )
    def test_an_entry_of_tables(self, tmp_path: Path, entry: str, message: str) -> None:
        text = f"source: {{connection: a}}\nlake: /lake\nmask_salt_connection: s\ntables:\n  - {entry}\n"
        (problem,) = problems(tmp_path, text)
        assert problem.startswith("5: ")
        assert message in problem

    def test_a_hash_needs_a_salt(self, tmp_path: Path) -> None:
        text = "source: {connection: a}\nlake: /lake\ntables:\n- {name: s.t, mask: {a: sha256}}\n"
        assert problems(tmp_path, text) == [
            "4: mask sha256 needs mask_salt_connection: without a salt it can be guessed"
        ]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "0: is empty; it needs at least source, tables and lake"),
            ("a: [1\nb: 2", "2: is not YAML"),
            ("[]", "1: the file must be a mapping"),
            ("source: {connection: a}\n", "1: lake is missing"),
            ("source: {connection: a}\ntables: []\nlake: /l\n", "2: tables must be a list with at least one table"),
        ],
    )
    def test_what_is_no_pipeline_file_at_all(self, tmp_path: Path, text: str, said: str) -> None:
        assert any(problem.startswith(said) for problem in problems(tmp_path, text))

    @pytest.mark.parametrize("text", ["[" * 3000 + "]" * 3000, LEAST + "spark: " + "{a: " * 3000 + "1" + "}" * 3000])
    def test_nesting_without_end(self, tmp_path: Path, text: str) -> None:
        assert problems(tmp_path, text) == ["0: is nested too deeply"]

    def test_a_tag_that_its_value_does_not_fit(self, tmp_path: Path) -> None:
        assert "4: 'noon' cannot be read as timestamp" in problems(tmp_path, LEAST + "schedule: !!timestamp noon\n")

    def test_aliases_that_multiply(self, tmp_path: Path) -> None:
        """Nine lines would be a billion values."""
        levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
        said = problems(tmp_path, LEAST + "\n".join(["a0: &a0 [1]", *levels]))
        assert any(one.endswith("is more than 100,000 values, aliases included") for one in said)

    def test_a_file_that_is_not_there_or_not_text(self, tmp_path: Path) -> None:
        with pytest.raises(PipelineFileInvalid, match=r"none\.yaml: cannot be read"):
            file_reader.load(tmp_path / "none.yaml")
        (tmp_path / "latin.yaml").write_bytes(b"pipeline: caf\xe9\n")
        with pytest.raises(PipelineFileInvalid, match="is not UTF-8"):
            file_reader.load(tmp_path / "latin.yaml")

    def test_a_problem_stands_at_the_line_of_its_value(self, tmp_path: Path) -> None:
        text = (
            "source: {connection: a}\n"
            "tables:\n"
            "  - name: s.t\n"
            "    leave_out:\n"
            "      - a\n"
            "      - 5\n"
            "    mask:\n"
            "      b: sha1\n"
            "  - name: s.u\n"
            "    leaveout: [a]\n"
            "lake:\n"
            "  root: /lake\n"
            "  connection: 'a b'\n"
        )
        assert problems(tmp_path, text) == [
            "6: a column of leave_out must be a text, not the number 5",
            "8: mask of column 'b' must be null, sha256 or clear, not 'sha1'; did you mean 'sha256'?",
            "10: unknown key 'leaveout' in tables[]; did you mean 'leave_out'?",
            "13: lake.connection must be the id of an Airflow connection, without address or secret",
        ]

    def test_contradictions_are_said_beside_what_is_wrong_elsewhere(self, tmp_path: Path) -> None:
        text = (
            "source: {connection: a, slot: 5}\nlake: /lake\ntables:\n"
            "  - name: s.t\n"
            "    mask: {a: null, b: sha256}\n"
            "    leave_out: [a]\n"
            "    target: {b: text}\n"
            "  - s.t\n"
        )
        assert problems(tmp_path, text) == [
            "1: source.slot must be lower-case letters, digits and '_', at most 63, not the number 5",
            "6: column 'a' of s.t is left out and has a mask or target too",
            "7: column 'b' of s.t has a mask and a target: a hash is always text",
            "8: s.t is already in line 4; write one entry for it",
        ]


class TestEntriesTogether:
    def test_all_entries_that_match_hold_together(self, tmp_path: Path) -> None:
        text = (
            "source: {connection: a}\nlake: /lake\ntables:\n"
            "  - {name: 'shop.*', leave_out: [internal]}\n"
            "  - {name: shop.orders, leave_out: [notes], mask: {email: null}}\n"
        )
        config = file_reader.load(written(tmp_path, text))
        rule = config.rule(TableName("shop", "orders"))
        assert rule is not None
        assert (rule.leave_out, rule.mask) == (("internal", "notes"), {"email": "null"})
        assert config.rule(TableName("shop", "lines")) == TableRule("shop.*", ("internal",), line=4)
        assert config.rule(TableName("other", "orders")) is None

    @pytest.mark.parametrize("first", ["shop.*", "shop.order?", "shop.[o]rders"])
    def test_two_entries_that_contradict_each_other_are_a_problem(self, tmp_path: Path, first: str) -> None:
        text = (
            "source: {connection: a}\nlake: /lake\ntables:\n"
            f"  - {{name: '{first}', leave_out: [email]}}\n"
            "  - {name: shop.orders, mask: {email: null}}\n"
        )
        assert problems(tmp_path, text) == [
            "5: the entries that match shop.orders contradict each other: column 'email' of shop.orders: line 4 says "
            "leave out, the entry in line 5 says mask with null"
        ]

    def test_one_table_is_named_once(self, tmp_path: Path) -> None:
        text = "source: {connection: a}\nlake: /lake\ntables:\n  - s.t\n  - s.t\n"
        assert problems(tmp_path, text) == ["5: s.t is already in line 4; write one entry for it"]

    @pytest.mark.parametrize(
        ("pattern", "matching", "other"),
        [
            ("shop.*", TableName("shop", "x.y"), TableName("shops", "x")),
            ("shop.order_?", TableName("shop", "order_1"), TableName("shop", "order_12")),
            ('shop."a.b"', TableName("shop", "a.b"), TableName("shop", "a")),
            ('shop."*"', TableName("shop", "*"), TableName("shop", "x")),
            ('"s""q".T', TableName('s"q', "T"), TableName('s"q', "t")),
        ],
    )
    def test_patterns(self, pattern: str, matching: TableName, other: TableName) -> None:
        rule = TableRule(pattern)
        assert rule.matches(matching)
        assert not rule.matches(other)


class TestFolder:
    def test_files_are_read_in_the_order_of_their_names(self, tmp_path: Path) -> None:
        for name in ("b.yaml", "a.yml"):
            written(tmp_path, LEAST, name)
        written(tmp_path, "no pipeline", "README.md")
        configs, problems = file_reader.read_all(tmp_path)
        assert ([config.pipeline for config in configs], problems) == (["a", "b"], [])

    def test_a_broken_file_does_not_stop_the_others(self, tmp_path: Path) -> None:
        written(tmp_path, LEAST, "a.yaml")
        written(tmp_path, LEAST + "x: 1\n", "b.yaml")
        configs, listed_problems = file_reader.read_all(tmp_path)
        assert [config.pipeline for config in configs] == ["a"]
        assert [problem.line for problem in listed_problems] == [4]

    @pytest.mark.parametrize(
        ("second", "said"),
        [
            ("pipeline: a\nsource: {connection: other}", "is also named 'a'"),
            ("source: {connection: c, slot: tidemark_a, publication: p}", "also reads slot 'tidemark_a'"),
            ("source: {connection: c, publication: tidemark_a}", "also uses publication 'tidemark_a'"),
        ],
    )
    def test_two_files_that_share_what_only_one_may_have(self, tmp_path: Path, second: str, said: str) -> None:
        written(tmp_path, "source: {connection: c}\ntables: [s.*]\nlake: /l\n", "a.yaml")
        written(tmp_path, f"{second}\ntables: [s.*]\nlake: /l\n", "b.yaml")
        configs, listed_problems = file_reader.read_all(tmp_path)
        assert [config.path for config in configs] == [str(tmp_path / "a.yaml")]
        (problem,) = listed_problems
        assert problem.path == str(tmp_path / "b.yaml")
        assert said in problem.message

    def test_two_files_may_read_one_publication_that_neither_manages(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            source = f"{{connection: c, slot: s_{name}, publication: p, manage_publication: false}}"
            written(tmp_path, f"source: {source}\ntables: [s.*]\nlake: /l\n", f"{name}.yaml")
        configs, problems = file_reader.read_all(tmp_path)
        assert (len(configs), problems) == (2, [])


def test_a_file_has_at_most_25_options() -> None:
    listed = [f"{section}.{name}" for section in SECTIONS for name in SECTIONS[section].model_fields]
    of_sections = [f".{section.removesuffix('[]')}" for section in SECTIONS if section]
    assert set(of_sections) < set(listed)
    # What maintenance keeps and when it runs is one mapping, and so are who is told of what and when tables are merged,
    # like `mask` or `conf`: most files have none of it. A lake is where it lies and, in an object store, how to get in.
    # `evolve` is one, of a table or of all; `follow` has one.
    of_mappings = [
        option for option in listed if option.startswith(("maintenance.", "alerts.", "lake.", "merge.", "follow."))
    ]
    listed.remove("tables[].evolve")
    assert len(listed) - len(of_sections) - len(of_mappings) + 5 <= 25
