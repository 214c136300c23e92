"""Conditions in the words that people use: what is left out, either of two, spelled numbers, units, weekdays."""

import pytest
from tests.examples.asking import Asked

from failsoft.examples.analyst.grammar import QuestionError
from failsoft.examples.analyst.grammar.alternatives import Placed, _one_of
from failsoft.examples.analyst.spec import Filter

LOANS = """
    loan_id,reader,kind,borrowed_at,due,returned,pages
    1,Ann,adult,2024-01-02,2024-01-16,2024-01-10,100
    2,Bob,child,2024-01-05,2024-01-19,,200
    3,Ann,adult,2024-02-01,2024-02-15,2024-02-20,150
    4,Cid,senior,2024-02-10,2024-02-24,,300
    5,Bob,child,2024-03-01,2024-03-15,2024-03-02,120
    6,Ann,adult,2024-03-03,2024-03-17,,90
    7,Dan,child,2024-03-31,2024-04-14,2024-04-01,75
"""
STAYS = """
    case,ward,admitted,length_of_stay_days,bill_eur,wait,weight_kg
    1,North,2024-03-01,3,500,20,70
    2,North,2024-03-02,9,1500,40,81
    3,South,2024-03-08,14,2500,60,55.5
    4,South,2024-03-11,15,900,80,90
    5,West,2024-03-17,30,4000,100,64
    6,West,2024-03-25,7,1200,10,77
    7,North,2024-04-01,8,1000,15,60
"""
HITS = """
    at,method,path,status,response_ms
    2024-05-01 08:00:00,GET,/cart,200,120
    2024-05-01 09:00:00,POST,/login,404,3100
    2024-05-02 09:30:00,GET,/login,500,90
    2024-05-03 10:00:00,POST,/checkout,200,2500
    2024-05-04 11:00:00,GET,/checkout,302,700
    2024-05-05 12:00:00,POST,/login,500,1500
    2024-05-06 13:00:00,GET,/,404,80
"""
SALES_ZH = """
    日期,地区,产品,销售额
    2024-05-01,华东,手机,100
    2024-05-04,华北,电脑,250
    2024-05-11,华南,手机,70
    2024-05-25,华东,电脑,330
    2024-06-01,西南,手机,45
"""
BAKERY_DE = """
    Datum;Filiale;Artikel;Umsatz
    05.01.2024;Mitte;Brezel;10
    06.04.2024;Nord;Brot;20
    13.07.2024;Mitte;Brot;40
    01.08.2024;Süd;Brezel;80
    30.12.2024;Nord;Kuchen;160
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    made: dict[str, Asked] = {}

    def asked(name: str, text: str) -> Asked:
        if name not in made:
            made[name] = Asked(tmp_path_factory.mktemp(name), **{name: text})
        return made[name]

    return asked


TABLES = {"loans": LOANS, "stays": STAYS, "hits": HITS, "verkauf": SALES_ZH, "bakery": BAKERY_DE}


def check(ask, table: str, question: str, truth: str) -> None:
    """The answer is the aggregate of the rows for which a condition in SQL holds."""
    measure, _, condition = truth.partition(" where ")
    asked = ask(table, TABLES[table])
    assert asked.total(question) == asked.sql(f"select {measure} from {table} where {condition or 'true'}")


@pytest.mark.parametrize(
    ("table", "question", "truth"),
    [
        ("loans", "how many loans were not returned yet?", "count(*) where returned is null"),
        ("loans", "how many loans have not yet been returned", "count(*) where returned is null"),
        ("loans", "how many unreturned loans", "count(*) where returned is null"),
        ("loans", "how many loans are still out", "count(*) where returned is null"),
        ("loans", "how many returned loans", "count(*) where returned is not null"),
        ("loans", "number of loans not borrowed by Ann", "count(*) where reader <> 'Ann'"),
        ("loans", "pages of loans other than Ann", "sum(pages) where reader <> 'Ann'"),
        ("loans", "pages outside adult", "sum(pages) where kind <> 'adult'"),
        ("verkauf", "华东以外的销售额", "sum(销售额) where 地区 <> '华东'"),
        ("verkauf", "华东和华北之外的销售额", "sum(销售额) where 地区 not in ('华东', '华北')"),
        ("verkauf", "除华东以外的销售额", "sum(销售额) where 地区 <> '华东'"),
        ("bakery", "Umsatz außer Nord", "sum(Umsatz) where Filiale <> 'Nord'"),
        ("bakery", "Umsatz ausser Nord", "sum(Umsatz) where Filiale <> 'Nord'"),
        ("bakery", "Umsatz ohne Brezel", "sum(Umsatz) where Artikel <> 'Brezel'"),
        ("bakery", "Umsatz nicht in Mitte", "sum(Umsatz) where Filiale <> 'Mitte'"),
    ],
)
def test_what_is_to_be_left_out_is_left_out(ask, table, question, truth):
    check(ask, table, question, truth)


@pytest.mark.parametrize(
    ("table", "question", "truth"),
    [
        ("hits", "how many rows with status = 404 or status = 500", "count(*) where status in (404, 500)"),
        ("hits", "how many rows with status 404 or 500", "count(*) where status in (404, 500)"),
        ("hits", "how many rows where method = GET or status = 500", "count(*) where method = 'GET' or status = 500"),
        ("hits", "how many rows with status below 300 or above 499", "count(*) where status < 300 or status > 499"),
        (
            "hits",
            "rows where path = /cart or response_ms > 2000",
            "count(*) where path = '/cart' or response_ms > 2000",
        ),
        ("loans", "pages borrowed by Ann or senior", "sum(pages) where reader = 'Ann' or kind = 'senior'"),
        ("verkauf", "华东或手机的销售额", "sum(销售额) where 地区 = '华东' or 产品 = '手机'"),
        ("bakery", "Umsatz von Brot oder Mitte", "sum(Umsatz) where Artikel = 'Brot' or Filiale = 'Mitte'"),
        (
            "bakery",
            "Umsatz von Brot in Mitte oder Nord",
            "sum(Umsatz) where Artikel = 'Brot' and Filiale in ('Mitte', 'Nord')",
        ),
    ],
)
def test_or_lets_either_pass(ask, table, question, truth):
    check(ask, table, question, truth)


def test_and_mixed_with_or_is_refused_where_nothing_says_what_comes_first(ask):
    with pytest.raises(QuestionError) as caught:
        ask("hits", HITS).read("how many rows are GET and status is 404 or response_ms > 2000")
    assert caught.value.code == "ambiguous"


@pytest.mark.parametrize(
    ("table", "question", "truth"),
    [
        (
            "stays",
            "how many rows with a length of stay longer than two weeks",
            "count(*) where length_of_stay_days > 14",
        ),
        ("stays", "how many rows with length of stay over 1 week", "count(*) where length_of_stay_days > 7"),
        ("stays", "how many rows stayed more than a week", "count(*) where length_of_stay_days > 7"),
        ("stays", "how many rows with length of stay over 216 hours", "count(*) where length_of_stay_days > 9"),
        ("stays", "rows that stayed between one and two weeks", "count(*) where length_of_stay_days between 7 and 14"),
        ("stays", "rows with a bill over a thousand", "count(*) where bill_eur > 1000"),
        ("stays", "rows with a bill above two thousand four hundred", "count(*) where bill_eur > 2400"),
        ("stays", "rows with weight under 70000 g", "count(*) where weight_kg < 70"),
        ("stays", "length_of_stay_days 超过两周的有多少", "count(*) where length_of_stay_days > 14"),
        ("hits", "how many rows with response_ms over 2 seconds", "count(*) where response_ms > 2000"),
        ("hits", "how many rows with response_ms under half a second", "count(*) where response_ms < 500"),
    ],
)
def test_numbers_in_words_and_units_come_in_the_unit_of_the_column(ask, table, question, truth):
    check(ask, table, question, truth)


MEMBERS = """
    member,plan,joined,cancelled_on,visits,age,used_kwh
    a,basic,2023-12-31,,40,22,1
    b,basic,2024-01-01,2024-05-02,20,31,2
    c,plus,2024-02-05,,7,29,3
    d,plus,2024-02-06,2024-02-20,90,64,4
