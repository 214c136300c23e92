"""Which texts are one SELECT that only reads, in each dialect; and that what passes still means the same."""

import pytest

from failsoft.base.errors import BadInput
from failsoft.tools.sql_check import SqlRules

ALL = ("sqlite", "duckdb", "postgres")

READS = [
    "SELECT 1",
    "select * from t;",
    "SELECT a, count(*) FROM t WHERE b > 1 GROUP BY a HAVING count(*) > 2 ORDER BY 2 DESC LIMIT 5",
    "WITH x AS (SELECT a FROM t) SELECT * FROM x JOIN u ON x.a = u.a",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) FROM n",
    "SELECT a FROM t UNION ALL SELECT b FROM u EXCEPT SELECT 1",
    "SELECT * FROM (SELECT a FROM t) AS q WHERE a IN (SELECT b FROM u)",
    "SELECT CASE WHEN a > 1 THEN 'x; DROP TABLE t' ELSE '--' END FROM t -- a comment; DELETE FROM t",
    "SELECT /* DROP TABLE t; */ upper(a), coalesce(b, 0), round(c, 2) FROM t",
    "SELECT a, row_number() OVER (PARTITION BY b ORDER BY c) FROM t",
    'SELECT "insert", "drop" FROM "delete" AS "update"',
    "(SELECT 1)",
    "SELECT cast(a AS integer), 'it''s' || b FROM t WHERE c LIKE '%x%' AND d BETWEEN 1 AND 2 AND e IS NOT NULL",
    "VALUES (1, 2), (3, 4)",
    "SELECT 1;;",
]

WRITES = [
    "",
    "   ",
    ";",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE t",
    "DROP TABLE t",
    "DELETE FROM t",
    "UPDATE t SET a = 1",
    "INSERT INTO t VALUES (1)",
    "INSERT INTO t SELECT 1",
    "CREATE TABLE x AS SELECT 1",
    "ALTER TABLE t ADD COLUMN a int",
    "TRUNCATE t",
    "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE t SET a = 1 RETURNING *) SELECT * FROM x",
    "SELECT * INTO x FROM t",
    "SELECT * FROM t FOR UPDATE",
    "SELECT * FROM t FOR SHARE",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE DELETE FROM t",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SET x = 1",
    "RESET ALL",
    "SHOW ALL",
    "PRAGMA table_info(t)",
    "ATTACH 'x.db' AS x",
    "ATTACH DATABASE '/etc/passwd' AS x",
    "DETACH x",
    "VACUUM INTO '/tmp/x'",
    "COPY t TO '/tmp/x'",
    "COPY t FROM PROGRAM 'id'",
    "COPY (SELECT 1) TO PROGRAM 'id'",
    "CALL p()",
    "DO $$ BEGIN END $$",
    "EXECUTE x",
    "PREPARE x AS SELECT 1",
    "LISTEN x",
    "NOTIFY x",
    "LOAD 'x'",
    "INSTALL httpfs",
    "EXPORT DATABASE '/tmp/x'",
    "GRANT ALL ON t TO x",
    "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE",
    "SELECT 1 /* unclosed",
    "SELECT 'unclosed",
    "SELECT :name",
    "SELECT ?",
    "SELECT $1",
    "SELECT unheard_of(1)",
    "SELECT (",
    "SELECT 1 WHERE 1 = 1 OR" + " (" * 5000,
    "SELECT " + "x" * 20_000,
    "SELECT 1\0",
    "SELECT version()",
    "\ufeffDROP TABLE t",
    "ＤＲＯＰ TABLE t",
    "SELECT 1 \\; DROP TABLE t",
    "SELECT LATERAL EXISTS EXECUTE",
    "USE x",
]

