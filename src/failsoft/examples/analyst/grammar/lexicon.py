"""The concepts that questions and column names share: one table, documented in ``docs/questions.md``.

A concept is what a word means regardless of language: *turnover*, *销售额* and *Umsatz* are all ``revenue``. The table
holds general vocabulary only, never a column of a particular data set. Each row reads

    id | kind | English | Chinese | other languages and abbreviations, for column names only

with ``_`` for a space inside a word. Kinds: ``m`` something measured, ``m-`` measured and better when low, ``e`` a
thing or attribute that rows are grouped by, ``q`` a qualifier ("departure", "scheduled"), ``g`` a filler in names
("id", "total"), ``t`` a date or a part of one.
"""
# ruff: noqa: E501 - the table is read by rows; wrapped rows would be harder to check.

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

CONCEPT_TABLE = """
revenue | m | revenue sales sale turnover income proceeds takings earnings gmv | 收入 销售额 营业额 营收 销售收入 营业收入 销售金额 销售总额 成交额 流水 营业总额 | umsatz erlös erlöse einnahmen ventas ingresos facturación chiffre_affaires chiffre_d_affaires ca recettes ventes fatturato ricavi vendite receita rev
amount | m | amount amt | 金额 总额 总金额 数额 款额 | betrag summe gesamtbetrag importe monto montant importo
quantity | m | quantity quantities qty unit units volume volumes pieces pcs | 数量 销量 销售量 件数 销售数量 | menge stückzahl anzahl cantidad unidades quantité quantita quant
cost | m- | cost costs expense expenses spend spending expenditure outlay cogs charge charges fee fees | 成本 费用 支出 花费 开支 花销 | kosten ausgaben aufwand coste costo costes gasto gastos coût coûts dépenses
profit | m | profit profits gain | 利润 盈利 毛利 净利 收益 净利润 毛利润 | gewinn ertrag ganancia beneficio bénéfice profitto utile
margin | m | margin margins | 利润率 毛利率 | marge margen margine
price | m- | price prices pricing fare fares tariff | 价格 单价 售价 票价 价钱 房价 均价 | preis einzelpreis precio prix prezzo preço prc
discount | m | discount discounts rebate | 折扣 优惠 折扣率 优惠金额 | rabatt descuento remise sconto disc
tax | m- | tax taxes vat | 税 税额 税费 | steuer impuesto taxe
delay | m- | delay delays delayed late lateness | 延误 晚点 延迟 误点 延误时间 延误分钟 | verspätung retraso retard ritardo
duration | m | duration length runtime | 时长 持续时间 耗时 用时 | dauer duración durée durata dur
distance | m | distance distances mileage | 距离 里程 路程 航程 | entfernung distanz distancia distanza dist
speed | m | speed velocity | 速度 | geschwindigkeit velocidad vitesse
weight | m | weight | 重量 体重 | gewicht peso poids
height | m | height | 身高 高度 | grösse größe altura hauteur
temperature | m | temperature temperatures temp | 温度 气温 | temperatur temperatura température
humidity | m | humidity | 湿度 | feuchtigkeit luftfeuchtigkeit humedad humidité
pressure | m | pressure | 压力 气压 血压 | druck luftdruck presión
wind | m | wind | 风速 风 | viento vent
precipitation | m | precipitation rain rainfall precip | 降水 降雨 降雨量 降水量 | niederschlag lluvia precipitación pluie
consumption | m- | consumption usage | 用量 消耗 消费量 用电量 能耗 耗电量 消耗量 | verbrauch consumo consommation kwh mwh
production | m | production output | 产量 产出 发电量 | produktion erzeugung producción
energy | q | energy electricity power | 能源 电力 能量 | energie strom energía electricidad électricité
score | m | score scores rating ratings grade grades stars | 评分 得分 分数 打分 星级 成绩 | bewertung note noten nota notas zensur puntuación calificación valoración punkte
satisfaction | m | satisfaction satisfied nps happiness | 满意度 | csat ces zufriedenheit satisfacción
age | m | age ages aged | 年龄 | alter edad âge
salary | m | salary salaries wage wages pay compensation | 工资 薪资 薪水 薪酬 月薪 年薪 | gehalt lohn salario sueldo salaire stipendio
population | m | population inhabitants | 人口 | bevölkerung einwohner población
wait | m- | wait waits waiting | 等待 等候 等待时间 等候时间 候诊 | wartezeit espera attente
stay | m | stay stays length_of_stay los | 住院天数 住院时间 住院时长 停留 | aufenthalt verweildauer estancia séjour
error | m- | error errors defect defects failure failures fault faults | 错误 缺陷 故障 次品 不良品 | fehler mängel errores defectos
absence | m- | absence absences absenteeism | 缺勤 缺课 | fehltage fehlzeiten ausencia ausencias absence inasistencias faltas
complaint | m- | complaint complaints | 投诉 | beschwerde beschwerden queja quejas reclamación
stock | m | stock inventory | 库存 存货 库存量 | bestand lagerbestand inventario
budget | m | budget budgets | 预算 | presupuesto
click | m | click clicks | 点击 点击量 | klicks clics
view | m | views pageviews impressions | 浏览 浏览量 曝光 曝光量 | aufrufe vistas vues
seat | m | seat seats capacity | 座位 容量 座位数 | sitze plätze kapazität asientos capacidad
passenger | m | passenger passengers riders | 乘客 旅客 载客量 乘客数 | fahrgäste passagiere pasajeros passagers
emission | m- | emission emissions co2 | 排放 排放量 碳排放 | emissionen emisiones
rate | m | rate rates | 率 | quote rate tasa taux
visit | e | visit visits admission admissions appointment appointments | 就诊 访问 门诊 入院 | besuch besuche visita visitas visite consulta
return | e | return returns returned refund refunds refunded | 退货 退款 | retoure retouren devolución devoluciones
cancel | e | cancelled canceled cancellation cancellations | 取消 | storniert cancelado annulé
region | e | region regions area areas territory territories zone zones district districts | 地区 区域 大区 片区 各区 哪区 各地 | gebiet bezirk región zona régione regione reg
country | e | country countries nation nations | 国家 国别 各国 哪国 | land pais país pays paese ctry
state | e | state states province provinces | 省 省份 州 各省 哪省 各州 | bundesland provincia estado
city | e | city cities town towns | 城市 市 各市 哪市 | stadt ciudad ville città
location | e | location locations place places | 地点 位置 | standort ort lugar ubicación lieu
site | e | site sites facility facilities building buildings plant plants factory factories | 建筑 工厂 站点 园区 楼宇 | gebäude werk edificio planta bâtiment usine
store | e | store stores shop shops outlet outlets branch branches | 门店 店铺 商店 分店 网点 各店 哪店 | filiale filialen laden tienda sucursal magasin
warehouse | e | warehouse warehouses depot | 仓库 | lager almacén entrepôt
product | e | product products item items sku skus article articles goods merchandise | 产品 商品 品名 货品 | produkt artikel producto artículo produit prodotto prod
category | e | category categories class classes type types kind kinds group groups | 类别 品类 分类 类型 种类 类目 | kategorie typ art klasse categoría tipo catégorie gruppe cat
brand | e | brand brands make | 品牌 | marke marca marque
customer | e | customer customers client clients buyer buyers shopper shoppers account accounts user users member members | 客户 顾客 买家 用户 会员 | kunde kunden cliente clientes cust
segment | e | segment segments tier tiers | 客群 细分 细分市场 | segmento
channel | e | channel channels | 渠道 | kanal vertriebskanal canal
supplier | e | supplier suppliers vendor vendors seller sellers | 供应商 卖家 | lieferant proveedor fournisseur
employee | e | employee employees staff waiter waiters waitress server cashier cashiers technician technicians nurse nurses rep reps salesperson salespeople salesman agent agents worker workers representative | 员工 销售员 业务员 职员 雇员 销售人员 | mitarbeiter verkäufer kellner camarero empleado vendedor employé vendeur emp
department | e | department departments division divisions ward wards | 部门 科室 各科 | abteilung fachabteilung departamento servicio service dept
team | e | team teams | 团队 小组 | equipo équipe
order | e | order orders purchase purchases | 订单 | bestellung bestellungen auftrag pedido commande
invoice | e | invoice invoices bill bills receipt receipts | 发票 账单 | rechnung factura facture inv
transaction | e | transaction transactions deal deals | 交易 | transaktion transacción txn trx
flight | e | flight flights | 航班 班次 | flug flüge vuelo vuelos vol
airline | e | airline airlines carrier carriers | 航空公司 航司 承运人 承运商 | fluggesellschaft aerolínea compagnie
airport | e | airport airports | 机场 | flughafen aeropuerto aéroport
origin | e | origin origins departure_airport | 出发地 始发地 起点 出发机场 始发机场 起飞机场 | herkunft abflugort origen origine orig
destination | e | destination destinations arrival_airport | 目的地 到达地 终点 到达机场 目的机场 | ziel zielort destino destinazione dest
aircraft | e | aircraft plane planes airplane airplanes tail | 飞机 机尾号 机号 机型 | flugzeug avión avion
route | e | route routes | 路线 线路 航线 | strecke ruta
departure | q | departure departures departing departed depart takeoff | 出发 起飞 离港 始发 | abflug abfahrt salida départ dep
arrival | q | arrival arrivals arriving arrived arrive landing | 到达 抵达 到港 降落 | ankunft llegada arrivée arr
beginning | q | | 起始 | start begin inicio début anfang
ending | q | | 结束 | end fin ende
guest | m | guest guests covers diners visitors attendees | 客人 来客 客流 客流量 | gäste besucherzahl huéspedes comensales
floorspace | m | surface sqm floor_area living_area square_meters | 面积 建筑面积 | fläche wohnfläche superficie superficies
room | m | room rooms bedroom bedrooms | 房间 房间数 | zimmer pièce pièces habitación habitaciones chambre chambres
listing | e | listing listings property properties home homes | 房源 房产 | immobilie inmueble
call | e | call calls | 通话 来电 电话 | anruf anrufe llamada appel
booking | e | booking bookings reservation reservations rental rentals | 预订 预约 | buchung reserva réservation
event | e | event events session sessions measurement measurements reading readings shipment shipments delivery deliveries donation donations claim claims accident accidents | 记录 事故 发货 运单 包裹 快递 | ereignis messung lieferung evento envío
yield | m | yield harvest harvests harvested crop_yield | 收成 亩产 收获量 | ertrag ernte rendimiento rendement cosecha
crop | e | crop crops | 作物 农作物 | kultur feldfrucht cultivo
night | m | night nights | 晚 间夜 夜数 | noche noches nacht nächte übernachtungen nuit nuits
scheduled | q | scheduled planned | 计划 预定 | geplant planeado prévu sched
actual | q | actual | 实际 | tatsächlich real réel
hospital | e | hospital hospitals clinic clinics | 医院 诊所 | krankenhaus klinik hôpital
doctor | e | doctor doctors physician physicians | 医生 | arzt médico médecin
patient | e | patient patients | 患者 病人 | patienten paciente pacientes
diagnosis | e | diagnosis diagnoses disease diseases | 诊断 疾病 病种 | diagnose diagnóstico
insurance | e | insurance insurer insurers payer | 保险 医保 | versicherung krankenkasse kasse seguro
treatment | e | treatment treatments therapy | 治疗 | behandlung tratamiento
gender | e | gender genders sex | 性别 | geschlecht sexo género sexe
education | e | education degree | 学历 教育程度 教育 | bildung abschluss educación
occupation | e | job jobs occupation profession role position | 职业 职位 岗位 | beruf puesto
status | e | status statuses | 状态 | zustand
method | e | method methods mode modes means | 方式 方法 | methode método
payment | e | payment payments | 支付 付款 支付方式 付款方式 | zahlung zahlungsart pago paiement
priority | e | priority priorities severity urgency | 优先级 紧急程度 | priorität prioridad
device | e | device devices | 设备 终端 | gerät dispositivo
platform | e | platform platforms | 平台 | plattform plataforma
source | e | source sources | 来源 | quelle fuente
campaign | e | campaign campaigns | 活动 营销活动 | kampagne campaña
vehicle | e | vehicle vehicles car cars | 车辆 汽车 车型 | fahrzeug auto vehículo coche voiture
line | e | line lines | 线 产线 | linie línea ligne
station | e | station stations | 车站 站 | bahnhof estación gare
driver | e | driver drivers | 司机 | fahrer conductor
trip | e | trip trips ride rides journey journeys | 行程 出行 | fahrt reise viaje trajet
meter | e | meter meters | 电表 表计 | zähler contador
household | e | household households | 家庭 住户 | haushalt hogar
school | e | school schools | 学校 各校 | schule escuela école
student | e | student students pupil pupils | 学生 | schüler estudiante alumno alumnos
teacher | e | teacher teachers | 老师 教师 | lehrer profesor
course | e | course courses subject subjects | 课程 科目 学科 | kurs fach curso
ticket | e | ticket tickets case cases issue issues incident incidents | 工单 案件 事件 | vorfall incidencia
project | e | project projects | 项目 | projekt proyecto projet
machine | e | machine machines equipment | 机器 机台 | maschine máquina
sensor | e | sensor sensors | 传感器 |
author | e | author authors | 作者 | autor auteur
genre | e | genre genres | 体裁 流派 | género
film | e | film films movie movies | 电影 影片 | película
player | e | player players | 球员 选手 | spieler jugador
weather | e | weather | 天气 | wetter clima
color | e | color colour colors colours | 颜色 | farbe couleur
size | e | size sizes | 尺寸 尺码 大小 规格 | tamaño taille
respondent | e | respondent respondents participant participants | 受访者 参与者 | teilnehmer
date | t | date dates | 日期 时间 日子 | datum fecha data dt ts timestamp
time | t | time times | 时刻 | zeit uhrzeit hora heure
year | t | year years | 年 年份 年度 | jahr año annee anno yr
quarter | t | quarter quarters | 季度 季 | quartal trimestre qtr
month | t | month months | 月 月份 | monat mes mois mese mth
week | t | week weeks | 周 星期 | woche semana semaine wk
weekday | t | weekday weekdays day_of_week dow | 星期几 周几 | wochentag
day | t | day days | 天 日 号 | tag día jour giorno
hour | t | hour hours | 小时 钟头 | stunde heure hr
identifier | g | id ids identifier key uuid | 编号 编码 代码 号码 | nr num kennung nummer numero número
name | g | name names title titles | 标题 名称 姓名 名字 名 | bezeichnung nombre nom nome
code | g | code codes | 代号 | kürzel código
total | g | total | 总 合计 总计 | gesamt insgesamt tot
value | g | value values | 值 数值 | wert valor valeur valore
number | g | number count | 数 个数 | zahl cnt
level | g | level levels | 级别 等级 | stufe nivel niveau
description | g | description desc | 描述 说明 | beschreibung descripción
"""