"""
TABLES["members"] = MEMBERS


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("total visits of members older than thirty", "sum(visits) where age > 30"),
        ("total visits of members younger than 30", "sum(visits) where age < 30"),
        ("members who joined in 2024", "count(*) where year(joined) = 2024"),
        ("number of members who joined on a Monday", "count(*) where isodow(joined) = 1"),
        ("how many members have cancelled", "count(*) where cancelled_on is not null"),
        ("how many members never cancelled", "count(*) where cancelled_on is null"),
        ("active members", "count(*) where cancelled_on is null"),
        ("used_kwh in kWh", "sum(used_kwh)"),
    ],
)
def test_verbs_and_comparatives_mean_the_columns_that_they_name(ask, question, truth):
    check(ask, "members", question, truth)


ORDERS_DE = """
    Auftragsnr;Bestelldatum;Lieferdatum;Land;Produkt;Menge;storniert;Betrag
    A1;01.02.2024;04.03.2024;Schweiz;Bolzen;3;nein;100
    A2;05.03.2024;20.03.2024;Polen;Mutter;5;ja;200
    A3;09.03.2024;01.04.2024;Schweiz;Mutter;7;nein;400
    A4;20.03.2024;;;Bolzen;9;nein;800
"""
TABLES["auftrag"] = ORDERS_DE


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("Betrag der im März gelieferten Aufträge", "sum(Betrag) where month(Lieferdatum) = 3"),
        ("Betrag der im März bestellten Aufträge", "sum(Betrag) where month(Bestelldatum) = 3"),
        ("wie viele Aufträge wurden noch nicht geliefert", "count(*) where Lieferdatum is null"),
        ("Betrag ohne Land", "sum(Betrag) where Land is null"),
        ("how many rows were not storniert", "count(*) where storniert = 'nein'"),
        ("total Betrag of Land other than Polen", "sum(Betrag) where Land is distinct from 'Polen'"),
        ("wie viele Mutter wurden bestellt", "sum(Menge) where Produkt = 'Mutter'"),
    ],
)
def test_german_participles_name_dates_and_yes_or_no(ask, question, truth):
    check(ask, "auftrag", question, truth)


LENDING_ZH = """
    借阅号,书类,读者,借出日期,归还日期,逾期天数,罚款,已付
    J1,小说,学生,2024-01-02,2024-01-20,0,0,是
    J2,历史,教师,2024-02-02,,15,7.5,否
    J3,历史,学生,2024-02-09,2024-03-02,3,1.5,否
    J4,科技,市民,2024-03-01,2024-03-31,20,10,是