OWN = {
    "postgres": [
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT \"pg_read_file\"('/etc/passwd')",
        "SELECT PG_Read_File('/etc/passwd')",
        "SELECT pg_catalog.pg_read_file('/etc/passwd')",
        "SELECT pg_catalog . \"pg_ls_dir\"('/')",
        "SELECT U&\"\\0070g_read_file\"('/etc/passwd')",
        "SELECT * FROM pg_read_file('/etc/passwd')",
        "SELECT * FROM pg_ls_dir('/') AS x(y)",
        "SELECT * FROM ROWS FROM (pg_ls_dir('/'))",
        "SELECT a FROM t, LATERAL pg_ls_dir('/')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT lo_export(1, '/tmp/x')",
        "SELECT pg_sleep(100)",
        "SELECT pg_terminate_backend(1)",
        "SELECT set_config('statement_timeout', '0', true)",
        "SELECT current_setting('data_directory')",
        "SELECT nextval('s')",
        "SELECT setval('s', 1)",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_notify('a', 'b')",
        "SELECT dblink('host=x', 'DROP TABLE t')",
        "SELECT * FROM dblink('host=x', 'SELECT 1') AS x(a int)",
        "SELECT query_to_xml('DELETE FROM t', true, true, '')",
        "SELECT database_to_xml(true, true, '')",
        "SELECT ts_stat('DELETE FROM t')",
        "SELECT pg_stat_file('x')",
        "SELECT pg_reload_conf()",
        "SELECT inet_server_addr()",
        "SELECT 1 OPERATOR(evil.+) 2",
        "SELECT 'x'::regclass; DELETE FROM t",
        "SELECT 1 ORDER BY pg_sleep(1)",
        "SELECT 1 LIMIT (SELECT pg_sleep(1))::int",
        "SELECT count(*) FILTER (WHERE pg_sleep(1) IS NULL) FROM t",
        "SELECT sum(1) OVER (ORDER BY pg_sleep(1))",
        "SELECT CASE pg_sleep(1) WHEN 1 THEN 1 END",
        "SELECT ARRAY(SELECT pg_sleep(1))",
        "SELECT * FROM t TABLESAMPLE system(pg_sleep(1))",
        "SELECT * FROM xmltable('/x' PASSING '<x/>' COLUMNS a int)",
        "SELECT pg_logical_emit_message(true, 'a', 'b')",
        "WITH x AS MATERIALIZED (SELECT pg_sleep(1)) SELECT * FROM x",
        "VALUES (pg_sleep(1))",
        "SELECT current_schemas(true)",
        "SELECT current_user",
        "SELECT session_user",
    ],
    "duckdb": [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_csv_auto('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/*')",
        "SELECT * FROM read_json('x')",
        "SELECT * FROM read_parquet('http://x/y')",
        "SELECT * FROM parquet_scan('x')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'x.csv'",
        'SELECT * FROM "x.parquet"',
        "SELECT * FROM 'http://evil/x.parquet'",
        "SELECT * FROM glob('/*')",
        "SELECT getenv('HOME')",
        "SELECT current_user",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM sqlite_scan('x', 'y')",
        "SELECT * FROM postgres_query('x', 'y')",
        "SELECT * FROM query('DROP TABLE t')",
        "SELECT * FROM query_table('x.csv')",
        "SELECT * FROM pragma_database_size()",
        "SELECT current_setting('memory_limit')",
        "SELECT nextval('s')",
        "FROM read_text('/etc/passwd')",
        "SUMMARIZE t",
        "DESCRIBE t",
        "CHECKPOINT",
        "SELECT write_log('x')",
        "SELECT * FROM read_duckdb('x')",
        "SELECT content FROM read_text('/etc/passwd') UNION ALL SELECT 'x'",
        "SELECT (SELECT content FROM read_text('/etc/passwd'))",
        "PIVOT t ON a USING count(*)",
        "SELECT * FROM t POSITIONAL JOIN read_text('/etc/passwd')",
        "SELECT list_transform([1], lambda x: getenv('HOME'))",
    ],
    "sqlite": [
        "SELECT load_extension('/tmp/x.so')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/x', 'y')",
        "SELECT fts3_tokenizer('x')",
        "SELECT edit('x')",
        "SELECT * FROM pragma_table_info('t')",
        "SELECT * FROM fsdir('/')",
        "SELECT * FROM dbstat('x')",
        "SELECT sqlite_compileoption_get(1)",
        "SELECT eval('DROP TABLE t')",
        "REPLACE INTO t VALUES (1)",
        "REINDEX",
    ],
}


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("text", READS)
def test_what_reads_passes(dialect, text):
    query = SqlRules(dialect).read(text)
    assert "--" not in query.sql.replace("'--'", "")
    assert "/*" not in query.sql


