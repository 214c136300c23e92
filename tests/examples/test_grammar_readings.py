"""Questions and what they are read into, on invented tables: no column name of theirs occurs in the code.

An intent is written as ``measure by group where filter in [label|start..end] order limit share VS the other [chart/language]``.
"""
# ruff: noqa: E501 - one question and its reading per line can be checked at a glance.

import datetime as dt
import json

import pytest
from tests.examples.grammars import TABLES, grammar

from failsoft.examples.analyst.grammar import Grammar
from failsoft.examples.analyst.spec import Intent, Query, TableProfile, from_dict, to_dict


def told(query: Query) -> str:
    """A query in one line."""
    text = f"{query.measure.aggregate}({query.measure.column or '*'})"
    if query.group_by:
        text += " by " + ",".join(g.column + (f":{g.grain}" if g.grain else "") for g in query.group_by)
    if query.filters:
        text += " where " + " & ".join(f"{f.column} {f.op} {f.value!r}" for f in query.filters)
    if query.period:
        text += f" in [{query.period.label}|{query.period.start}..{query.period.end}]"
    text += f" {query.order}" if query.order != "natural" else ""
    text += f" limit {query.limit}" if query.limit else ""
    return text + (" share" if query.share else "")


def in_a_line(intent: Intent) -> str:
    """An intent in one line."""
    text = told(intent.query)
    if intent.compare_to:
        text += "  VS  " + told(intent.compare_to) + (" rank=change" if intent.rank == "change" else "")
    return text + (" unusual" if intent.mark_unusual else "") + f" [{intent.chart}/{intent.language}]"


