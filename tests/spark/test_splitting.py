"""A fragment is split only where that changes nothing: rows that an operator needs together stay together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import spark_cases as cases
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from spark_cases import SCHEMA, random_rows

import understudy as us
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.query import Input, build_query
from understudy.engine.session import endpoint
from understudy.engine.splitting import require_splittable
from understudy.flow.dealing import deal, partition_numbers
from understudy.flow.errors import FlowError

SPLIT = 3
#: The second input's integers are narrower.
SCHEMAS = {"a": SCHEMA, "b": SCHEMA.set(1, pa.field("v", pa.int32()))}
END = "window.end"
Function = Callable[..., DataFrame]


@dataclass(frozen=True)
class Split:
    """A fragment's function and the columns that it is to be split by."""

    function: Function
    by: tuple[str, ...]
    time: str = END
    inputs: int = 1


def second(column: str = "ts") -> Any:
    return F.window(column, "1 second")


def counted(*keys: str) -> Function:
    return lambda a: a.groupBy(second(), *map(F.expr, keys)).agg(
        F.count("*").alias("n"), F.sum("v").alias("s")
    )


def joined(condition: str, how: str = "inner") -> Function:
    """A join of rows at most 200 ms apart. Its time is that of the rows that are always there."""
    near = f"{condition} and r.ts between l.ts - interval 200 milliseconds and l.ts"
    return lambda a, b: (
        a.alias("l").join(b.alias("r"), F.expr(near), how).select("l.*", F.col("r.id").alias("other"))
    )


def after_join(how: str, key: str) -> Function:
    """Counts by a column of one side of a join on k."""

    def function(a: DataFrame, b: DataFrame) -> DataFrame:
        near = F.expr("l.k = r.k and r.ts between l.ts - interval 200 milliseconds and l.ts")
        both = a.alias("l").join(b.alias("r"), near, how)
        at = F.coalesce("l.ts", "r.ts").alias("at")
        return both.select(at, F.col(key).alias("x")).groupBy(second("at"), "x").count()

    return function


def renamed(a: DataFrame) -> DataFrame:
    return counted("key")(a.withColumnRenamed("k", "key").alias("q").select("q.*").filter("v > 3"))


def narrow(a: DataFrame) -> DataFrame:
    return a.withColumn("v", F.col("v").cast("int"))


def counted_together(a: DataFrame, b: DataFrame) -> DataFrame:
    return counted("v")(a.union(b))


def crossed_union(a: DataFrame, b: DataFrame) -> DataFrame:
    crossed = b.select("k", F.col("id").alias("v"), F.col("v").alias("id"), "ts")
    return counted("v")(a.union(crossed))


def grouping_sets(*sets: list[str]) -> Function:
    def function(a: DataFrame) -> DataFrame:
        named = a.withColumn("w", second())
        return named.groupingSets([["w", *keys] for keys in sets], "w", "k", "v").count()

    return function


def unpivoted(a: DataFrame) -> DataFrame:
    return a.unpivot(["k", "ts"], ["v", "id"], "which", "value").dropDuplicates(["k", "ts", "which"])


def by_sql(text: str) -> Function:
    return lambda a: a.sparkSession.sql(text, a=a)


def with_table(a: DataFrame) -> DataFrame:
    """Whichever key it is joined on: every partition reads all of the table."""
    table = a.sparkSession.range(50).withColumn("name", F.col("id") * 2)
    table = table.groupBy("id").agg(F.max("name").alias("name")).limit(40).withColumnRenamed("id", "v")
    return counted("k")(a.join(table, "v", "left"))


def same(rows: Any) -> Any:
    return rows


def grouped(*keys: str, method: str = "applyInPandas") -> Function:
    return lambda a: getattr(a.groupBy(*map(F.expr, keys)), method)(same, a.schema)


def cogrouped(mine: str, others: str) -> Function:
    return lambda a, b: (
        a.groupBy(mine).cogroup(b.groupBy(others)).applyInPandas(lambda one, two: one, a.schema)
    )


def ranked(a: DataFrame) -> DataFrame:
    return a.withColumn("rank", F.row_number().over(Window.partitionBy("k").orderBy("ts", "id")))