OF_ITS_OWN = {
    "postgres": [
        "SELECT date_trunc('month', ts) m, count(*) FROM t GROUP BY 1",
        "SELECT a::numeric(10,2), extract(year from ts) FROM t",
        "SELECT array_agg(a ORDER BY b) FILTER (WHERE c) FROM t",
        "SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b DESC",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t",
        "SELECT j->>'a', j#>>'{b,c}', j @> '{}' FROM t",
        "SELECT * FROM generate_series(1,3) g(n) CROSS JOIN LATERAL (SELECT n*2) x",
        "SELECT now() - interval '7 days', age(ts), to_char(ts,'YYYY') FROM t",
        "SELECT a FROM t TABLESAMPLE BERNOULLI (10)",
        "SELECT lag(a) OVER (ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t",
        "SELECT string_agg(a, ', '), coalesce(sum(b),0), nullif(c,'') FROM t",
        "SELECT * FROM unnest(ARRAY[1,2]) WITH ORDINALITY u(x, i)",
        "SELECT a ~ 'x', a ILIKE '%y%', a SIMILAR TO 'z' FROM t",
        "SELECT jsonb_build_object('a', 1), row_to_json(t) FROM t",
        "SELECT (SELECT max(x) FROM u WHERE u.id = t.id) FROM t",
        "SELECT grouping(a), rollup FROM t GROUP BY ROLLUP (a)",
        "SELECT * FROM a NATURAL JOIN b USING_x",
        "SELECT ts AT TIME ZONE 'UTC' FROM t",
        "SELECT 1 FETCH FIRST 3 ROWS ONLY",
        "SELECT to_tsvector('english', a) @@ plainto_tsquery('b') FROM t",
    ],
    "duckdb": [
        "SELECT date_trunc('month', ts), count(*) FROM t GROUP BY ALL",
        "SELECT * EXCLUDE (a) REPLACE (b+1 AS b) FROM t",
        "SELECT list_transform([1,2], x -> x+1), {'a':1}.a, [1,2][1]",
        "SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b)=1",
        "SELECT arg_max(a,b), median(a), quantile_cont(a, 0.9) FROM t",
        "SELECT strftime(ts, '%Y'), a // b, a ** 2 FROM t",
        "FROM t SELECT a WHERE b > 1",
        "SELECT unnest([1,2]), range(3)",
        "SELECT * FROM t ASOF JOIN u ON t.a >= u.a",
        "SELECT COLUMNS('a.*') FROM t",
        "SELECT count(*) FILTER (a > 1), sum(a)::INT FROM t",
        "SELECT * FROM (VALUES (1,'a')) v(x,y)",
        "SELECT a FROM t USING SAMPLE 10",
        "SELECT struct_pack(a := 1), map([1],[2])",
    ],
    "sqlite": [
        "SELECT strftime('%Y', ts), count(*) FROM t GROUP BY 1",
        "SELECT json_extract(j,'$.a'), j->>'b' FROM t",
        "SELECT total(a), group_concat(b, ';') FROM t",
        "SELECT * FROM json_each('[1]')",
        "SELECT a GLOB 'x*', b LIKE 'y' ESCAPE '!', iif(a,1,2), date('now','-7 days') FROM t",
        "SELECT max(a,b), substr(c,1,2), instr(c,'x'), a || b FROM t",
        "SELECT round(avg(a),2), cast(b AS REAL) FROM t LIMIT 5 OFFSET 2",
    ],
}


