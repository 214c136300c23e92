"""What a column's name says about its values, in English and Chinese: the concepts that decide roles and defaults."""

# ruff: noqa: E501 - lists of words read better in long lines
from __future__ import annotations

import itertools
import re

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_IDENTIFIER = {"plz", "número", "id", "ids", "uuid", "guid", "key", "pk", "sku", "zip", "zipcode", "postcode", "phone", "isbn", "ean", "barcode"}  # fmt: skip
_IDENTIFYING = ("nummer", "kennung", "postleitzahl")
"""Last parts of German compounds that say so: *Kundennummer*."""
_CODE = {"code", "no", "nr", "number", "num", "ref", "serial"}
_IDENTIFIER_ZH = (
    "编号",
    "编码",
    "代码",
    "单号",
    "工号",
    "学号",
    "邮编",
    "电话",
    "手机号",
    "序号",
    "流水号",
    "身份证",
    "条码",
)
_TIME = {"date", "time", "day", "month", "quarter", "year", "week", "period", "timestamp", "datetime", "when", "ts", "dt", "ym",
         "yyyymm", "yearmonth", "hour", "at", "on", "datum", "zeit", "tag", "monat", "jahr", "quartal", "woche", "zeitpunkt", "fecha",
         "mes", "año", "día", "trimestre", "semana", "hora", "mois", "année", "jour"}  # fmt: skip
_DAY_FIRST = {"datum", "tag", "zeitpunkt", "termin", "fecha", "día", "dia", "jour", "giorno", "data", "dato", "dag"}
_TIME_ZH = ("日期", "时间", "月份", "年月", "季度", "年份", "年度", "周", "日", "月", "年")
_NOT_MAIN_TIME = {
    "birth",
    "birthday",
    "dob",
    "born",
    "updated",
    "modified",
    "deleted",
    "expiry",
    "expires",
    "due",
    "end",
}
_NOT_MAIN_TIME_ZH = ("出生", "生日", "更新", "修改", "到期", "截止")
_NOT_ADDITIVE = {
    "rate", "ratio", "percent", "percentage", "pct", "share", "price", "avg", "average", "mean", "median", "delay", "lateness",
    "temp", "temperature", "score", "rating", "stars", "grade", "age", "speed", "velocity", "humidity", "humid", "pressure", "lat",
    "latitude", "lon", "lng", "long", "longitude", "altitude", "alt", "elevation", "density", "index", "rank", "ranking",
    "probability", "prob", "likelihood", "yield", "efficiency", "utilization", "utilisation", "conversion", "ctr", "roi", "fx",
    "per", "level", "concentration", "ph", "voltage", "frequency", "latency", "dewp", "bmi", "gpa", "intensity", "fare",
    "satisfaction", "nps", "csat",
    # German, Spanish, French
    "temperatur", "preis", "kurs", "quote", "anteil", "prozent", "prozentsatz", "durchschnitt", "mittelwert", "mittel", "note",
    "noten", "zensur", "alter", "geschwindigkeit", "feuchte", "feuchtigkeit", "luftdruck", "druck", "dichte", "verspätung", "rang",
    "bewertung", "zufriedenheit", "satz", "zins", "zinssatz", "spannung", "frequenz", "wirkungsgrad", "auslastung", "höhe",
    "temperatura", "precio", "tasa", "porcentaje", "promedio", "media", "nota", "edad", "velocidad", "humedad", "presión",
    "densidad", "retraso", "puntuación", "calificación", "satisfacción", "altura",
    "température", "prix", "taux", "pourcentage", "moyenne", "âge", "vitesse", "humidité", "pression", "retard",
}  # fmt: skip
_OF_ONE = frozenset({"cost", "costs", "price", "value", "charge", "fee", "weight", "margin"})
"""What is of a single one when *unit* stands before it: ``unit_cost``."""
_COMPOUND = (
    "temperatur", "preis", "quote", "anteil", "durchschnitt", "geschwindigkeit", "feuchte", "feuchtigkeit", "druck", "dichte",
    "verspätung", "bewertung", "zufriedenheit", "zinssatz", "spannung", "wirkungsgrad", "auslastung",
)  # fmt: skip
"""Last parts of German compounds that say the same: *Außentemperatur*, *Einzelpreis*."""
_NOT_ADDITIVE_ZH = (
    "率", "比例", "占比", "比重", "百分比", "单价", "价格", "均价", "平均", "中位", "延误", "温度", "气温", "得分", "分数", "评分", "评级",
    "年龄", "速度", "湿度", "气压", "纬度", "经度", "海拔", "密度", "指数", "排名", "概率", "浓度", "延迟", "时延", "满意度", "强度", "水平",
)  # fmt: skip
_MEASURE = {
    "units", "unit", "quantity", "qty", "amount", "count", "total", "sum", "revenue", "sales", "cost", "costs", "profit", "income",
    "orders", "visits", "users", "value", "volume", "population", "budget", "spend", "hours", "minutes", "seconds", "weight", "price",
    "tons", "kg", "km", "miles", "distance", "score", "rating", "age",
}  # fmt: skip
_MEASURE_ZH = (
    "额",
    "量",
    "数",
    "收入",
    "成本",
    "利润",
    "金额",
    "费用",
    "人口",
    "预算",
    "销售",
    "得分",
    "年龄",
    "单价",
    "价格",
)
_PARTS = {
    "year": {"year", "yr", "yyyy", "fy", "年", "年份", "年度", "jahr", "año", "année"},
    "quarter": {"quarter", "qtr", "季度", "季", "quartal", "trimestre"},
    "month": {"month", "mon", "mth", "mm", "月", "月份", "monat", "mes", "mois"},
    "day": {"day", "dom", "dd", "日", "号", "tag", "día", "jour"},
    "hour": {"hour", "hr", "hh", "小时", "时", "stunde", "hora", "heure"},
    "minute": {"minute", "分", "分钟"},
    "weekday": {"weekday", "dow", "星期", "周几", "星期几", "wochentag"},
    "week": {"week", "wk", "周", "周次", "woche", "kw", "semana"},
}
_UNIT = re.compile(r"^(?P<name>.+?)\s*[(（\[](?P<unit>[^()（）\[\]]{1,16})[)）\]]\s*$")