SALES_QUESTIONS = [
    ("total revenue", "sum(Revenue (USD)) [None/en]"),
    (
        "Compare Q3 revenue per region with Q2 and mark unusual changes",
        "sum(Revenue (USD)) by Region in [Q3 2025|2025-07-01..2025-10-01]  VS  sum(Revenue (USD)) by Region in [Q2 2025|2025-04-01..2025-07-01] unusual [compare/en]",
    ),
    ("average unit price by product", "mean(unit_price) by product [bar/en]"),
    ("How many orders were there in July 2024?", "count(*) in [July 2024|2024-07-01..2024-08-01] [None/en]"),
    ("top 5 customers by revenue", "sum(Revenue (USD)) by customer_name desc limit 5 [bar/en]"),
    (
        "which region had the highest sales in 2024?",
        "sum(Revenue (USD)) by Region in [2024|2024-01-01..2025-01-01] desc limit 1 [bar/en]",
    ),
    ("monthly revenue", "sum(Revenue (USD)) by order_date:month [line/en]"),
    (
        "revenue per month in the North region",
        "sum(Revenue (USD)) by order_date:month where Region = 'North' [line/en]",
    ),
    ("share of revenue by channel", "sum(Revenue (USD)) by channel share [bar/en]"),
    ("what share of revenue does North have?", "sum(Revenue (USD)) by Region share [bar/en]"),
    (
        "revenue difference between North and South",
        "sum(Revenue (USD)) where Region = 'North'  VS  sum(Revenue (USD)) where Region = 'South' [None/en]",
    ),
    (
        "North vs South revenue per month in 2025",
        "sum(Revenue (USD)) by order_date:month where Region = 'North' in [2025|2025-01-01..2026-01-01]  VS  sum(Revenue (USD)) by order_date:month where Region = 'South' in [2025|2025-01-01..2026-01-01] [compare/en]",
    ),
    (
        "growth in Q3 over Q2",
        "sum(Revenue (USD)) in [Q3 2025|2025-07-01..2025-10-01]  VS  sum(Revenue (USD)) in [Q2 2025|2025-04-01..2025-07-01] [None/en]",
    ),
    (
        "change in revenue from Q2 to Q3 by product",
        "sum(Revenue (USD)) by product in [Q3 2025|2025-07-01..2025-10-01]  VS  sum(Revenue (USD)) by product in [Q2 2025|2025-04-01..2025-07-01] [compare/en]",
    ),
    (
        "total qty of Widget sold online last month",
        "sum(qty) where product = 'Widget' & channel = 'Online' in [August 2025|2025-08-01..2025-09-01] [None/en]",
    ),
    ("orders with revenue over 1000", "count(*) where Revenue (USD) > 1000 [None/en]"),
    ("how many orders with qty >= 3 and price above 10.5", "count(*) where qty >= 3 & unit_price > 10.5 [None/en]"),
    ("revenue excluding Widget by region", "sum(Revenue (USD)) by Region where product != 'Widget' [bar/en]"),
    ("revnue by reigon", "sum(Revenue (USD)) by Region [bar/en]"),
    ("describe the data", "count(*) [None/en]"),
    ("what is in the data?", "count(*) [None/en]"),
    ("revenue from March to May", "sum(Revenue (USD)) in [March 2025 to May 2025|2025-03-01..2025-06-01] [None/en]"),
    (
        "revenue between 2024-02-01 and 2024-02-10 per day",
        "sum(Revenue (USD)) by order_date:day in [2024-02-01 to 2024-02-10|2024-02-01..2024-02-11] [line/en]",
    ),
    ("revenue last 30 days", "sum(Revenue (USD)) in [2025-09-01 to 2025-09-30|2025-09-01..2025-10-01] [None/en]"),
    (
        "year over year revenue",
        "sum(Revenue (USD)) in [2025-01-01 to 2025-09-30|2025-01-01..2025-10-01]  VS  sum(Revenue (USD)) in [2024-01-01 to 2024-09-30|2024-01-01..2024-10-01] [None/en]",
    ),
    (
        "Revenue in Q3 2025 vs same quarter last year",
        "sum(Revenue (USD)) in [Q3 2025|2025-07-01..2025-10-01]  VS  sum(Revenue (USD)) in [Q3 2024|2024-07-01..2024-10-01] [None/en]",
    ),
    (
        "Q3 versus the quarter before",
        "sum(Revenue (USD)) in [Q3 2025|2025-07-01..2025-10-01]  VS  sum(Revenue (USD)) in [Q2 2025|2025-04-01..2025-07-01] [None/en]",
    ),
    ("median order value", "median(Revenue (USD)) [None/en]"),
    ("how many customers bought online?", "count_distinct(customer_name) where channel = 'Online' [None/en]"),
    ("how many different products", "count_distinct(product) [None/en]"),
    ("revenue per customer and channel", "sum(Revenue (USD)) by customer_name,channel [bar/en]"),
    ("best selling product", "sum(qty) by product desc limit 1 [bar/en]"),
    (
        "which product sold the most units in 2025?",
        "sum(qty) by product in [2025|2025-01-01..2026-01-01] desc limit 1 [bar/en]",
    ),
    ("bottom 3 products by shipping cost", "sum(shipping_cost) by product asc limit 3 [bar/en]"),
    ("how many returned orders per region", "count(*) by Region where returned = True [bar/en]"),
    ("percentage of orders returned", "count(*) by returned share [bar/en]"),
    ("highest unit price per product", "max(unit_price) by product [bar/en]"),
    ("what was the maximum price in H1 2025", "max(unit_price) in [H1 2025|2025-01-01..2025-07-01] [None/en]"),
    (
        "unusual days in July revenue",
        "sum(Revenue (USD)) by order_date:day in [July 2025|2025-07-01..2025-08-01] unusual [line/en]",
    ),
    (
        "which region grew most from Q2 to Q3",
        "sum(Revenue (USD)) by Region in [Q3 2025|2025-07-01..2025-10-01] desc limit 1  VS  sum(Revenue (USD)) by Region in [Q2 2025|2025-04-01..2025-07-01] rank=change [compare/en]",
    ),
    ("average revenue per order", "mean(Revenue (USD)) [None/en]"),
    ("daily orders in August", "count(*) by order_date:day in [August 2025|2025-08-01..2025-09-01] [line/en]"),
    ("revenue by weekday", "sum(Revenue (USD)) by order_date:weekday [bar/en]"),
    ("show me a line chart of revenue by region", "sum(Revenue (USD)) by Region [line/en]"),
    ("trend of revenue", "sum(Revenue (USD)) by order_date:month [line/en]"),
    ("median order value", "median(Revenue (USD)) [None/en]"),
    ("what was our best month?", "sum(Revenue (USD)) by order_date:month desc limit 1 [bar/en]"),
    (
        "best month by revenue in 2024",
        "sum(Revenue (USD)) by order_date:month in [2024|2024-01-01..2025-01-01] desc limit 1 [bar/en]",
    ),
    ("What is the average quantity per order in the East?", "mean(qty) where Region = 'East' [None/en]"),
    ("How did revenue develop over time?", "sum(Revenue (USD)) by order_date:month [line/en]"),
    (
        "how did sales change in Q3 2025?",
        "sum(Revenue (USD)) in [Q3 2025|2025-07-01..2025-10-01]  VS  sum(Revenue (USD)) in [Q2 2025|2025-04-01..2025-07-01] [None/en]",
    ),
    ("Show revenue by region and product", "sum(Revenue (USD)) by Region,product [bar/en]"),
    (
        "sum of shipping cost for Globex and Initech",
        "sum(shipping_cost) where customer_name in ['Globex', 'Initech'] [None/en]",
    ),
    (
        "Compare Globex with Initech by quantity",
        "sum(qty) where customer_name = 'Globex'  VS  sum(qty) where customer_name = 'Initech' [None/en]",
    ),
    (
        "Compare Online, Store and Partner revenue",
        "sum(Revenue (USD)) by channel where channel in ['Online', 'Store', 'Partner'] [bar/en]",
    ),
    ("how much did we make in August 2025?", "sum(Revenue (USD)) in [August 2025|2025-08-01..2025-09-01] [None/en]"),
    (
        "Which 3 products had the lowest revenue in Q2 2025?",
        "sum(Revenue (USD)) by product in [Q2 2025|2025-04-01..2025-07-01] asc limit 3 [bar/en]",
    ),
    (
        "List the top ten customers in the West by sales",
        "sum(Revenue (USD)) by customer_name where Region = 'West' desc limit 10 [bar/en]",
    ),
    (
        "orders per day in September 2025",
        "count(*) by order_date:day in [September 2025|2025-09-01..2025-10-01] [line/en]",
    ),
    ("revenue since July", "sum(Revenue (USD)) in [2025-07-01 to 2025-09-30|2025-07-01..2025-10-01] [None/en]"),
    ("revenue before March 2024", "sum(Revenue (USD)) in [2024-01-02 to 2024-02-29|2024-01-02..2024-03-01] [None/en]"),
    (
        "revenue in the first half of 2025 versus the first half of 2024",
        "sum(Revenue (USD)) in [H1 2025|2025-01-01..2025-07-01]  VS  sum(Revenue (USD)) in [H1 2024|2024-01-01..2024-07-01] [None/en]",
    ),
    (
        "Compare revenue in 2025 with 2024 per quarter",
        "sum(Revenue (USD)) by order_date:quarter in [2025|2025-01-01..2026-01-01]  VS  sum(Revenue (USD)) by order_date:quarter in [2024|2024-01-01..2025-01-01] [compare/en]",
    ),
    ("what percentage of revenue comes from Online?", "sum(Revenue (USD)) by channel share [bar/en]"),
    ("number of orders over 500 USD", "count(*) where Revenue (USD) > 500 [None/en]"),
    ("orders where unit price is between 10 and 20", "count(*) where unit_price >= 10 & unit_price <= 20 [None/en]"),
    (
        "average price of Gizmo Pro in Q1'25",
        "mean(unit_price) where product = 'Gizmo Pro' in [Q1 2025|2025-01-01..2025-04-01] [None/en]",
    ),
    (
        "did revenue drop in August?",
        "sum(Revenue (USD)) in [August 2025|2025-08-01..2025-09-01]  VS  sum(Revenue (USD)) in [July 2025|2025-07-01..2025-08-01] [None/en]",
    ),
    (
        "which customer's revenue dropped most between Q2 and Q3?",
        "sum(Revenue (USD)) by customer_name in [Q3 2025|2025-07-01..2025-10-01] asc limit 1  VS  sum(Revenue (USD)) by customer_name in [Q2 2025|2025-04-01..2025-07-01] rank=change [compare/en]",
    ),
    (
        "revenue by week in July 2025",
        "sum(Revenue (USD)) by order_date:week in [July 2025|2025-07-01..2025-08-01] [line/en]",
    ),
    (
        "Total revenue for North region, Widget product",
        "sum(Revenue (USD)) where Region = 'North' & product = 'Widget' [None/en]",
    ),
    (
        "revenue not in the North and not Online",
        "sum(Revenue (USD)) where Region != 'North' & channel != 'Online' [None/en]",
    ),
    (
        "everything except returned orders: revenue by channel",
        "sum(Revenue (USD)) by channel where returned = False [bar/en]",
    ),
    ("revenue of orders that were not returned", "sum(Revenue (USD)) where returned = False [None/en]"),
    ("how many orders were returned?", "count(*) where returned = True [None/en]"),
    (
        "Umbrella's revenue in May",
        "sum(Revenue (USD)) where customer_name = 'Umbrella Ltd' in [May 2025|2025-05-01..2025-06-01] [None/en]",
    ),
    (
        "quarterly revenue for Acme",
        "sum(Revenue (USD)) by order_date:quarter where customer_name = 'Acme Corp' [line/en]",
    ),
    ("cheapest product", "mean(unit_price) by product asc limit 1 [bar/en]"),
    ("the most expensive product", "mean(unit_price) by product desc limit 1 [bar/en]"),
    ("average order size", "mean(Revenue (USD)) [None/en]"),
    ("min and max price", "min(unit_price) [None/en]"),
    (
        "revenue this month vs last month",
        "sum(Revenue (USD)) in [September 2025|2025-09-01..2025-10-01]  VS  sum(Revenue (USD)) in [August 2025|2025-08-01..2025-09-01] [None/en]",
    ),
    (
        "compare last month with the month before",
        "sum(Revenue (USD)) in [August 2025|2025-08-01..2025-09-01]  VS  sum(Revenue (USD)) in [July 2025|2025-07-01..2025-08-01] [None/en]",
    ),
    (
        "YoY growth of revenue by region",
        "sum(Revenue (USD)) by Region in [2025-01-01 to 2025-09-30|2025-01-01..2025-10-01]  VS  sum(Revenue (USD)) by Region in [2024-01-01 to 2024-09-30|2024-01-01..2024-10-01] [compare/en]",
    ),
    (
        "month over month change in orders",
        "count(*) in [September 2025|2025-09-01..2025-10-01]  VS  count(*) in [August 2025|2025-08-01..2025-09-01] [None/en]",
    ),
    ("revenue on 2025-09-15", "sum(Revenue (USD)) in [2025-09-15|2025-09-15..2025-09-16] [None/en]"),
    ("revenue on 15 September 2025", "sum(Revenue (USD)) in [2025-09-15|2025-09-15..2025-09-16] [None/en]"),
    (
        "revenue from 1 Feb 2025 to 15 Feb 2025",
        "sum(Revenue (USD)) in [2025-02-01 to 2025-02-15|2025-02-01..2025-02-16] [None/en]",
    ),
    ("Jan-Mar 2025 revenue", "sum(Revenue (USD)) in [January 2025 to March 2025|2025-01-01..2025-04-01] [None/en]"),
    (
        "2024 vs 2025 revenue by month",
        "sum(Revenue (USD)) by order_date:month in [2024|2024-01-01..2025-01-01]  VS  sum(Revenue (USD)) by order_date:month in [2025|2025-01-01..2026-01-01] [compare/en]",
    ),
    ("who bought the most?", "sum(Revenue (USD)) by customer_name desc limit 1 [bar/en]"),
    ("customers with the most orders", "count(*) by customer_name desc [bar/en]"),
    ("what are the top products?", "sum(Revenue (USD)) by product desc limit 10 [bar/en]"),
    ("region with highest average order quantity", "mean(qty) by Region desc limit 1 [bar/en]"),
    ("how many orders per customer?", "count(*) by customer_name [bar/en]"),
    ("any anomalies in daily revenue?", "sum(Revenue (USD)) by order_date:day unusual [line/en]"),
    ("outliers in shipping cost by product", "sum(shipping_cost) by product unusual [bar/en]"),
    ("pie chart of revenue by channel", "sum(Revenue (USD)) by channel [bar/en]"),
    ("number of distinct customers per region", "count_distinct(customer_name) by Region [bar/en]"),
    ("average qty by channel sorted descending", "mean(qty) by channel desc [bar/en]"),
    (
        "highest revenue day in 2025",
        "sum(Revenue (USD)) by order_date:day in [2025|2025-01-01..2026-01-01] desc limit 1 [bar/en]",
    ),
    ("what day had the highest revenue", "sum(Revenue (USD)) by order_date:day desc limit 1 [bar/en]"),
    (
        "Revenue per region, only Online, in the third quarter of 2025",
        "sum(Revenue (USD)) by Region where channel = 'Online' in [Q3 2025|2025-07-01..2025-10-01] [bar/en]",
    ),
    ("revenue in summer 2024", "sum(Revenue (USD)) in [summer 2024|2024-06-01..2024-09-01] [None/en]"),
    (
        "revenue by customer for Widget and Gadget in 2025, top 3",
        "sum(Revenue (USD)) by customer_name where product in ['Widget', 'Gadget'] in [2025|2025-01-01..2026-01-01] desc limit 3 [bar/en]",
    ),
    (
        "What's the total revenue of North in May vs. June?",
        "sum(Revenue (USD)) where Region = 'North' in [May 2025|2025-05-01..2025-06-01]  VS  sum(Revenue (USD)) where Region = 'North' in [June 2025|2025-06-01..2025-07-01] [None/en]",
    ),
    (
        "Difference in revenue between Q1 and Q2 2025",
        "sum(Revenue (USD)) in [Q1 2025|2025-01-01..2025-04-01]  VS  sum(Revenue (USD)) in [Q2 2025|2025-04-01..2025-07-01] [None/en]",
    ),
    (
        "North compared to the rest",
        "sum(Revenue (USD)) where Region = 'North'  VS  sum(Revenue (USD)) where Region != 'North' [None/en]",
    ),
    ("is revenue growing?", "sum(Revenue (USD)) by order_date:month [line/en]"),
    ("how is revenue distributed across regions?", "sum(Revenue (USD)) by Region [bar/en]"),
    ("revenue by order date", "sum(Revenue (USD)) by order_date:day [line/en]"),
    ("Rank regions by revenue", "sum(Revenue (USD)) by Region desc [bar/en]"),
    ("order regions by revenue ascending", "sum(Revenue (USD)) by Region asc [bar/en]"),
    ("average revenue per month", "mean(Revenue (USD)) by order_date:month [line/en]"),
    (
        "how many units of Gizmo Pro were sold per month in 2025?",
        "sum(qty) by order_date:month where product = 'Gizmo Pro' in [2025|2025-01-01..2026-01-01] [line/en]",
    ),
    (
        "how many widgets did we sell in July 2025?",
        "sum(qty) where product = 'Widget' in [July 2025|2025-07-01..2025-08-01] [None/en]",
    ),
]
ZH_QUESTIONS = [
    ("各大区的销售额", "sum(销售额) by 大区 [bar/zh]"),
    (
        "比较第三季度和第二季度各地区的销售额",
        "sum(销售额) by 大区 in [2025年第三季度|2025-07-01..2025-10-01]  VS  sum(销售额) by 大区 in [2025年第二季度|2025-04-01..2025-07-01] [compare/zh]",
    ),
    ("2025年7月的总利润", "sum(利润) in [2025年7月|2025-07-01..2025-08-01] [None/zh]"),
    ("销售额最高的三个产品", "sum(销售额) by 产品名称 desc limit 3 [bar/zh]"),
    ("按月统计销售额", "sum(销售额) by 订单日期:month [line/zh]"),
    ("前五个城市的销量", "sum(销量) by 城市 desc limit 5 [bar/zh]"),
    ("平均单价最高的城市是哪个", "mean(单价) by 城市 desc limit 1 [bar/zh]"),
    ("华东地区的销售额占比", "sum(销售额) by 大区 share [bar/zh]"),
    ("各产品销售额占比", "sum(销售额) by 产品名称 share [bar/zh]"),
    ("华东和华南的利润对比", "sum(利润) where 大区 = '华东'  VS  sum(利润) where 大区 = '华南' [None/zh]"),
    (
        "第三季度销售额环比",
        "sum(销售额) in [2025年第三季度|2025-07-01..2025-10-01]  VS  sum(销售额) in [2025年第二季度|2025-04-01..2025-07-01] [None/zh]",
    ),
    (
        "2025年第三季度销售额同比变化",
        "sum(销售额) in [2025年第三季度|2025-07-01..2025-10-01]  VS  sum(销售额) in [2024年第三季度|2024-07-01..2024-10-01] [None/zh]",
    ),
    ("利润超过1000的订单有多少", "count(*) where 利润 > 1000 [None/zh]"),
    ("除了华东以外各大区的利润", "sum(利润) by 大区 where 大区 != '华东' [bar/zh]"),
    ("上个月销售额", "sum(销售额) in [2025年11月|2025-11-01..2025-12-01] [None/zh]"),
    ("订单数按城市", "count(*) by 城市 [bar/zh]"),
    ("哪个月销售额最高", "sum(销售额) by 订单日期:month desc limit 1 [bar/zh]"),
    ("每月平均单价", "mean(单价) by 订单日期:month [line/zh]"),
    ("找出销售额异常的月份", "sum(销售额) by 订单日期:month unusual [line/zh]"),
    ("上海的营业额", "sum(销售额) where 城市 = '上海市' [None/zh]"),
    ("3月到5月的收入", "sum(销售额) in [2025年3月至2025年5月|2025-03-01..2025-06-01] [None/zh]"),
    ("上半年各客户类型的销售额", "sum(销售额) by 客户类型 in [2025年上半年|2025-01-01..2025-07-01] [bar/zh]"),
    ("销售额走势", "sum(销售额) by 订单日期:month [line/zh]"),
    (
        "从第二季度到第三季度利润的变化",
        "sum(利润) in [2025年第三季度|2025-07-01..2025-10-01]  VS  sum(利润) in [2025年第二季度|2025-04-01..2025-07-01] [None/zh]",
    ),
    (
        "2025年第三季度各产品的销售额与第二季度相比",
        "sum(销售额) by 产品名称 in [2025年第三季度|2025-07-01..2025-10-01]  VS  sum(销售额) by 产品名称 in [2025年第二季度|2025-04-01..2025-07-01] [compare/zh]",
    ),
    (
        "第三季度比第二季度销售额增长了多少",
        "sum(销售额) in [2025年第三季度|2025-07-01..2025-10-01]  VS  sum(销售额) in [2025年第二季度|2025-04-01..2025-07-01] [None/zh]",
    ),
    (
        "与第二季度相比，第三季度各城市的利润变化",
        "sum(利润) by 城市 in [2025年第三季度|2025-07-01..2025-10-01]  VS  sum(利润) by 城市 in [2025年第二季度|2025-04-01..2025-07-01] [compare/zh]",
    ),
    (
        "对比2024年和2025年的销售额",
        "sum(销售额) in [2025年|2025-01-01..2026-01-01]  VS  sum(销售额) in [2024年|2024-01-01..2025-01-01] [None/zh]",
    ),
    (
        "2024年和2025年各月销售额对比",
        "sum(销售额) by 订单日期:month in [2025年|2025-01-01..2026-01-01]  VS  sum(销售额) by 订单日期:month in [2024年|2024-01-01..2025-01-01] [compare/zh]",
    ),
    ("哪个城市的利润最低", "sum(利润) by 城市 asc limit 1 [bar/zh]"),
    ("利润最低的5个城市", "sum(利润) by 城市 asc limit 5 [bar/zh]"),
    ("有多少个不同的城市", "count_distinct(城市) [None/zh]"),
    ("企业客户的销售额", "sum(销售额) where 客户类型 = '企业' [None/zh]"),
    ("客户类型为个人的订单数", "count(*) where 客户类型 = '个人' [None/zh]"),
    ("蓝牙耳机和充电宝的销量", "sum(销量) where 产品名称 in ['蓝牙耳机', '充电宝'] [None/zh]"),
    ("单价大于100且销量小于50的订单数", "count(*) where 单价 > 100 & 销量 < 50 [None/zh]"),
    ("利润在100到500之间的订单", "count(*) where 利润 >= 100 & 利润 <= 500 [None/zh]"),
    ("销售额占比按大区", "sum(销售额) by 大区 share [bar/zh]"),
    ("2025年每季度利润", "sum(利润) by 订单日期:quarter in [2025年|2025-01-01..2026-01-01] [line/zh]"),
    ("最近三个月的销售额", "sum(销售额) in [2025-10-01至2025-12-31|2025-10-01..2026-01-01] [None/zh]"),
    ("去年的销售额", "sum(销售额) in [2024年|2024-01-01..2025-01-01] [None/zh]"),
    ("今年各大区的销量", "sum(销量) by 大区 in [2025年|2025-01-01..2026-01-01] [bar/zh]"),
    (
        "2025年上半年与下半年销售额比较",
        "sum(销售额) in [2025年下半年|2025-07-01..2026-01-01]  VS  sum(销售额) in [2025年上半年|2025-01-01..2025-07-01] [None/zh]",
    ),
    (
        "哪个产品销量增长最多，第三季度对比第二季度",
        "sum(销量) by 产品名称 in [2025年第三季度|2025-07-01..2025-10-01] desc limit 1  VS  sum(销量) by 产品名称 in [2025年第二季度|2025-04-01..2025-07-01] rank=change [compare/zh]",
    ),
    ("平均每单销售额", "mean(销售额) [None/zh]"),
    ("客单价", "mean(销售额) [None/zh]"),
    ("销量最高的产品", "sum(销量) by 产品名称 desc limit 1 [bar/zh]"),
    ("畅销产品前3名", "sum(销量) by 产品名称 desc limit 3 [bar/zh]"),
    ("各城市各产品的销售额", "sum(销售额) by 城市,产品名称 [bar/zh]"),
    ("按城市和产品统计利润", "sum(利润) by 城市,产品名称 [bar/zh]"),
    ("北京市7月份的销售额是多少", "sum(销售额) where 城市 = '北京市' in [2025年7月|2025-07-01..2025-08-01] [None/zh]"),
    ("华东、华南、华北的销售额对比", "sum(销售额) by 大区 where 大区 in ['华东', '华南', '华北'] [bar/zh]"),
    ("请画出每月销售额的折线图", "sum(销售额) by 订单日期:month [line/zh]"),
    ("用柱状图展示各城市的利润", "sum(利润) by 城市 [bar/zh]"),
    ("利润的中位数", "median(利润) [None/zh]"),
    ("最大单价", "max(单价) [None/zh]"),
    ("不包括手机壳的销售额", "sum(销售额) where 产品名称 != '手机壳' [None/zh]"),
    ("数据里有什么", "count(*) [None/zh]"),
    ("总共有多少行", "count(*) [None/zh]"),
    ("上季度利润", "sum(利润) in [2025年第三季度|2025-07-01..2025-10-01] [None/zh]"),
    ("2025-07-01到2025-07-15的销售额", "sum(销售额) in [2025-07-01至2025-07-15|2025-07-01..2025-07-16] [None/zh]"),
    ("7月1日到15日的销量", "sum(销量) in [2025-07-01至2025-07-15|2025-07-01..2025-07-16] [None/zh]"),
    ("星期几销售额最高", "sum(销售额) by 订单日期:weekday desc limit 1 [bar/zh]"),
    ("销售趋势", "sum(销售额) by 订单日期:month [line/zh]"),
    (
        "利润下降最多的城市",
        "sum(利润) by 城市 in [2025年|2025-01-01..2026-01-01] asc limit 1  VS  sum(利润) by 城市 in [2024年|2024-01-01..2025-01-01] rank=change [compare/zh]",
    ),
    ("标出利润异常的产品", "sum(利润) by 产品名称 unusual [bar/zh]"),
    ("华东占总销售额的比例", "sum(销售额) by 大区 share [bar/zh]"),
    ("销售额超过1万的订单", "count(*) where 销售额 > 10000 [None/zh]"),
    ("sales by 大区", "sum(销售额) by 大区 [bar/en]"),
    ("total 销售额 in Q3", "sum(销售额) in [Q3 2025|2025-07-01..2025-10-01] [None/en]"),
]
FLIGHTS_QUESTIONS = [
    ("Which carrier has the worst average arrival delay?", "mean(arr_delay) by carrier desc limit 1 [bar/en]"),
    ("average dep_delay by origin", "mean(dep_delay) by origin [bar/en]"),
    (
        "how many flights from JFK to LAX in July?",
        "count(*) where origin = 'JFK' & dest = 'LAX' in [July 2013|2013-07-01..2013-08-01] [None/en]",
    ),
    ("top 10 destinations by number of flights", "count(*) by dest desc limit 10 [bar/en]"),
    ("flights with departure delay over 60 minutes per carrier", "count(*) by carrier where dep_delay > 60 [bar/en]"),
    (
        "average delay for United in Q3",
        "mean(arr_delay) where carrier = 'UA' in [Q3 2013|2013-07-01..2013-10-01] [None/en]",
    ),
    ("average delay by carrier", "mean(arr_delay) by carrier [bar/en]"),
    (
        "JFK vs LGA average arrival delay per month",
        "mean(arr_delay) by sched_dep:month where origin = 'JFK'  VS  mean(arr_delay) by sched_dep:month where origin = 'LGA' [compare/en]",
    ),
    ("worst delay", "max(arr_delay) [None/en]"),
    ("busiest airport", "count(*) by origin desc limit 1 [bar/en]"),
    ("flights per month not from EWR", "count(*) by sched_dep:month where origin != 'EWR' [line/en]"),
    ("各航空公司的平均到达延误", "mean(arr_delay) by carrier [bar/zh]"),
    ("2013年7月从JFK出发的航班有多少", "count(*) where origin = 'JFK' in [2013年7月|2013-07-01..2013-08-01] [None/zh]"),
    ("哪个机场的航班最多", "count(*) by origin desc limit 1 [bar/zh]"),
    ("到达延误最严重的5家航空公司", "mean(arr_delay) by carrier desc limit 5 [bar/zh]"),
    (
        "Compare average departure delay in July with June per carrier",
        "mean(dep_delay) by carrier in [July 2013|2013-07-01..2013-08-01]  VS  mean(dep_delay) by carrier in [June 2013|2013-06-01..2013-07-01] [compare/en]",
    ),
    ("flights per hour of day", "count(*) by sched_dep:hour_of_day [bar/en]"),
    ("longest flight", "max(distance) [None/en]"),
    ("share of flights by carrier", "count(*) by carrier share [bar/en]"),
    (
        "average air time to LAX vs SFO",
        "mean(air_time) where dest = 'LAX'  VS  mean(air_time) where dest = 'SFO' [None/en]",
    ),
    ("Which airline has the most flights?", "count(*) by carrier desc limit 1 [bar/en]"),
    (
        "average arrival delay of American vs United",
        "mean(arr_delay) where carrier = 'AA'  VS  mean(arr_delay) where carrier = 'UA' [None/en]",
    ),
    ("平均起飞延误按月", "mean(dep_delay) by sched_dep:month [line/zh]"),
    ("JFK出发的平均延误", "mean(arr_delay) where origin = 'JFK' [None/zh]"),
    (
        "JFK和LGA的平均到达延误对比",
        "mean(arr_delay) where origin = 'JFK'  VS  mean(arr_delay) where origin = 'LGA' [None/zh]",
    ),
    ("飞往LAX的航班数量", "count(*) where dest = 'LAX' [None/zh]"),
    ("哪个航空公司延误最严重", "mean(arr_delay) by carrier desc limit 1 [bar/zh]"),
    ("延误超过60分钟的航班数", "count(*) where arr_delay > 60 [None/zh]"),
    ("2013年夏天的平均延误", "mean(arr_delay) in [2013年夏季|2013-06-01..2013-09-01] [None/zh]"),
    ("delayed flights per month", "count(*) by sched_dep:month where arr_delay > 0 [line/en]"),
    ("how many flights were delayed?", "count(*) where arr_delay > 0 [None/en]"),
    ("how many flights were delayed by more than 2 hours", "count(*) where arr_delay > 120 [None/en]"),
    ("total distance flown by JetBlue", "sum(distance) where carrier = 'B6' [None/en]"),
    ("on which day of the week are delays worst?", "mean(arr_delay) by sched_dep:weekday desc limit 1 [bar/en]"),
    (
        "what time of day has the worst departure delay",
        "mean(dep_delay) by sched_dep:hour_of_day desc limit 1 [bar/en]",
    ),
    (
        "median arr_delay for flights to ATL by carrier in December",
        "median(arr_delay) by carrier where dest = 'ATL' in [December 2013|2013-12-01..2014-01-01] [bar/en]",
    ),
    ("average delay on 2013-02-08", "mean(arr_delay) in [2013-02-08|2013-02-08..2013-02-09] [None/en]"),
    (
        "mean dep_delay between 2013-02-01 and 2013-02-10",
        "mean(dep_delay) in [2013-02-01 to 2013-02-10|2013-02-01..2013-02-11] [None/en]",
    ),
    (
        "Compare the average departure delay of JFK, LGA and EWR",
        "mean(dep_delay) by origin where origin in ['JFK', 'LGA', 'EWR'] [bar/en]",
    ),
    ("average departure delay by month and origin", "mean(dep_delay) by sched_dep:month,origin [line/en]"),
    ("How does arrival delay vary by hour?", "mean(arr_delay) by sched_dep:hour_of_day [bar/en]"),
    ("Newark flights in June", "count(*) where origin = 'EWR' in [June 2013|2013-06-01..2013-07-01] [None/en]"),
    ("flights from Newark to Los Angeles", "count(*) where origin = 'EWR' & dest = 'LAX' [None/en]"),
    ("how many different destinations are served from LGA", "count_distinct(dest) where origin = 'LGA' [None/en]"),
    ("worst 5 days by departure delay", "mean(dep_delay) by sched_dep:day desc limit 5 [bar/en]"),
    ("which month had the most flights", "count(*) by sched_dep:month desc limit 1 [bar/en]"),
    ("least delayed carrier", "mean(arr_delay) by carrier asc limit 1 [bar/en]"),
    ("most punctual airline", "mean(arr_delay) by carrier asc limit 1 [bar/en]"),
    (
        "UA vs DL average arrival delay in Q4",
        "mean(arr_delay) where carrier = 'UA' in [Q4 2013|2013-10-01..2014-01-01]  VS  mean(arr_delay) where carrier = 'DL' in [Q4 2013|2013-10-01..2014-01-01] [None/en]",
    ),
    (
        "show unusual days for average departure delay in 2013",
        "mean(dep_delay) by sched_dep:day in [2013|2013-01-01..2014-01-01] unusual [line/en]",
    ),
    (
        "average arrival delay per carrier in july compared to january",
        "mean(arr_delay) by carrier in [July 2013|2013-07-01..2013-08-01]  VS  mean(arr_delay) by carrier in [January 2013|2013-01-01..2013-02-01] [compare/en]",
    ),
    ("percentage of flights by origin", "count(*) by origin share [bar/en]"),
    ("distance over 2000 miles flights count by carrier", "count(*) by carrier where distance > 2000 [bar/en]"),
    (
        "Average delay, please, for each of the carriers; only LGA.",
        "mean(arr_delay) by carrier where origin = 'LGA' [bar/en]",
    ),
]
HOSPITAL_QUESTIONS = [
    ("average length of stay per department", "mean(Verweildauer_Tage) by Abteilung [bar/en]"),
    (
        "total cost by Krankenkasse in 2023",
        "sum(Gesamtkosten) by Krankenkasse in [2023|2023-01-01..2024-01-01] [bar/en]",
    ),
    ("how many patients in Kardiologie", "count_distinct(Patienten_ID) where Abteilung = 'Kardiologie' [None/en]"),
    ("durchschnittliche Wartezeit pro Abteilung", "mean(Wartezeit_min) by Abteilung [bar/en]"),
    (
        "average waiting time by department in 2024 vs 2023",
        "mean(Wartezeit_min) by Abteilung in [2024|2024-01-01..2025-01-01]  VS  mean(Wartezeit_min) by Abteilung in [2023|2023-01-01..2024-01-01] [compare/en]",
    ),
    ("average age of patients by gender", "mean(Alter) by Geschlecht [bar/en]"),
    ("各科室的平均等待时间", "mean(Wartezeit_min) by Abteilung [bar/zh]"),
    ("visits per month", "count(*) by Aufnahmedatum:month [line/en]"),
    ("number of visits per department in 2023", "count(*) by Abteilung in [2023|2023-01-01..2024-01-01] [bar/en]"),
    ("Kosten pro Abteilung", "sum(Gesamtkosten) by Abteilung [bar/en]"),
    (
        "average cost for AOK patients older than 65",
        "mean(Gesamtkosten) where Alter > 65 & Krankenkasse = 'AOK' [None/en]",
    ),
    ("longest wait by department", "max(Wartezeit_min) by Abteilung [bar/en]"),
    (
        "total cost in Q2 2024 vs Q2 2023 for Chirurgie",
        "sum(Gesamtkosten) where Abteilung = 'Chirurgie' in [Q2 2024|2024-04-01..2024-07-01]  VS  sum(Gesamtkosten) where Abteilung = 'Chirurgie' in [Q2 2023|2023-04-01..2023-07-01] [None/en]",
    ),
    ("2023年各科室的总费用", "sum(Gesamtkosten) by Abteilung in [2023年|2023-01-01..2024-01-01] [bar/zh]"),
    ("女性患者的平均年龄", "mean(Alter) where Geschlecht = 'w' [None/zh]"),
    ("average Verweildauer Tage by Krankenkasse", "mean(Verweildauer_Tage) by Krankenkasse [bar/en]"),
    ("top 3 departments by waiting time", "mean(Wartezeit_min) by Abteilung desc limit 3 [bar/en]"),
]
ENERGY_QUESTIONS = [
    ("total consumption by building", "sum(consumo_kwh) by edificio [bar/en]"),
    ("consumption per month in Madrid", "sum(consumo_kwh) by fecha:month where ciudad = 'Madrid' [line/en]"),
    ("average price in 2024", "mean(precio_unitario) in [2024|2024-01-01..2025-01-01] [None/en]"),
    (
        "cost in Q1 2024 vs Q1 2023 by city",
        "sum(coste_total) by ciudad in [Q1 2024|2024-01-01..2024-04-01]  VS  sum(coste_total) by ciudad in [Q1 2023|2023-01-01..2023-04-01] [compare/en]",
    ),
    (
        "unusual consumption days in the Biblioteca",
        "sum(consumo_kwh) by fecha:day where edificio = 'Biblioteca' unusual [line/en]",
    ),
    ("2024年各建筑的总用电量", "sum(consumo_kwh) by edificio in [2024年|2024-01-01..2025-01-01] [bar/zh]"),
    ("hourly consumption", "sum(consumo_kwh) by fecha:hour_of_day [bar/en]"),
    ("consumption by hour of day", "sum(consumo_kwh) by fecha:hour_of_day [bar/en]"),
    ("gasto total por ciudad", "sum(coste_total) by ciudad [bar/en]"),
    ("which building consumes the most electricity", "sum(consumo_kwh) by edificio desc limit 1 [bar/en]"),
    ("average temperature per month in Sevilla", "mean(temperatura) by fecha:month where ciudad = 'Sevilla' [line/en]"),
    ("hottest month", "mean(temperatura) by fecha:month desc limit 1 [line/en]"),
    ("hottest city", "mean(temperatura) by ciudad desc limit 1 [bar/en]"),
    (
        "Compare Madrid with Sevilla: consumption per month",
        "sum(consumo_kwh) by fecha:month where ciudad = 'Madrid'  VS  sum(consumo_kwh) by fecha:month where ciudad = 'Sevilla' [compare/en]",
    ),
    (
        "coste_total of Norte in December 2024 compared with the previous month",
        "sum(coste_total) where edificio = 'Norte' in [December 2024|2024-12-01..2025-01-01]  VS  sum(coste_total) where edificio = 'Norte' in [November 2024|2024-11-01..2024-12-01] [None/en]",
    ),
    ("consumption when temperature above 30", "sum(consumo_kwh) where temperatura > 30 [None/en]"),
    ("electricity consumption trend", "sum(consumo_kwh) by fecha:month [line/en]"),
    ("consumo_kwh en Madrid", "sum(consumo_kwh) where ciudad = 'Madrid' [None/en]"),
]
SURVEY_QUESTIONS = [
    ("average satisfaction by country", "mean(satisfactionScore) by country [bar/en]"),
    ("average income by age group", "mean(HouseholdIncome) by ageGroup [bar/en]"),
    ("how many respondents from New Zealand", "count(*) where country = 'New Zealand' [None/en]"),
    ("share of respondents by gender", "count(*) by gender share [bar/en]"),
    ("median household income of women", "median(HouseholdIncome) where gender = 'F' [None/en]"),
    (
        "average satisfaction score for F vs M",
        "mean(satisfactionScore) where gender = 'F'  VS  mean(satisfactionScore) where gender = 'M' [None/en]",
    ),
    (
        "satisfaction of 18-24 in Germany",
        "mean(satisfactionScore) where ageGroup = '18-24' & country = 'Germany' [None/en]",
    ),
    ("average satisfactionScore per ageGroup", "mean(satisfactionScore) by ageGroup [bar/en]"),
    ("satisfaction by gender and country", "mean(satisfactionScore) by gender,country [bar/en]"),
    ("how many people would recommend", "count(*) where recommend = 'yes' [None/en]"),
    (
        "average income in Germany vs France",
        "mean(HouseholdIncome) where country = 'Germany'  VS  mean(HouseholdIncome) where country = 'France' [None/en]",
    ),
    ("number of women", "count(*) where gender = 'F' [None/en]"),
    ("how many F respondents in China", "count(*) where gender = 'F' & country = 'China' [None/en]"),
    ("income over 100000 by country", "mean(HouseholdIncome) by country where HouseholdIncome > 100000 [bar/en]"),
    ("which country is most satisfied", "mean(satisfactionScore) by country desc limit 1 [bar/en]"),
    ("happiest country", "mean(satisfactionScore) by country desc limit 1 [bar/en]"),
    ("各国家的平均满意度", "mean(satisfactionScore) by country [bar/zh]"),
]