RELATED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # When no column carries the concept itself, these may stand in for it, and the reading says so.
        "revenue": ("amount",),
        "amount": ("revenue", "cost", "price"),
        "region": ("state", "country", "city", "location"),
        "location": ("city", "region", "site", "store", "country", "state", "airport", "station"),
        "site": ("location",),
        "store": ("site", "location"),
        "state": ("region",),
        "airport": ("origin", "station"),
        "satisfaction": ("score",),
        "score": ("satisfaction",),
        "stay": ("duration",),
        "duration": ("stay", "wait"),
        "wait": ("duration",),
        "date": ("time",),
        "vehicle": ("aircraft",),
        "employee": ("driver", "teacher", "doctor"),
        "airline": ("brand",),
        "brand": ("supplier",),
        "type": ("category",),
        "status": ("state",),
        "line": ("route",),
        "route": ("line",),
        "payment": ("method",),
        "production": ("yield",),
        "yield": ("production",),
    }
)

PREFERRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # Which of several columns of one concept people mean who name none of their qualifiers.
        "delay": ("arrival",),
        "date": ("order",),
        "airport": ("origin",),
    }
)

PLACE_WORDS = ("location", "region", "city", "country", "state", "store", "site", "station", "airport")
PERSON_WORDS = ("employee", "customer", "driver", "doctor", "teacher", "player", "patient", "respondent", "author")

DIRECTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "from": frozenset({"origin", "departure", "beginning", "source"}),
        "to": frozenset({"destination", "arrival", "ending"}),
    }
)

ADJECTIVES: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        # adjective → (concepts it measures, which end "most" means)
        "expensive": (("price", "cost"), "desc"),
        "cheap": (("price", "cost"), "asc"),
        "profitable": (("profit", "margin"), "desc"),
        "delayed": (("delay",), "desc"),
        "punctual": (("delay",), "asc"),
        "sold": (("quantity", "revenue"), "desc"),
        "long": (("duration", "distance", "stay", "wait"), "desc"),
        "short": (("duration", "distance", "stay", "wait"), "asc"),
        "far": (("distance",), "desc"),
        "near": (("distance",), "asc"),
        "heavy": (("weight",), "desc"),
        "light": (("weight",), "asc"),
        "hot": (("temperature",), "desc"),
        "cold": (("temperature",), "asc"),
        "old": (("age",), "desc"),
        "young": (("age",), "asc"),
        "tall": (("height",), "desc"),
        "fast": (("speed",), "desc"),
        "slow": (("speed",), "asc"),
        "satisfied": (("satisfaction", "score"), "desc"),
        "rated": (("score", "satisfaction"), "desc"),
        "paid": (("salary",), "desc"),
        "wet": (("precipitation",), "desc"),
        "populous": (("population",), "desc"),
    }
)