"""
TABLES["lending"] = LENDING_ZH


@pytest.mark.parametrize(
    ("table", "question", "truth"),
    [
        ("lending", "学生或历史类的平均罚款", "avg(罚款) where 读者 = '学生' or 书类 = '历史'"),
        ("lending", "历史的罚款总额", "sum(罚款) where 书类 = '历史'"),
        ("lending", "逾期超过两周的有多少", "count(*) where 逾期天数 > 14"),
        ("lending", "三月归还的历史有多少", "count(*) where month(归还日期) = 3 and 书类 = '历史'"),
        ("auftrag", "wie viele Aufträge mit Betrag über dreihundert", "count(*) where Betrag > 300"),
        ("bakery", "Umsatz der Bakery mit Filiale Mitte", "sum(Umsatz) where Filiale = 'Mitte'"),
        ("bakery", "Umsatz of everything except Brot", "sum(Umsatz) where Artikel <> 'Brot'"),
        ("auftrag", "how many not storniert Mutter", "sum(Menge) where storniert = 'nein' and Produkt = 'Mutter'"),
    ],
)
def test_values_called_like_other_words_and_what_a_negation_is_of(ask, table, question, truth):
    check(ask, table, question, truth)


BOOKINGS = """
    booking_id,room,booked_on,check_in,check_out,nights,guests,rate
    B1,single,2025-01-03,2025-01-11,2025-01-12,1,2,70
    B2,double,2025-01-04,2025-01-13,2025-01-23,10,4,95
    B3,suite,2025-02-08,2025-02-09,2025-02-11,2,1,600000
    B4,suite,2025-02-09,2025-03-01,2025-03-31,30,3,700