# Asked of tables that were made after the code had been written.
NEWCOMERS_QUESTIONS = [
    (
        "pos",
        "What was the total gross amount last month?",
        "sum(GrossAmount) in [October 2024|2024-10-01..2024-11-01] [None/en]",
    ),
    ("pos", "Average tip per waiter", "mean(Tip) by Waiter [bar/en]"),
    (
        "pos",
        "number of bills paid by card in the Old Town branch",
        "count(*) where PaymentType = 'Card' & Branch = 'Old Town' [None/en]",
    ),
    (
        "pos",
        "How many guests did Anna serve in May 2024?",
        "sum(Covers) where Waiter = 'Anna' in [May 2024|2024-05-01..2024-06-01] [None/en]",
    ),
    (
        "pos",
        "busiest hour at the Airport branch",
        "count(*) by Timestamp:hour_of_day where Branch = 'Airport' desc limit 1 [bar/en]",
    ),
    (
        "pos",
        "Compare desserts with starters by gross amount",
        "sum(GrossAmount) where ItemCategory = 'Dessert'  VS  sum(GrossAmount) where ItemCategory = 'Starter' [None/en]",
    ),
    (
        "pos",
        "top 3 menu items by revenue in summer 2024",
        "sum(GrossAmount) by MenuItem in [summer 2024|2024-06-01..2024-09-01] desc limit 3 [bar/en]",
    ),
    (
        "pos",
        "gross amount per weekday, Harbour only",
        "sum(GrossAmount) by Timestamp:weekday where Branch = 'Harbour' [bar/en]",
    ),
    (
        "pos",
        "how has the average bill changed between Q2 and Q3 2024?",
        "mean(GrossAmount) in [Q3 2024|2024-07-01..2024-10-01]  VS  mean(GrossAmount) in [Q2 2024|2024-04-01..2024-07-01] [None/en]",
    ),
    ("hr", "average salary by department", "mean(yearly_salary_eur) by dept [bar/en]"),
    ("hr", "How many women work in Engineering?", "count(*) where gender = 'female' & dept = 'Engineering' [None/en]"),
    ("hr", "headcount by site", "count(*) by site [bar/en]"),
    (
        "hr",
        "median salary of managers in Berlin vs Lyon",
        "median(yearly_salary_eur) where job_title = 'Manager' & site = 'Berlin'  VS  median(yearly_salary_eur) where job_title = 'Manager' & site = 'Lyon' [None/en]",
    ),
    ("hr", "Which job title has the best performance rating?", "mean(perf_rating) by job_title desc limit 1 [bar/en]"),
    ("hr", "employees older than 50 per department", "count(*) by dept where age > 50 [bar/en]"),
    ("hr", "share of remote employees", "count(*) by remote share [bar/en]"),
    ("hr", "average tenure of people who work remotely", "mean(tenure_years) where remote = 'yes' [None/en]"),
    ("immo", "prix moyen par ville", "mean(prix_vente) by ville [bar/en]"),
    (
        "immo",
        "average sale price per city in 2024",
        "mean(prix_vente) by ville in [2024|2024-01-01..2025-01-01] [bar/en]",
    ),
    (
        "immo",
        "most expensive Appartement sold in Nice",
        "max(prix_vente) where type_bien = 'Appartement' & ville = 'Nice' [None/en]",
    ),
    ("immo", "number of sales per month by agency", "count(*) by date_vente:month,agence [line/en]"),
    (
        "immo",
        "properties with at least 4 rooms and surface over 100 m2",
        "count(*) where nb_pieces >= 4 & surface_m2 > 100 [None/en]",
    ),
    ("shop", "各省的实付金额", "sum(实付金额) by 省份 [bar/zh]"),
    (
        "shop",
        "2024年5月哪个品牌卖得最好？",
        "sum(件数) by 品牌 in [2024年5月|2024-05-01..2024-06-01] desc limit 1 [bar/zh]",
    ),
    ("shop", "用微信支付的订单有多少笔", "count(*) where 支付方式 = '微信' [None/zh]"),
    ("shop", "金卡会员平均每单花多少钱", "mean(实付金额) where 会员等级 = '金卡' [None/zh]"),
    ("shop", "退货的订单占多少", "count(*) by 退货 share [bar/zh]"),
    (
        "shop",
        "今年第二季度和去年第二季度的金额对比，按类目",
        "sum(实付金额) by 商品类目 in [2024年第二季度|2024-04-01..2024-07-01]  VS  sum(实付金额) by 商品类目 in [2023年第二季度|2023-04-01..2023-07-01] [compare/zh]",
    ),
    ("shop", "广东和浙江每个月的销售额", "sum(实付金额) by 下单时间:month where 省份 in ['广东', '浙江'] [line/zh]"),
    ("shop", "件数大于5的食品订单", "count(*) where 件数 > 5 & 商品类目 = '食品' [None/zh]"),
    (
        "iot",
        "total output per machine in March",
        "sum(output_pcs) by machine in [March 2025|2025-03-01..2025-04-01] [bar/en]",
    ),
    ("iot", "which shift has the highest scrap?", "sum(scrap_pcs) by shift desc limit 1 [bar/en]"),
    (
        "iot",
        "downtime of M1 in June compared with May",
        "sum(downtime_min) where machine = 'M1' in [June 2025|2025-06-01..2025-07-01]  VS  sum(downtime_min) where machine = 'M1' in [May 2025|2025-05-01..2025-06-01] [None/en]",
    ),
    (
        "iot",
        "any strange temperatures on Press-7 per day in July?",
        "mean(temp_c) by ts:day where machine = 'Press-7' in [July 2025|2025-07-01..2025-08-01] unusual [line/en]",
    ),
    (
        "lib",
        "How many loans were there per month in 2024?",
        "count(*) by Borrowed On:month in [2024|2024-01-01..2025-01-01] [line/en]",
    ),
    ("lib", "total late fees by branch", "sum(Late Fee ($)) by Library Branch [bar/en]"),
    ("lib", "which genre is borrowed most often?", "count(*) by Genre desc limit 1 [bar/en]"),
    (
        "lib",
        "average days kept for e-books vs audiobooks",
        "mean(Days Kept) where Format = 'E-book'  VS  mean(Days Kept) where Format = 'Audiobook' [None/en]",
    ),
    ("lib", "what share of loans are audiobooks?", "count(*) by Format share [bar/en]"),
    ("lib", "loans kept longer than 30 days by reader type", "count(*) by Reader Type where Days Kept > 30 [bar/en]"),
    (
        "lib",
        "Compare the number of loans in October 2024 with October 2023 per genre",
        "count(*) by Genre in [October 2024|2024-10-01..2024-11-01]  VS  count(*) by Genre in [October 2023|2023-10-01..2023-11-01] [compare/en]",
    ),
    (
        "lib",
        "Tolkien books borrowed since June 2024",
        "count(*) where Author = 'Tolkien' & Format = 'Book' in [2024-06-01 to 2024-11-20|2024-06-01..2024-11-21] [None/en]",
    ),
    ("lib", "mean renewals per format, excluding Poetry", "mean(Renewals) by Format where Genre != 'Poetry' [bar/en]"),
    ("tel", "average talk time per agent", "mean(talk_sec) by agent [bar/en]"),
    (
        "tel",
        "calls per day last week",
        "count(*) by call_start:day in [week 21 of 2025|2025-05-19..2025-05-26] [line/en]",
    ),
    (
        "tel",
        "how many calls were not resolved in the billing queue?",
        "count(*) where resolved = 'false' & queue = 'billing' [None/en]",
    ),
    ("tel", "csat by queue and month", "mean(csat) by queue,call_start:month [line/en]"),
    ("tel", "which agent has the lowest csat?", "mean(csat) by agent asc limit 1 [bar/en]"),
    (
        "tel",
        "inbound vs outbound calls by month",
        "count(*) by call_start:month where direction = 'inbound'  VS  count(*) by call_start:month where direction = 'outbound' [compare/en]",
    ),
    (
        "tel",
        "median hold time for tech in Q1 2025",
        "median(hold_sec) where queue = 'tech' in [Q1 2025|2025-01-01..2025-04-01] [None/en]",
    ),
    ("tel", "busiest hour of the day", "count(*) by call_start:hour_of_day desc limit 1 [bar/en]"),
    ("tel", "show a bar chart of average hold by country", "mean(hold_sec) by country_cd [bar/en]"),
    ("tel", "unusual spikes in daily call volume", "count(*) by call_start:day unusual [line/en]"),
    ("tel", "what's the trend of customer satisfaction?", "mean(csat) by call_start:month [line/en]"),
    ("farm", "Ertrag pro Hof", "sum(Ertrag_t) by Hof [bar/en]"),
    (
        "farm",
        "total yield of Weizen in 2024",
        "sum(Ertrag_t) where Kultur = 'Weizen' in [2024|2024-01-01..2025-01-01] [None/en]",
    ),
    ("farm", "rainfall by month at Talhof", "sum(Niederschlag_mm) by Datum:month where Hof = 'Talhof' [line/en]"),
    (
        "farm",
        "average temperature in summer 2024 compared with summer 2023",
        "mean(Temperatur) in [summer 2024|2024-06-01..2024-09-01]  VS  mean(Temperatur) in [summer 2023|2023-06-01..2023-09-01] [None/en]",
    ),
    (
        "farm",
        "hottest day in July 2024",
        "mean(Temperatur) by Datum:day in [July 2024|2024-07-01..2024-08-01] desc limit 1 [line/en]",
    ),
    ("gym", "各门店的上课人数", "sum(人数) by 门店 [bar/zh]"),
    ("gym", "评分最高的教练是谁", "mean(评分) by 教练 desc limit 1 [bar/zh]"),
    ("gym", "瑜伽课平均多少人", "mean(人数) where 课程 = '瑜伽' [None/zh]"),
    ("gym", "2024年每个季度的课时费", "sum(课时费) by 开课日期:quarter in [2024年|2024-01-01..2025-01-01] [line/zh]"),
    (
        "gym",
        "徐汇店和静安店今年的人数对比",
        "sum(人数) where 门店 = '徐汇店' in [2024年|2024-01-01..2025-01-01]  VS  sum(人数) where 门店 = '静安店' in [2024年|2024-01-01..2025-01-01] [None/zh]",
    ),
    ("gym", "拳击课人数不少于20的有几节", "count(*) where 人数 >= 20 & 课程 = '拳击' [None/zh]"),
    (
        "gym",
        "哪个门店10月份人数下降最多，与9月相比",
        "sum(人数) by 门店 in [2024年10月|2024-10-01..2024-11-01] asc limit 1  VS  sum(人数) by 门店 in [2024年9月|2024-09-01..2024-10-01] rank=change [compare/zh]",
    ),
    ("gym", "阿明的平均评分", "mean(评分) where 教练 = '阿明' [None/zh]"),
    ("hotel", "total revenue per hotel in 2024", "sum(ingresos) by hotel in [2024|2024-01-01..2025-01-01] [bar/en]"),
    ("hotel", "average price per night by room type", "mean(precio_noche) by tipo_habitacion [bar/en]"),
    (
        "hotel",
        "How many bookings were cancelled last quarter?",
        "count(*) where cancelada = 'si' in [Q3 2024|2024-07-01..2024-10-01] [None/en]",
    ),
    ("hotel", "bookings by channel and country", "count(*) by canal,pais_cliente [bar/en]"),
    (
        "hotel",
        "Sol vs Luna revenue by month",
        "sum(ingresos) by fecha_entrada:month where hotel = 'Sol'  VS  sum(ingresos) by fecha_entrada:month where hotel = 'Luna' [compare/en]",
    ),
    ("hotel", "share of bookings from Italia", "count(*) by pais_cliente share [bar/en]"),
    (
        "hotel",
        "nights sold in suites in August 2024",
        "sum(noches) where tipo_habitacion = 'suite' in [August 2024|2024-08-01..2024-09-01] [None/en]",
    ),
    ("hotel", "bookings of more than 7 nights", "count(*) where noches > 7 [None/en]"),
    ("hotel", "which channel brings the most revenue?", "sum(ingresos) by canal desc limit 1 [bar/en]"),
    ("hotel", "revenue excluding cancelled bookings", "sum(ingresos) where cancelada = 'no' [None/en]"),
    ("fund", "average pledged amount by category", "mean(PledgedUSD) by MainCategory [bar/en]"),
    (
        "fund",
        "How many projects were successful in 2023?",
        "count(*) where State = 'successful' in [2023|2023-01-01..2024-01-01] [None/en]",
    ),
    ("fund", "top 10 projects by backers", "sum(Backers) by ProjectTitle desc limit 10 [bar/en]"),
    ("fund", "median goal of failed projects", "median(GoalUSD) where State = 'failed' [None/en]"),
    ("fund", "projects launched per quarter", "count(*) by LaunchDate:quarter [line/en]"),
    (
        "fund",
        "Compare pledged money in GB with CA",
        "sum(PledgedUSD) where Country = 'GB'  VS  sum(PledgedUSD) where Country = 'CA' [None/en]",
    ),
    (
        "fund",
        "which category had the most backers in H1 2024",
        "sum(Backers) by MainCategory in [H1 2024|2024-01-01..2024-07-01] desc limit 1 [bar/en]",
    ),
    (
        "fund",
        "projects with a goal between 10,000 and 20,000 USD",
        "count(*) where GoalUSD >= 10000 & GoalUSD <= 20000 [None/en]",
    ),
    (
        "fund",
        "average duration of Games and Film projects",
        "mean(DurationDays) where MainCategory in ['Games', 'Film'] [None/en]",
    ),
    (
        "fund",
        "did backers grow from 2023 to 2024?",
        "sum(Backers) in [2024|2024-01-01..2025-01-01]  VS  sum(Backers) in [2023|2023-01-01..2024-01-01] [None/en]",
    ),
    ("air", "average PM25 per station", "mean(pm25) by station_name [bar/en]"),
    (
        "air",
        "highest no2 in Harbor in January 2024",
        "max(no2) where station_name = 'Harbor' in [January 2024|2024-01-01..2024-02-01] [None/en]",
    ),
    (
        "air",
        "monthly precipitation at Ring Road",
        "sum(precip_mm) by obs_date:month where station_name = 'Ring Road' [line/en]",
    ),
    ("air", "which station is the most humid?", "mean(humidity_pct) by station_name desc limit 1 [bar/en]"),
    ("air", "wind speed above 15 by station", "mean(wind_speed_ms) by station_name where wind_speed_ms > 15 [bar/en]"),
    (
        "air",
        "find days with unusual pm25 in 2024",
        "sum(pm25) by obs_date:day in [2024|2024-01-01..2025-01-01] unusual [line/en]",
    ),
    (
        "air",
        "rain this year compared to last year, per station",
        "sum(precip_mm) by station_name in [2024|2024-01-01..2025-01-01]  VS  sum(precip_mm) by station_name in [2023|2023-01-01..2024-01-01] [compare/en]",
    ),
    ("air", "rainiest month", "sum(precip_mm) by obs_date:month desc limit 1 [line/en]"),
    ("工单", "各部门的平均处理时长", "mean(处理时长(小时)) by 处理部门 [bar/zh]"),
    ("工单", "高优先级工单有多少", "count(*) where 优先级 = '高' [None/zh]"),
    ("工单", "还有多少处理中的工单", "count(*) where 状态 = '处理中' [None/zh]"),
    ("工单", "按月统计工单数量", "count(*) by 创建时间:month [line/zh]"),
    ("工单", "哪个客户的工单最多", "count(*) by 客户名称 desc limit 1 [bar/zh]"),
    ("工单", "满意度最低的部门", "mean(满意度评分) by 处理部门 asc limit 1 [bar/zh]"),
    ("工单", "处理时长超过24小时的工单，按部门", "count(*) by 处理部门 where 处理时长(小时) > 24 [bar/zh]"),
    (
        "工单",
        "2024年10月和9月的工单数对比",
        "count(*) in [2024年10月|2024-10-01..2024-11-01]  VS  count(*) in [2024年9月|2024-09-01..2024-10-01] [None/zh]",
    ),
    (
        "工单",
        "蓝天科技今年的平均满意度",
        "mean(满意度评分) where 客户名称 = '蓝天科技' in [2024年|2024-01-01..2025-01-01] [None/zh]",
    ),
    ("工单", "各优先级工单占比", "count(*) by 优先级 share [bar/zh]"),
    ("bike", "average duration per start station", "mean(durationMin) by startStation [bar/en]"),
    ("bike", "trips per month", "count(*) by started_at:month [line/en]"),
    ("bike", "how many rides did casual members take?", "count(*) where memberType = 'Casual' [None/en]"),
    (
        "bike",
        "average fare for casual vs subscriber",
        "mean(fare_eur) where memberType = 'Casual'  VS  mean(fare_eur) where memberType = 'Subscriber' [None/en]",
    ),
    ("bike", "most popular start station", "count(*) by startStation desc limit 1 [bar/en]"),
    (
        "bike",
        "total distance by member type in June",
        "sum(dist_km) by memberType in [June 2024|2024-06-01..2024-07-01] [bar/en]",
    ),
    ("bike", "trips from Zoo to Uni", "count(*) where startStation = 'Zoo' & end_station = 'Uni' [None/en]"),
    ("bike", "trips longer than 20 minutes", "count(*) where durationMin > 20 [None/en]"),
    ("bike", "busiest hour", "count(*) by started_at:hour_of_day desc limit 1 [bar/en]"),
    ("bike", "Zoo出发的行程数", "count(*) where startStation = 'Zoo' [None/zh]"),
    ("bike", "average trip duration by weekday", "mean(durationMin) by started_at:weekday [bar/en]"),
    ("kpi", "revenue per store", "sum(Umsatz (EUR)) by Filiale [bar/en]"),
    ("kpi", "Umsatz pro Filiale", "sum(Umsatz (EUR)) by Filiale [bar/en]"),
    ("kpi", "sales by month and branch", "sum(Umsatz (EUR)) by Monat:month,Filiale [line/en]"),
    (
        "kpi",
        "Berlin vs Hamburg revenue",
        "sum(Umsatz (EUR)) where Filiale = 'Berlin'  VS  sum(Umsatz (EUR)) where Filiale = 'Hamburg' [None/en]",
    ),
    ("kpi", "return rate by store", "mean(Retourenquote) by Filiale [bar/en]"),
    (
        "kpi",
        "turnover in February 2024 compared with January",
        "sum(Umsatz (EUR)) in [February 2024|2024-02-01..2024-03-01]  VS  sum(Umsatz (EUR)) in [January 2024|2024-01-01..2024-02-01] [None/en]",
    ),
    ("kpi", "各门店的营业额", "sum(Umsatz (EUR)) by Filiale [bar/zh]"),
    ("kpi", "二月份的销量", "sum(Menge) in [2024年2月|2024-02-01..2024-03-01] [None/zh]"),
    (
        "kpi",
        "average monthly revenue in Hamburg",
        "mean(Umsatz (EUR)) by Monat:month where Filiale = 'Hamburg' [line/en]",
    ),
    ("kpi", "which store sold the most", "sum(Umsatz (EUR)) by Filiale desc limit 1 [bar/en]"),
    ("kpi", "quantity in Q1", "sum(Menge) in [Q1 2024|2024-01-01..2024-04-01] [None/en]"),
    ("panel", "average life expectancy by country", "mean(life_exp) by country [bar/en]"),
    ("panel", "population by country in 2016", "sum(population) by country in [2016|2016-01-01..2017-01-01] [bar/en]"),
    (
        "panel",
        "gdp per capita of Germany vs France",
        "mean(gdp_per_capita) where country = 'Germany'  VS  mean(gdp_per_capita) where country = 'France' [None/en]",
    ),
    (
        "panel",
        "population growth from 2015 to 2016 by country",
        "sum(population) by country in [2016|2016-01-01..2017-01-01]  VS  sum(population) by country in [2015|2015-01-01..2016-01-01] [compare/en]",
    ),
    ("panel", "which country has the highest gdp", "mean(gdp_per_capita) by country desc limit 1 [bar/en]"),
    ("panel", "各国人口", "sum(population) by country [bar/zh]"),
    ("tickets", "how many open tickets", "count(*) where Status = 'Open' [None/en]"),
    ("tickets", "tickets by team and priority", "count(*) by Team,Priority [bar/en]"),
    ("tickets", "average hours to resolve by team", "mean(Hours to resolve) by Team [bar/en]"),
    ("tickets", "high priority tickets per month", "count(*) by Opened:month where Priority = 'High' [line/en]"),
    ("tickets", "average resolution time for network", "mean(Hours to resolve) where Team = 'Network' [None/en]"),
    ("tickets", "how many tickets were reopened", "count(*) where Reopened = 'yes' [None/en]"),
    ("tickets", "share of tickets by status", "count(*) by Status share [bar/en]"),
    (
        "tickets",
        "closed tickets in February",
        "count(*) where Status = 'Closed' in [February 2025|2025-02-01..2025-03-01] [None/en]",
    ),
    ("tickets", "tickets with more than 8 hours to resolve", "count(*) where Hours to resolve > 8 [None/en]"),
    (
        "tickets",
        "which team has the most high priority tickets?",
        "count(*) by Team where Priority = 'High' desc limit 1 [bar/en]",
    ),
    ("sales", "what is in the data?", "count(*) [None/en]"),
    ("sales", "top 5 orders by revenue", "sum(Revenue (USD)) by order_id desc limit 5 [bar/en]"),
    ("sales", "largest order", "max(Revenue (USD)) [None/en]"),
    ("sales", "the 3 most expensive orders", "mean(unit_price) by order_id desc limit 3 [bar/en]"),
]