@pytest.mark.parametrize("dialect", ALL)
def test_what_only_one_database_can_say_passes_there(dialect):
    for text in OF_ITS_OWN[dialect]:
        SqlRules(dialect).read(text)


@pytest.mark.parametrize("dialect", ALL)
def test_everything_else_is_refused(dialect):
    passed, told = [], []
    for text in [*WRITES, *OWN[dialect]]:
        try:
            passed.append((text[:80], SqlRules(dialect).read(text).sql[:200]))
        except BadInput as error:
            told.append((error.param, len(error.message) < 400))
    assert passed == []
    assert set(told) == {("query", True)}


@pytest.mark.parametrize("dialect", ALL)
def test_rows_are_limited_where_the_query_does_not_do_so_itself(dialect):
    rules = SqlRules(dialect, row_limit=10)
    for text, limited in (
        ("SELECT a FROM t", "SELECT a FROM t LIMIT 11"),
        ("SELECT a FROM t LIMIT 3", "SELECT a FROM t LIMIT 3"),
        ("SELECT a FROM t LIMIT 300", "SELECT * FROM (SELECT a FROM t LIMIT 300) AS q LIMIT 11"),
        ("SELECT a FROM t LIMIT 3 OFFSET 2", "SELECT a FROM t LIMIT 3 OFFSET 2"),
        ("SELECT 1 AS a UNION SELECT 2", "SELECT 1 AS a UNION SELECT 2 LIMIT 11"),
    ):
        assert rules.read(text).sql == limited


def test_only_the_tables_that_are_permitted_are_read():
    rules = SqlRules("postgres", tables=frozenset({"orders", "public.Customers"}))
    for text in (
        "SELECT * FROM orders",
        "SELECT * FROM ORDERS o JOIN public.customers c ON true",
        "WITH x AS (SELECT * FROM orders) SELECT * FROM x",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT * FROM n, orders",
        "SELECT (SELECT max(a) FROM orders) FROM (SELECT 1) AS q",
        "SELECT 1",
    ):
        rules.read(text)
    for text in (
        "SELECT * FROM secrets",
        "SELECT * FROM orders, secrets",
        "SELECT * FROM customers",
        "SELECT * FROM other.orders",
        "SELECT * FROM pg_catalog.pg_shadow",
        "SELECT (SELECT max(a) FROM secrets) FROM orders",
        "SELECT * FROM orders WHERE EXISTS (SELECT 1 FROM secrets)",
        "WITH x AS (SELECT * FROM secrets) SELECT * FROM x",
        "WITH orders AS (SELECT * FROM secrets) SELECT * FROM orders",
        "SELECT * FROM (WITH secrets AS (SELECT 1) SELECT * FROM secrets) q, secrets",
        "SELECT * FROM orders UNION SELECT * FROM secrets",
        "SELECT * FROM orders, LATERAL (SELECT * FROM secrets) s",
        "TABLE secrets",
        "SELECT * FROM ONLY secrets",
        "SELECT 1 ORDER BY (SELECT a FROM secrets)",
    ):
        with pytest.raises(BadInput, match="not permitted"):
            rules.read(text)


def test_own_functions_are_permitted_by_name():
    rules = SqlRules("postgres", functions=frozenset({"Sales_Region"}))
    rules.read("SELECT sales_region(1)")
    with pytest.raises(BadInput, match="'other' is not permitted"):
        rules.read("SELECT other(1)")


def test_named_parameters_are_for_fixed_queries():
    rules = SqlRules("sqlite")
    query = rules.read("SELECT * FROM t WHERE a = :a AND b = :b", parameters=["a", "b"])
    assert query.parameters == {"a", "b"}
    with pytest.raises(BadInput, match="placeholder 'c'"):
        rules.read("SELECT :c", parameters=["a"])