"""
TABLES["bookings"] = BOOKINGS


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("bookings with check in on a Saturday", "count(*) where isodow(check_in) = 6"),
        ("bookings made on a Saturday", "count(*) where isodow(booked_on) = 6"),
        ("guests checking out on or before 11 February", "sum(guests) where check_out <= '2025-02-11'"),
        ("average rate with more than two guests", "avg(rate) where guests > 2"),
        ("bookings with a rate above half a million", "count(*) where rate > 500000"),
    ],
)
def test_what_stands_behind_a_number_or_before_a_day_is_what_it_is_of(ask, question, truth):
    check(ask, "bookings", question, truth)


def test_another_unit_than_the_columns_and_a_mean_per_head_of_no_heads_are_told(ask):
    assert ask("members", MEMBERS).read("used_kwh in MWh").unread == ("in MWh",)
    assert ask("members", MEMBERS).read("人均used_kwh").unread == ()
    assert ask("verkauf", SALES_ZH).read("人均销售额").unread == ("人均",)


def test_a_unit_that_nobody_can_convert_is_told(ask):
    intent = ask("stays", STAYS).read("how many rows with a wait over 2 hours")
    assert intent.unread == ("hours",)
    assert any("unit of wait is not known" in note for note in intent.notes)


@pytest.mark.parametrize(
    ("table", "question", "truth"),
    [
        ("stays", "total bill on weekends", "sum(bill_eur) where isodow(admitted) in (6, 7)"),
        ("stays", "how many rows on weekdays", "count(*) where isodow(admitted) < 6"),
        ("stays", "bill_eur on Mondays and Fridays", "sum(bill_eur) where isodow(admitted) in (1, 5)"),
        ("stays", "bill_eur from Friday to Sunday", "sum(bill_eur) where isodow(admitted) >= 5"),
        ("stays", "total bill except on Sundays", "sum(bill_eur) where isodow(admitted) <> 7"),
        ("verkauf", "周末的销售额", "sum(销售额) where isodow(日期) in (6, 7)"),
        ("bakery", "Umsatz am Wochenende", "sum(Umsatz) where isodow(Datum) in (6, 7)"),
        ("bakery", "Umsatz montags", "sum(Umsatz) where isodow(Datum) = 1"),
        ("stays", "total bill in early March", "sum(bill_eur) where admitted < '2024-03-11'"),
        ("stays", "total bill in mid-March", "sum(bill_eur) where admitted between '2024-03-11' and '2024-03-20'"),
        ("stays", "total bill in late March", "sum(bill_eur) where admitted between '2024-03-21' and '2024-03-31'"),
        ("stays", "total bill until the end of March", "sum(bill_eur) where admitted < '2024-04-01'"),
        ("verkauf", "5月上旬的销售额", "sum(销售额) where 日期 between '2024-05-01' and '2024-05-10'"),
        ("bakery", "Umsatz im dritten Quartal", "sum(Umsatz) where quarter(Datum) = 3"),
        ("bakery", "Umsatz im zweiten Halbjahr", "sum(Umsatz) where month(Datum) > 6"),
        ("stays", "total bill on or after 11 March", "sum(bill_eur) where admitted >= '2024-03-11'"),
        ("stays", "total bill on or before 11 March", "sum(bill_eur) where admitted <= '2024-03-11'"),
        ("stays", "total bill from 11 March on", "sum(bill_eur) where admitted >= '2024-03-11'"),
        ("stays", "total bill after 11 March", "sum(bill_eur) where admitted > '2024-03-11'"),
        ("verkauf", "5月11日起的销售额", "sum(销售额) where 日期 >= '2024-05-11'"),
        ("bakery", "Umsatz ab 13. Juli", "sum(Umsatz) where Datum >= '2024-07-13'"),
        ("bakery", "Umsatz bis 13. Juli", "sum(Umsatz) where Datum <= '2024-07-13'"),
    ],
)
def test_days_and_parts_of_the_year_are_those_that_are_said(ask, table, question, truth):
    check(ask, table, question, truth)


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("how many rows to /checkout", "count(*) where path = '/checkout'"),
        ("how many POST to /login", "count(*) where path = '/login' and method = 'POST'"),
        ("how many rows with path = /", "count(*) where path = '/'"),
    ],
)
def test_paths_are_values(ask, question, truth):
    check(ask, "hits", question, truth)


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("how many loans were returned in February", "count(*) where month(returned) = 2"),
        ("how many loans due in March", "count(*) where month(due) = 3"),
        ("loans borrowed in January", "count(*) where month(borrowed_at) = 1"),
        (
            "loans borrowed in February and returned in February",
            "count(*) where month(borrowed_at) = 2 and month(returned) = 2",
        ),
        (
            "loans borrowed in January that were not returned",
            "count(*) where month(borrowed_at) = 1 and returned is null",
        ),
    ],
)
def test_a_period_is_of_the_date_that_the_question_names(ask, question, truth):
    check(ask, "loans", question, truth)


def test_the_date_that_is_taken_is_told_where_the_question_names_none(ask):
    loans = ask("loans", LOANS)
    (note,) = [note for note in loans.read("how many loans in March").notes if "names no date" in note]
    assert "borrowed_at is taken" in note
    assert not any("names no date" in note for note in loans.read("loans due in March").notes)
    assert "due in March 2024" in loans.read("loans due in March").reading


def test_alternatives_of_different_parts_of_a_date_stay_apart():
    def placed(at, value, grain):
        return Placed(at, at + 1, Filter("day", "in", [value], grain=grain))

    (either,) = _one_of([placed(0, 6, "weekday"), placed(2, 6, "month_of_year")])
    assert {either.grain, *(one.grain for one in either.alternatives)} == {"weekday", "month_of_year"}