QUESTIONS = [
    (table, question, expected)
    for table, cases in {
        "sales": SALES_QUESTIONS,
        "zh": ZH_QUESTIONS,
        "flights": FLIGHTS_QUESTIONS,
        "hospital": HOSPITAL_QUESTIONS,
        "energy": ENERGY_QUESTIONS,
        "survey": SURVEY_QUESTIONS,
    }.items()
    for question, expected in cases
] + NEWCOMERS_QUESTIONS


@pytest.mark.parametrize(("table", "question", "expected"), QUESTIONS)
def test_question_is_read_as_is_said_back_and_survives_json(table, question, expected):
    intent = grammar(table).read(question)
    assert in_a_line(intent) == expected
    assert from_dict(Intent, json.loads(json.dumps(to_dict(intent)))) == intent
    assert intent.reading.endswith("." if intent.language == "en" else "。")
    assert intent.compare_to is None or (intent.compare_to.order, intent.compare_to.limit) == ("natural", None)


def test_a_comparison_says_both_periods_with_their_days():
    reading = grammar("sales").read("Compare Q3 revenue per region with Q2 and mark unusual changes").reading
    assert reading == (
        "Sum of Revenue (USD) per Region; Q3 2025 (2025-07-01 to 2025-09-30); compared with Q2 2025 "
        "(2025-04-01 to 2025-06-30); unusual values marked."
    )


