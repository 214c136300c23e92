"""Words that say what to do with the data: aggregates, rankings, groupings, comparisons, comparators, calendar words.

One row per sense: ``kind payload | English | Chinese``, with ``_`` for a space inside a phrase. A word may have several
senses (``may``, ``over``, ``second``); the readers of the sentence decide by what stands beside it.
"""
# ruff: noqa: E501 - the table is read by rows; wrapped rows would be harder to check.

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PHRASE_TABLE = """
agg mean | durchschnittlich durchschnittliche durchschnittlicher durchschnittlichen durchschnitt promedio moyenne moyen moyens average mean avg averaged on_average averages | 平均 均值 平均值 平均数 人均 平均每
agg median | median medians typical | 中位数 中值 中位
agg sum | total sum totals sums combined cumulative altogether in_total summed overall aggregate | 总 总和 总计 合计 总共 一共 累计 共计 总的 共
agg max | maximum max maximal | 最大值 最高值 峰值
agg min | minimum min minimal | 最小值 最低值 谷值
high high | highest most largest biggest greatest maximum max top leading strongest | 最高 最大 最多 最 排名第一 第一名 最强
high low | lowest least smallest fewest minimum min weakest | 最低 最小 最少 最弱
high good | best better_than_all | 最好 最佳 最优
high bad | worst | 最差 最糟 最坏 最严重
top desc | top first_n | 前 排名前 前面 top
top asc | bottom last_n | 后 倒数 末 排名后 倒数前
busiest desc | busiest most_popular most_common most_frequent most_frequently most_often most_used commonest | 最繁忙 最忙 最受欢迎 最常见 最热门 最频繁
busiest asc | least_popular least_common rarest quietest least_busy least_frequent | 最不常见 最冷门 最清闲 最不受欢迎
adjhigh expensive | priciest most_expensive costliest dearest | 最贵 最昂贵
adjhigh cheap | cheapest least_expensive | 最便宜
adjhigh sold | best_selling bestselling top_selling most_sold bestseller bestsellers best_sellers | 最畅销 卖得最好 卖得最多 畅销
adjhigh long | longest | 最长 最久
adjhigh short | shortest | 最短
adjhigh far | farthest furthest | 最远
adjhigh near | nearest closest | 最近的
adjhigh heavy | heaviest | 最重
adjhigh light | lightest | 最轻
adjhigh hot | hottest warmest | 最热 最暖
adjhigh cold | coldest coolest | 最冷
adjhigh old | oldest | 最老 最年长
adjhigh young | youngest | 最年轻
adjhigh tall | tallest | 最高大
adjhigh fast | fastest quickest | 最快
adjhigh slow | slowest | 最慢
adjhigh wet | wettest rainiest | 最湿
adjhigh profitable | most_profitable | 最赚钱
adjhigh delayed | most_delayed | 最晚点
adjhigh punctual | most_punctual least_delayed | 最准时 最准点
adjhigh satisfied | most_satisfied happiest | 最满意
adjhigh rated | best_rated top_rated highest_rated | 评价最高
adjlow rated | worst_rated lowest_rated least_satisfied | 最不满意
adjhigh paid | best_paid highest_paid |
adjhigh populous | most_populous | 人口最多
count many | how_many number_of numbers_of count_of counts_of no_of count how_often how_many_times the_number_of amount_of quantity_of | 多少 多少个 多少次 多少条 多少笔 多少家 多少种 多少位 多少名 几个 几家 几次 几种 几条 几笔 有几 几节 几场 几堂 几趟 几台 几辆 几套 几间 几人 几位 几名 多少节 多少场 多少台 多少辆 多少套 有几节 有几场 有几位 计数 次数 个数
countpost many | volume | 数 数量 总数 个数 量 笔数 件数 次数 数目
rowvalue yes | aov average_order_value average_basket basket_value | 客单价 笔单价 订单均价 每单 每笔
much much | how_much how_long how_high how_big how_large how_old how_good how_bad how_far how_low how_small | 多少钱
distinct yes | distinct unique different | 不同 去重 不重复 独立 唯一
per per | pro je por par nach per by each every for_each for_every of_each in_each from_each at_each across grouped_by group_by grouped broken_down_by broken_down split_by split_up_by split breakdown_by breakdown_of breakdown segmented_by according_to depending_on for_all among within_each one_for_each | 按 按照 每 每个 每一 每一个 每家 每位 每种 各 各个 各自 各家 各类 各种 不同 分 依 根据 每名 每条
which which | which what whose who | 哪个 哪些 哪家 哪种 哪 哪一个 哪位 哪几个 哪一家 哪一 哪类 什么 哪条 哪几家 哪座
who who | who whom | 谁
when when | when | 什么时候 何时
where where | where | 哪里 哪儿 何处 什么地方
compare vs | compare compared comparing comparison vs versus against relative_to compared_with compared_to in_comparison_with in_comparison_to as_opposed_to side_by_side | 比较 对比 相比 比 较 相较 相较于 对照 相对 相对于 比起 相比于
refer before | vs versus against relative_to compared_with compared_to in_comparison_with in_comparison_to as_opposed_to than over from_the | 比 较 相比 相较于 对比 相对于 比起 相比于 相较 同
refer after | | 相比 比较 相较 比起来 对比
diff diff | difference differences gap differ differs different_from minus | 差异 差距 差别 差额 相差 区别 差 差值
change any | change changed changes changing develop developed development evolve evolved shift | 变化 变动 增减 波动 改变 涨跌 增幅 变化率
change up | growth grow grew grown growing increase increased increases increasing rise rose risen rising gain gained improve improved improvement | 增长 增加 上升 提升 上涨 提高 涨 增速 增长率 涨幅
change down | decrease decreased decreases decline declined drop dropped drops fall fell fallen falling decreasing shrink shrank lost | 下降 减少 下跌 下滑 降低 跌 跌幅 降幅
yoy year | year_over_year year_on_year yoy y/y | 同比
yoy previous | month_over_month month_on_month mom m/m quarter_over_quarter quarter_on_quarter qoq q/q week_over_week wow day_over_day | 环比
yoygrain year | year_over_year year_on_year yoy |
yoygrain month | month_over_month month_on_month mom |
yoygrain quarter | quarter_over_quarter quarter_on_quarter qoq |
yoygrain week | week_over_week wow |
yoygrain day | day_over_day |
others others | others other_ones the_others rest the_rest everyone_else all_others all_other everything_else the_other_ones | 其他 其余 其它
share share | share shares percentage percentages percent_of proportion proportions fraction ratio pct contribution contributions composition market_share what_percent percent % | 占比 份额 比例 百分比 占 比重 构成 百分之几 占多少
unusual unusual | unusual unusually anomaly anomalies anomalous outlier outliers strange abnormal spike spikes odd suspicious irregular weird unexpected peculiar | 异常 反常 不正常 离群 异常值 突变 不寻常 异动
beyond yes | standard_deviation standard_deviations std_dev stddev std variance percentile percentiles quantile quantiles quartile quartiles correlation correlations correlate correlates correlated covariance regression skewness range_of spread_of running_total running_sum running_totals moving_average rolling_average forecast forecasts forecasted predict predicted prediction predictions extrapolate | 标准差 方差 相关性 相关系数 百分位 分位数 四分位 移动平均 滚动平均 逐期累计 预测 预计 回归
trend trend | trend trends trending over_time timeline time_series history trajectory curve through_time in_the_course_of_time across_time | 趋势 走势 随时间 变化趋势 时间序列 变化情况 曲线 历史
chart bar | bar_chart bars bar_graph bar_charts column_chart barchart bar histogram | 柱状图 条形图 柱形图 直方图
chart line | line_chart line_graph line_charts linechart line_plot curve | 折线图 曲线图 线图
chart any | chart graph plot diagram visualise visualize visualization picture draw | 图 图表 画 绘制 画图 作图
chart other | pie_chart pie scatter_plot heatmap map donut | 饼图 饼状图 散点图 热力图 地图
not not | not neither nor except excluding exclude excludes without other_than besides but_not apart_from non isn't aren't wasn't except_for no_longer never ignoring ignore leaving_out leave_out omit omitting aside_from anything_but everything_but all_but not_including not_counting save_for rather_than excl outside outside_of ausser ohne nicht kein keine keinen keiner | 不包括 不含 除了 除 排除 不是 非 剔除 去掉 除去 不算 没有 不包含 不在 未 不 没 无
join and | and & as_well_as plus both | 、 和 与 及 以及 跟 同 还有
join or | or either | 或 或者 还是
dir from | from out_of departing_from leaving starting_at leaving_from | 从 自 由
dir to | to into towards bound_for heading_to arriving_at arriving_in going_to flying_to | 到 飞往 前往 去 至 往 飞到 飞
slot in | in at for on of with from to by within during inside among where having via | 在 于 对于
range to | to through thru till until up_to - ~ to_the | 到 至 ~
between between | between in_between | 之间 介于 间
since since | since on_or_after from_and_including as_of no_earlier_than not_before ab seit from_the_start_of starting_from starting starting_in beginning_in | 自从 以来 起 开始
after after | after later_than following | 之后 以后 后
before before | before prior_to earlier_than preceding | 之前 以前 前
until until | on_or_before no_later_than not_after up_to_and_including until till up_to up_until through | 截至 截止 直到 为止
op > | > over above more_than greater_than larger_than bigger_than higher_than longer_than later_than older_than exceeding exceeds exceed exceeded heavier_than farther_than further_than beyond in_excess_of greater upwards_of faster_than | 超过 大于 高于 多于 超出 超 长于 早于
op >= | >= at_least no_less_than not_less_than minimum_of not_below no_fewer_than greater_than_or_equal_to from_at_least | 至少 不少于 不低于 起码 大于等于 不小于 最少
op < | < under below less_than fewer_than lower_than smaller_than shorter_than cheaper_than younger_than lighter_than slower_than nearer_than | 小于 低于 少于 不到 不足 短于
op <= | <= at_most no_more_than not_more_than maximum_of not_above less_than_or_equal_to up_to not_exceeding | 不超过 至多 不高于 小于等于 不大于 不多于 最多
op = | = == equals equal_to equal exactly is are was were be being | 等于 为 是
op != | != <> not_equal_to is_not are_not was_not isn't | 不等于 不为 不是
op contains | contains containing contain including_the_word that_contain with_the_word | 包含 含有 含
post >= | or_more or_above or_higher or_over or_longer and_above and_up and_more or_older or_later or_greater or_after and_later and_after + | 以上 及以上 或以上 或更多
post <= | or_less or_below or_fewer or_lower or_under or_shorter and_below or_younger or_earlier and_earlier or_before and_before | 以下 及以下 或以下 以内 之内 或更少
grain hour | hour hours hourly | 小时 钟头 每小时
grain hour_of_day | hour_of_day hour_of_the_day hours_of_the_day time_of_day hours_of_day | 时段 钟点
grain day | day days daily date dates | 天 日 每日 日期 号 每天 逐日
grain week | week weeks weekly woche wochen semana | 周 星期 礼拜 每周 逐周
grain month | month months monthly monat monate | 月 月份 每月 逐月 月度
grain quarter | quarter quarters quarterly quartal trimestre | 季度 季 逐季 每季
grain year | year years yearly annual annually jahr jahre | 年 年份 年度 每年 逐年
per per | | 各国 各省 各州 各市 各店 各区 各地 各科 各校
which which | | 哪国 哪省 哪市 哪店 哪区 星期几 周几 礼拜几 几月 几月份
grain month | | 几月 几月份
grain weekday | weekday weekdays day_of_week day_of_the_week days_of_the_week days_of_week | 星期几 周几 礼拜几
grain month_of_year | month_of_year month_of_the_year calendar_month months_of_the_year |
adverb grain | hourly daily weekly monthly quarterly yearly annual annually | 每小时 每日 每天 每周 每月 每季 每年 逐日 逐周 逐月 逐季 逐年 月度 年度
month 1 | january jan |
month 2 | february feb |
month 3 | march mar |
month 4 | april apr |
month 5 | may |
month 6 | june jun |
month 7 | july jul |
month 8 | august aug |
month 9 | september sep sept |
month 10 | october oct |
month 11 | november nov |
month 12 | december dec |
half 1 | h1 1h first_half | 上半年
half 2 | h2 2h second_half last_half latter_half | 下半年
season spring | spring springtime | 春季 春天
season summer | summer summertime | 夏季 夏天
season autumn | autumn fall | 秋季 秋天
season winter | winter wintertime | 冬季 冬天
dayname day | workday workdays working_day working_days business_day business_days montag montags dienstag dienstags mittwoch mittwochs donnerstag donnerstags freitag freitags samstag samstags sonnabend sonntag sonntags wochenende wochenenden werktag werktage werktags werktagen monday mondays tuesday tuesdays wednesday wednesdays thursday thursdays friday fridays saturday saturdays sunday sundays weekend weekends | 周一 周二 周三 周四 周五 周六 周日 星期一 星期二 星期三 星期四 星期五 星期六 星期日 星期天 周末 工作日
ordinal 1 | first 1st | 第一
ordinal 2 | second 2nd | 第二
ordinal 3 | third 3rd | 第三
ordinal 4 | fourth 4th | 第四
nth nth | | 第
num 1 | one |
num 2 | two | 两
num 3 | three |
num 4 | four |
num 5 | five |
num 6 | six |
num 7 | seven |
num 8 | eight |
num 9 | nine |
num 10 | ten |
num 12 | twelve dozen |
num 15 | fifteen |
num 20 | twenty |
num 30 | thirty |
num 50 | fifty |
num 100 | hundred |
rel last | last previous prior past preceding | 上 上个 上一 上一个 前一 前一个 过去 过去的
rel recent | most_recent latest recent trailing newest | 最近 近 最近的 最新 最新的 近的
rel this | this current | 本 这 这个 当前 这一 当 该
rel before | before earlier ago prior previously | 前
rel same | same_period same_quarter same_month same_time same_week | 同期
relday today | today | 今天 今日
relday yesterday | yesterday | 昨天 昨日
relyear 0 | ytd year_to_date | 今年 本年 年初至今 今年以来
relyear -1 | a_year_earlier a_year_ago a_year_before the_year_before one_year_earlier | 去年 上年
relyear -2 | | 前年
counter unit | | 个 名 家 种 位 条 笔 次 大 项 款 节 场 堂 趟 辆 台 套 间 座
sort sort | rank ranked ranking sort sorted rank_by ranked_by ordered_by sort_by sorted_by | 排序 排名 排列 排行 排行榜
dirword desc | descending desc highest_first largest_first high_to_low largest_to_smallest from_high_to_low decreasing_order | 降序 从高到低 从大到小 由高到低 从多到少 由大到小
dirword asc | ascending asc lowest_first smallest_first low_to_high smallest_to_largest from_low_to_high increasing_order | 升序 从低到高 从小到大 由低到高 从少到多
third 1 | early early_in beginning_of the_beginning_of start_of the_start_of anfang | 上旬 初
third 2 | mid middle_of the_middle_of mitte | 中旬
third 3 | late late_in end_of the_end_of ende | 下旬 底
agg mean | im_durchschnitt im_schnitt mittlere mittlerer mittleren mittelwert |
agg sum | gesamt gesamte gesamter gesamten insgesamt |
high high | höchste höchsten höchster höchstes meiste meisten größte größten größter grösste grössten |
high low | niedrigste niedrigsten niedrigster niedrigstes geringste geringsten kleinste kleinsten wenigsten |
count many | wie_viele wieviele anzahl_der anzahl_von |
much much | wie_viel wieviel wie_hoch wie_lange |
which which | welche welcher welches welchen welchem |
who who | wer |
join and | und sowie |
join or | oder |
op > | mehr_als größer_als grösser_als höher_als länger_als schwerer_als älter_als über |
op < | weniger_als kleiner_als kürzer_als niedriger_als leichter_als jünger_als unter |
op >= | mindestens wenigstens |
op <= | höchstens bis_zu |
between between | zwischen |
range to | bis |
until until | bis |
before before | vor |
dir from | von |
share share | anteil anteile prozentsatz |
compare vs | vergleich vergleiche verglichen gegenüber |
trend trend | verlauf entwicklung |
grain hour | stunde stunden |
grain day | tag tage tagen täglich |
grain week | wöchentlich |
grain month | monaten monats monatlich |
grain quarter | quartale quartals quartalsweise |
grain year | jahren jahres jährlich |
adverb grain | täglich wöchentlich monatlich quartalsweise jährlich |
month 1 | januar jänner |
month 2 | februar |
month 3 | märz |
month 5 | mai |
month 6 | juni |
month 7 | juli |
month 10 | oktober okt |
month 12 | dezember dez |
half 1 | erstes_halbjahr ersten_halbjahr erste_halbjahr |
half 2 | zweites_halbjahr zweiten_halbjahr zweite_halbjahr |
ordinal 1 | erstes ersten erste erster |
ordinal 2 | zweites zweiten zweite zweiter |
ordinal 3 | drittes dritten dritte dritter |
ordinal 4 | viertes vierten vierte vierter |
rel last | letzten letzte letzter letztes vergangenen vergangene vorigen voriges |
rel this | dieses diesen diesem dieser |
with with | mit |
describe describe | what's_there describe overview summarize summarise what_is_in what's_in what_does_the_data describe_the_data what_data schema what_columns which_columns columns fields what_is_this | 概览 概况 描述 有哪些数据 有什么数据 里有什么 里面有什么 有什么 有哪些内容 有哪些信息 介绍 有哪些列 有哪些字段 字段 数据概况
with with | with having that_have who_have which_have that_has which_has that_had whose |
all all | all every | 所有 全部
"""