ROW_CONCEPTS = frozenset(
    {"order", "transaction", "invoice", "visit", "trip", "flight", "ticket", "listing", "call", "booking", "event"}
)
"""What a row usually is where nobody said: counted with a note when the table has no column of that name."""

NOT_ADDITIVE = frozenset(
    {
        "temperature",
        "humidity",
        "pressure",
        "wind",
        "speed",
        "price",
        "margin",
        "rate",
        "score",
        "satisfaction",
        "age",
        "height",
    }
)
"""Concepts whose usual aggregate is the mean, whatever the profile says."""

ROW_WORDS = frozenset(
    [
        "row",
        "rows",
        "record",
        "records",
        "entry",
        "entries",
        "observation",
        "observations",
        "datapoint",
        "datapoints",
        "行",
        "条",
        "记录",
        "条数",
        "行数",
        "笔数",
        "条目",
        "数据量",
        "headcount",
    ]
)
PEOPLE_WORDS = frozenset(
    [
        "people",
        "person",
        "persons",
        "individual",
        "individuals",
        "respondent",
        "participant",
        "人",
        "人数",
    ]
)

UNITS = frozenset(
    [
        "pcs",
        "m2",
        "ft2",
        "m3",
        "usd",
        "eur",
        "gbp",
        "cny",
        "rmb",
        "jpy",
        "chf",
        "yuan",
        "dollar",
        "dollars",
        "euro",
        "euros",
        "kg",
        "g",
        "t",
        "ton",
        "tons",
        "tonnes",
        "km",
        "ha",
        "hectare",
        "hectares",
        "acre",
        "acres",
        "l",
        "ml",
        "liter",
        "liters",
        "litre",
        "litres",
        "gb",
        "mb",
        "kcal",
        "hpa",
        "m",
        "mile",
        "miles",
        "mi",
        "cm",
        "mm",
        "min",
        "mins",
        "minute",
        "minutes",
        "sec",
        "secs",
        "second",
        "seconds",
        "ms",
        "h",
        "hr",
        "hrs",
        "hour",
        "hours",
        "kwh",
        "mwh",
        "wh",
        "kw",
        "c",
        "celsius",
        "fahrenheit",
        "f",
        "pct",
        "percent",
        "percentage",
        "k",
        "thousand",
        "million",
        "eu",
        "us",
        "euro",
        "元",
        "万元",
        "块",
        "美元",
        "欧元",
        "分钟",
        "分",
        "秒",
        "小时",
        "公里",
        "千米",
        "米",
        "公斤",
        "千克",
        "吨",
        "度",
        "英里",
        "天",
    ]
)


_FEMALE = "f female w weiblich woman women mujer femenino femme girl 女 女性 女士 frauen 女生"
_MALE = "m male männlich man men hombre masculino homme boy 男 男性 男士 männer 男生"
VALUE_WORDS: Mapping[str, tuple[frozenset[str], ...]] = MappingProxyType(
    {
        # Values of a column of this concept that mean the same, whatever the data writes for them.
        "gender": (frozenset(_FEMALE.split()), frozenset(_MALE.split())),
    }
)


class Concept(NamedTuple):
    """One row of the table. ``asked`` are the words questions use for it, ``named`` the further ones of column names."""

    id: str
    kind: str
    better: str
    asked: tuple[str, ...]
    named: tuple[str, ...]


def _parse(table: str) -> Mapping[str, Concept]:
    concepts: dict[str, Concept] = {}
    for line in table.strip().splitlines():
        name, kind, english, chinese, other = (part.strip() for part in line.split("|"))
        asked = tuple((english + " " + chinese).split())
        better = "asc" if kind.endswith("-") else "desc"
        concepts[name] = Concept(name, kind[0], better, asked, tuple(other.split()))
    return MappingProxyType(concepts)


CONCEPTS: Mapping[str, Concept] = _parse(CONCEPT_TABLE)