def test_the_reading_is_in_the_language_of_the_question():
    reading = grammar("zh").read("华东第三季度利润最高的三个城市").reading
    assert reading == (
        "按城市统计利润的总和；条件：大区 = 华东；2025年第三季度（2025-07-01 至 2025-09-30）；按数值从高到低；前 3 个。"
    )


@pytest.mark.parametrize(
    ("table", "question", "note"),
    [
        ("sales", "revnue by region", "'revnue' is read as 'revenue'."),
        ("sales", "turnover by region", "'turnover' is read as Revenue (USD)."),
        ("sales", "revenue in July", "'July' names no year; the latest one in the data, 2025, is taken."),
        ("sales", "revenue last month", "'last month' is counted from the data's last day, 2025-09-30."),
        ("sales", "top products", "No measure was named; Revenue (USD) is taken."),
        ("sales", "revenue in 2025", "The data covers 2024-01-02 to 2025-09-30, so only a part of 2025."),
        ("sales", "please present revenue by region frobnicatingly", "Not understood and left out: frobnicatingly."),
        ("sales", "revenue and qty by region", "One measure at a time: Revenue (USD) is answered, 'qty' is left out."),
        ("flights", "average delay", "'delay' may be any of dep_delay, arr_delay; arr_delay is taken."),
        ("flights", "flights of United", "'United' is read as United Air Lines Inc. (carrier)."),
        ("flights", "flights LGA", "'LGA' is a value of origin, dest; origin is taken."),
        ("zh", "7月的销售额", "“7月”没有指明年份，取数据中最近的 2025 年。"),
    ],
)
def test_nothing_is_assumed_silently(table, question, note):
    assert note in grammar(table).read(question).notes


def test_today_counts_only_while_the_data_is_live():
    live = grammar("sales").read("revenue last month", today=dt.date(2025, 10, 2))
    assert live.query.period is not None
    assert live.query.period.start == dt.date(2025, 9, 1)
    stale = grammar("sales").read("revenue last month", today=dt.date(2026, 3, 1))
    assert stale.query.period is not None
    assert stale.query.period.start == dt.date(2025, 8, 1)


@pytest.mark.parametrize(
    ("question", "table"),
    [
        ("average arrival delay by carrier", "flights"),
        ("各大区的利润", "销售明细"),
        ("satisfaction by gender", "survey"),
    ],
)
def test_the_table_that_knows_the_words_is_asked(question, table):
    several = Grammar(
        [from_dict(TableProfile, TABLES[name]) for name in ("sales", "zh", "flights", "hospital", "survey")]
    )
    assert several.read(question).query.table == table