def case_of(name: str, *by: str) -> Split:
    case = cases.CASES[name]
    return Split(case.function, by, case.time, len(case.inputs))


ACCEPTED = {
    "no operator with keys": case_of("stateless", "id"),
    "groupBy": case_of("tumbling", "k"),
    "groupBy of sliding windows": case_of("sliding", "k"),
    "sessions": case_of("sessions", "k"),
    "some of the keys": Split(counted("k", "v", "id"), ("id", "k")),
    "a renamed key": Split(renamed, ("k",)),
    "a key under an alias": Split(counted("k as key"), ("k",)),
    "one groupBy after another": Split(
        lambda a: counted("k")(a).select(second("window"), "k", "n").groupBy("window", "k").agg(F.sum("n")),
        ("k",),
    ),
    "sets that all have the key": Split(grouping_sets(["k", "v"], ["k"]), ("k",), "w.end"),
    "unpivot": Split(unpivoted, ("k",), "ts"),
    "explode": Split(lambda a: counted("k", "x")(a.withColumn("x", F.explode(F.array("v", "id")))), ("k",)),
    "union": case_of("union_window", "k"),
    "an integer that a union makes wider": Split(counted_together, ("v",), inputs=2),
    "dropDuplicates": case_of("distinct_times", "k"),
    "distinct": Split(lambda a: a.select("k", "ts").distinct(), ("k",), "ts"),
    "distinct in SQL": Split(by_sql("select distinct k, ts from {a}"), ("k",), "ts"),
    "dropDuplicates in windows": case_of("once_per_window", "k"),
    "join": case_of("interval_join", "k"),
    "outer join": case_of("left_join", "k"),
    "join on more than the columns": Split(joined("l.k = r.k and l.v <=> r.v"), ("v",), "ts", 2),
    "join on an integer of another width": Split(joined("r.v = l.v"), ("v",), "ts", 2),
    "semi join": Split(
        lambda a, b: a.alias("l").join(
            b.alias("r"), F.expr("l.k = r.k and r.ts between l.ts and l.ts"), "leftsemi"
        ),
        ("k",),
        "ts",
        2,
    ),
    "groupBy after a join": Split(after_join("inner", "r.k"), ("k",), inputs=2),
    "groupBy of the side that an outer join keeps": Split(after_join("left", "l.k"), ("k",), inputs=2),
    "a table that does not stream": Split(with_table, ("k",)),
    "applyInPandas": Split(grouped("k", "upper(k)"), ("k",), "ts"),
    "applyInArrow": Split(grouped("k", method="applyInArrow"), ("k",), "ts"),
    "applyInPandasWithState": case_of("visits", "k"),
    "cogroup": case_of("cogrouped", "k"),
    "window function": Split(ranked, ("k",), "ts"),
    "a named subquery": Split(
        by_sql(
            "with x as (select k as key, ts from {a} where v > 1) "
            "select window, key, count(*) as n from x group by window(ts, '1 second'), key"
        ),
        ("k",),
    ),
    "hints, repartition and observe": Split(
        lambda a: counted("k")(a.repartition(2, "v").hint("broadcast").observe("o", F.count(F.lit(1)))),
        ("k",),
    ),
}