STOP_WORDS = """
a an the this that these those there it its it's i i'd i'm me my we us our you your they them their he she his her
is are was were be been being am do does did doing done have has had having can could will would shall should might must
please kindly show shows showing display give gives gave tell list get find see look view want need like know let let's make
print return calculate compute report present provide explain answer question me out down across up about into onto
in on at of for from to with by as per than then so if when while during within through because due regarding concerning
how what which who whose where why much many more most less least very really just only also too again still even ever now
and or but nor not no yes yeah ok okay hi hello hey dear thanks thank you
any some each every everything anything all both other another such same own entire whole overall full complete whatever various respective
data dataset table csv file database sheet spreadsheet figures figure numbers result results value values info information
detail details statistics stats statistic analysis analyse analyze breakdown overview
actual exact global worldwide combined raw respective annual net_of company-wide
first second go went come came happen happened happens take took taken seem seems look looks looked think thought
perform performed performance doing done run ran sell sells sold selling buy bought made got getting earn earned generate generated
bring brought booked recorded reported observed measured registered had spent occur occurred take place
compare compared versus vs against between among along using use used based according together respectively
higher lower larger better well nice quick quickly fast slow slowly
early late later earlier recently currently today usual usually typically normally generally mostly mainly exactly
around approximately roughly about near nearly almost period periods time times moment point date span range interval
one ones thing things kind sort way ways case level levels order terms term respect regard basis side end start beginning
business company our ours store's world us's company's
highest-ever company-wide available given following above below instead rather whether did didn't don't doesn't
average-ish actually basically simply exactly clearly shown sorted sort descending ascending
individual single particular specific certain separate separately different
wonder wondering curious interested help mark marks flag flags highlight highlighted detect spot identify indicate notice
chart distributed distribution charts graph graphs plot plots diagram bar line visual picture image draw
come comes contribute contributes contributed account accounts accounted belong belongs exist exists include includes including
vary varies varied varying served serve serves distributed there's what's who's where's how's i've we've been that's
lot lots plenty bunch
number numbers amount amounts count counts
percent percentage
their theirs each's
as-is etc e.g eg i.e ie
s t d ll re ve m
der die das den dem des ein eine einen einem einer eines im auf aus bei mit von vom zu zum zur für ist sind war waren
wurde wurden worden wird werden hat haben hatte hatten gab gibt es wie auch nur noch bitte zeige zeig mir alle jede jeder
verkauft verkaufte verkauften gekauft
fly flew flown flying travel travelled traveled depart go going goes leave leaves left
live lives lived work works worked pay pays paid cost costs
"""