def words(name: str) -> list[str]:
    """The lower-case words of a name: ``arrDelay_min`` → ``arr``, ``delay``, ``min``."""
    parts = re.split(r"[^0-9A-Za-zÀ-ÖØ-öø-ÿ]+", _CAMEL.sub(" ", name))
    return [p.lower() for p in parts if p]


def _says(name: str, english: set[str], chinese: tuple[str, ...]) -> bool:
    return bool(english & set(words(name))) or any(w in name for w in chinese)


def is_identifier(name: str) -> bool:
    """Whether the name says that values only tell rows apart (``order_id``, ``订单号``)."""
    parts = words(name)
    if any(w in name for w in _IDENTIFIER_ZH) or (name.endswith("号") and len(name) > 1):
        return True
    if not parts or is_measure(name):
        return False
    if parts[-1].endswith(_IDENTIFYING):
        return True
    return parts[-1] in _IDENTIFIER or (parts[-1] in _CODE and len(parts) > 1) or parts in (["code"], ["index"])


def is_time(name: str) -> bool:
    """Whether the name speaks of time."""
    return _says(name, _TIME, _TIME_ZH)


def is_european(name: str) -> bool:
    """Whether a time's name is of a language in which dates begin with the day."""
    return any(w in _DAY_FIRST or w.endswith(("datum", "zeitpunkt", "termin")) for w in words(name))


def is_side_time(name: str) -> bool:
    """Whether the name is of a time that rows have but do not happen at (a birthday, a last change)."""
    return _says(name, _NOT_MAIN_TIME, _NOT_MAIN_TIME_ZH)


def is_not_additive(name: str) -> bool:
    """Whether adding such values up is meaningless (a rate, a price, a delay, a temperature)."""
    parts = words(name)
    if any(part == "unit" and after in _OF_ONE for part, after in itertools.pairwise(parts)):
        return True
    return _says(name, _NOT_ADDITIVE, _NOT_ADDITIVE_ZH) or any(w.endswith(_COMPOUND) for w in words(name)[-1:])


def is_measure(name: str) -> bool:
    """Whether the name says that values are amounts."""
    return _says(name, _MEASURE, _MEASURE_ZH)


def time_part(name: str) -> str | None:
    """Which part of a date the column holds (``year`` … ``minute``, ``weekday``), going by its name; None when none."""
    bare = "".join(words(name)) or name.strip()
    return next((part for part, names in _PARTS.items() if bare in names or name.strip().lower() in names), None)


def split_unit(name: str) -> tuple[str, str | None]:
    """The name without a unit in parentheses, and the unit: ``销售额（万元）`` → ``销售额``, ``万元``."""
    found = _UNIT.match(name)
    return (found["name"], found["unit"].strip()) if found else (name, None)