REFUSED = {
    "groupBy": (Split(counted("v"), ("k",)), r"groupBy has the keys window, v, none.*'k'.*columns among v,"),
    "groupBy of one of two columns": (Split(counted("k"), ("k", "v")), r"none of which .* 'v'\..*among k,"),
    "groupBy of time alone": (
        Split(counted(), ("k",)),
        r"groupBy has the keys window, none.*'k'.*Leave partition_by out",
    ),
    "sessions": (
        Split(
            lambda a: a.groupBy(F.session_window("ts", "1 second"), "v").count(), ("k",), "session_window.end"
        ),
        r"groupBy has the keys session_window, v, none.*'k'.*columns among v,",
    ),
    "a computed key": (Split(counted("upper(k)"), ("k",)), r"window, upper\(k\), none.*'k'.*computed"),
    "a computed key of the same name": (
        Split(lambda a: counted("k")(a.withColumn("k", F.upper("k"))), ("k",)),
        r"keys window, k, none of which is the input's column 'k'.*computed",
    ),
    "a narrowed integer": (Split(lambda a: counted("v")(narrow(a)), ("v",)), r"keys window, v, none"),
    "a key inside a struct": (Split(counted("struct(k, v)"), ("k",)), r"create_named_struct\(.*none"),
    "another column by the name": (
        Split(lambda a: counted("k")(a.withColumn("k", F.col("v"))), ("k",)),
        r"keys window, k, none.*'k'.*columns among v,",
    ),
    "the second groupBy": (case_of("chained", "k"), r"keys window, none.*groupBy a fragment of its own"),
    "groupBy after a join": (case_of("join_then_window", "k"), r"groupBy has the keys window, none"),
    "sets of which one lacks the key": (
        Split(grouping_sets(["k"], ["v"]), ("k",), "w.end"),
        r"groupBy has the keys w, k, v, spark_grouping_id, none",
    ),
    "a union of different columns": (Split(crossed_union, ("v",), inputs=2), r"keys window, v, none.*'v'"),
    "dropDuplicates": (
        Split(lambda a: a.dropDuplicates(["id", "ts"]), ("k",), "ts"),
        r"dropDuplicates has the keys id, ts, none.*'k'.*among id, ts,",
    ),
    "distinct": (
        Split(by_sql("select distinct v, ts from {a}"), ("k",), "ts"),
        r"distinct .*all its columns",
    ),
    "dropDuplicates in windows": (
        case_of("once_per_window", "v"),
        r"dropDuplicates has the keys k, w, none.*'v'.*among k,",
    ),
    "join on another column": (
        Split(joined("l.id = r.id"), ("k",), "ts", 2),
        r"join has the keys id = id, none of which pairs the column 'k' of both sides.*among id,",
    ),
    "join of one column with another": (
        Split(joined("l.id = r.v"), ("id",), "ts", 2),
        r"join has the keys id = v, none of which pairs the column 'id'",
    ),
    "join on a computed column": (
        Split(joined("upper(l.k) = upper(r.k)"), ("k",), "ts", 2),
        r"keys upper\(k\) = upper\(k\), none",
    ),
    "join on either of two columns": (
        Split(joined("(l.k = r.k or l.v = r.v)"), ("k",), "ts", 2),
        r"join has no keys",
    ),
    "join without equality": (Split(joined("l.id > r.id"), ("k",), "ts", 2), r"join has no keys"),
    "groupBy of the side that an outer join fills up": (
        Split(after_join("left", "r.k"), ("k",), inputs=2),
        r"groupBy has the keys window, x, none",
    ),
    "applyInPandas": (
        Split(grouped("v"), ("k",), "ts"),
        r"applyInPandas has the keys v, none.*'k'.*among v,",
    ),
    "applyInPandas by a computed key": (
        Split(grouped("upper(k) as u"), ("k",), "ts"),
        r"applyInPandas has the keys u, none",
    ),
    "applyInArrow": (
        Split(grouped("v", method="applyInArrow"), ("k",), "ts"),
        r"applyInArrow has the keys v",
    ),
    "applyInPandasWithState": (case_of("visits", "v"), r"applyInPandasWithState has the keys k, none.*'v'"),
    "what a function made": (
        Split(lambda a: grouped("k")(a).dropDuplicates(["k"]), ("k",), "ts"),
        r"dropDuplicates has the keys k, none of which is the input's column 'k'",
    ),
    "cogroup": (case_of("cogrouped", "v"), r"cogroup.applyInPandas has the keys k = k, none.*'v'.*among k,"),
    "cogroup of one column with another": (
        Split(cogrouped("v", "id"), ("v",), "ts", 2),
        r"keys v = id, none of which pairs the column 'v'",
    ),
    "window function": (Split(ranked, ("v",), "ts"), r"window function has the keys k, none"),
    "a named subquery": (
        Split(
            by_sql(
                "with x as (select k, upper(k) as u, ts from {a}) "
                "select window, u, count(*) as n from x group by window(ts, '1 second'), u"
            ),
            ("k",),
        ),
        r"groupBy has the keys window, u, none",
    ),
    "limit": (Split(lambda a: a.limit(3), ("k",), "ts"), r"limit has no keys.*Leave partition_by out"),
    "offset": (Split(lambda a: a.offset(3), ("k",), "ts"), r"Offset has no keys"),
    "mapInPandas": (case_of("frame_sums", "k"), r"mapInPandas has no keys.*partition_by out.*pandas_udf"),
    "mapInArrow": (
        Split(lambda a: a.mapInArrow(same, a.schema), ("k",), "ts"),
        r"mapInArrow has no keys.*pandas_udf",
    ),
}