STOP_CHINESE = """
的 了 吗 呢 请 请问 是 有 在 里 中 内 我 我们 我想 想 看 看看 看一下 显示 给 给出 给我 列出 告诉 告诉我 计算 统计 查询 分析 一下 知道 要 帮 帮我 画 画出 如何
怎么样 怎么 怎样 情况 数据 结果 整体 总体 全年 全体 个 名 家 种 位 次 笔 条 的话 分别 吧 啊 都 也 并 并且 且 同时 然后 又 还 让 把 对 对于 关于 其中 里面 以 之 从 到 与 和 及 或
上 下 出 多 少 高 低 大 小 最 更 比较 相比 与之 于 被 由 用 以及 那 那么 这 这些 那些 哪 几 分 各 每 表 表格 文件 是多少 为多少 多少 标出 标记 标注 指出 找出 有没有
是否 什么 为什么 原因 做 做一个 一个 一张 张 生成 展示 呈现 绘制 图表 求 求出 得出 汇总 汇报 报告 时间 期间 时期 时候 方面 进行 发生 出现 以外 之外 外 包括 使用 通过 根据
它们 他们 它 他 她 你 您 能 可以 能否 可否 会 应该 需要 想要 希望 较 差 值 率 额 量 数 起来 分布 排名 排序 明细 详情 一共 总共 共 全部 所有 每个 各个 花 花了 花费了 卖 卖出 卖了 销售 售出 产生 买
飞 飞往 飞行 排 排在 来 去 自 来自 属于 所 所属 至 目前 现在 当前 怎 样 呀 哦 嗯 谢谢 您好 你好 级 性 者 们 等 类 下来 一 二 两 三 性别为
"""


def _parse(table: str) -> Mapping[tuple[str, ...], Mapping[str, str]]:
    phrases: dict[tuple[str, ...], dict[str, str]] = {}
    for line in table.strip().splitlines():
        head, english, chinese = (part.strip() for part in line.split("|"))
        kind, payload = head.split(" ", 1)
        for phrase in english.split():
            phrases.setdefault(tuple(phrase.split("_")), {})[kind] = payload
        for phrase in chinese.split():
            phrases.setdefault(tuple(phrase), {})[kind] = payload
    return MappingProxyType({key: MappingProxyType(senses) for key, senses in phrases.items()})


PHRASES: Mapping[tuple[str, ...], Mapping[str, str]] = _parse(PHRASE_TABLE)
STOPS = frozenset(STOP_WORDS.split()) | frozenset(STOP_CHINESE.split())