def check(spark: SparkSession, split: Split) -> None:
    inputs = {name: Input(SCHEMAS[name], "ts") for name in ("a", "b")[: split.inputs]}
    query = build_query(
        spark,
        fragment="suspect",
        function=split.function,
        inputs=inputs,
        time=split.time,
        options=endpoint().options("analysis"),
        dealt_to={},
    )
    require_splittable("suspect", query.plan, split.by, SPLIT)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_split_by_columns_among_the_keys_is_accepted(spark: SparkSession, name: str) -> None:
    check(spark, ACCEPTED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_a_split_that_parts_what_belongs_together_is_refused(spark: SparkSession, name: str) -> None:
    split, said = REFUSED[name]
    opening = f"^fragment 'suspect' is split into 3 partitions by {', '.join(split.by)}, but its "
    with pytest.raises(FlowError, match=opening) as refusal:
        check(spark, split)
    refusal.match(said)


def rows_of(frame: DataFrame) -> Counter[str]:
    return Counter(str(row) for row in frame.toArrow().to_pylist())


def whole_and_split(spark: SparkSession, split: Split) -> tuple[Counter[str], Counter[str]]:
    """What a batch job gives for all rows, and what such jobs give for the partitions' rows together."""
    named = list(SCHEMAS.items())[: split.inputs]
    tables = [random_rows(ord(name), 12).cast(schema) for name, schema in named]
    shares = [deal(table, partition_numbers(table, split.by, SPLIT), SPLIT) for table in tables]
    parts = [split.function(*[batch(spark, share[index]) for share in shares]) for index in range(SPLIT)]
    together = parts[0].unionAll(parts[1]).unionAll(parts[2])
    return rows_of(split.function(*[batch(spark, table) for table in tables])), rows_of(together)


def batch(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows.combine_chunks())


@pytest.mark.parametrize(
    "name", ["an integer that a union makes wider", "groupBy of the side that an outer join keeps"]
)
def test_what_is_accepted_gives_the_same_rows_split(spark: SparkSession, name: str) -> None:
    whole, split = whole_and_split(spark, ACCEPTED[name])
    assert whole
    assert split == whole


@pytest.mark.parametrize(
    "name", ["a union of different columns", "groupBy of the side that an outer join fills up"]
)
def test_what_is_refused_would_give_other_rows_split(spark: SparkSession, name: str) -> None:
    whole, split = whole_and_split(spark, REFUSED[name][0])
    assert split != whole


def test_a_flow_with_a_wrong_split_is_refused_unless_it_has_one_partition(spark: SparkSession) -> None:
    flow = us.Flow("wrong")
    packets = flow.source("packets", us.Push("src string, dst string, v bigint, ts timestamp"), time="ts")

    @flow.fragment(packets, time=END, partition_by=["src"])
    def counts(packets: DataFrame) -> DataFrame:
        return packets.groupBy(second(), "dst").count()

    flow.sink(counts, us.Console())
    FlowEngines(flow, "fragment", 1, spark=spark)
    FlowEngines(flow, "flow", 2, spark=spark)
    with pytest.raises(
        FlowError,
        match=r"'counts' is split into 2 partitions by src, but its groupBy has the keys window, dst, none "
        r"of which is the input's column 'src'\..*Partition by columns among dst, .*leave partition_by out",
    ):
        FlowEngines(flow, "fragment", 2, spark=spark)
