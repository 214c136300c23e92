"""Reason codes as sentences, in English and Chinese. A code without a sentence of its own is named as it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal

__all__ = ["REASONS", "age_text", "clock_text", "reason_text", "sentence"]

REASONS: Final[dict[str, tuple[str, str]]] = {
    "attempt_timeout": ("it did not answer in time", "没有及时响应"),
    "call_timeout": ("it did not answer in time", "没有及时响应"),
    "task_timeout": ("it took longer than its share of the time", "超出了分配给它的时间"),
    "deadline_exceeded": ("the time budget was used up", "时间预算已用完"),
    "first_item_timeout": ("it did not begin to answer in time", "没有及时开始响应"),
    "idle_timeout": ("it stopped in the middle of its answer", "响应中途停顿"),
    "total_timeout": ("its answer took too long", "响应时间过长"),
    "timeout": ("it did not answer in time", "没有及时响应"),
    "queue_full": ("too many requests are waiting for it", "等待它的请求过多"),
    "queue_timeout": ("it was too busy", "它过于繁忙"),
    "evicted": ("more important work took its place", "为更重要的任务让位"),
    "breaker_open": ("it has been failing and is being left alone for now", "它近期频繁失败，暂停使用"),
    "doomed": ("it could not have answered in the time left", "剩余时间内不可能完成"),
    "unaffordable": ("there was too little time left for it", "剩余时间不足"),
    "rate_limited": ("its rate limit is used up", "已达到速率限制"),
    "downstream_unavailable": ("it cannot be reached", "无法连接"),
    "downstream_rejected": ("it refused the request", "它拒绝了请求"),
    "downstream_error": ("it failed", "它出错了"),
    "empty_result": ("it answered with nothing", "返回了空结果"),
    "malformed_result": ("its answer could not be read", "返回的内容无法读取"),
    "result_too_large": ("its answer was too large", "返回的内容过大"),
    "result_unserialisable": ("its answer was no plain data", "返回的不是普通数据"),
    "stream_cut": ("its answer broke off", "响应中断"),
    "tool_failed": ("it failed with an error of its own", "它自身出错"),
    "bad_input": ("what it was given did not fit", "输入不符合要求"),
    "dependency_failed": ("something that it needs is missing", "缺少它所依赖的结果"),
    "not_understood": ("it was not understood", "未能理解"),
    "not_started": ("there was no time left to start it", "没有时间启动"),
    "mode_fast": ("it is optional and a fast answer was asked for", "属于可选内容，而请求了快速回答"),
    "condition_false": ("nobody needs it in this case", "这种情况下不需要"),
    "time_short": ("there was no time to go on", "没有时间继续"),
    "turn_limit": ("it took more steps than are allowed", "步骤数超出了限制"),
    "call_limit": ("it made as many calls as are allowed", "调用次数已达上限"),
    "depth_limit": ("it was handed on too often", "转交层级过深"),
    "loop_detected": ("it kept doing the same", "它一直在重复同样的操作"),
    "empty_replies": ("the model said nothing", "模型没有给出内容"),
    "malformed_arguments": ("the model's calls could not be read", "模型给出的调用参数无法读取"),
    "unknown_tool": ("the model named tools that do not exist", "模型使用了不存在的工具"),
    "models_failing": ("models are failing, and a prepared answer was used", "模型大范围故障，使用了预先准备的回答"),
    "judged_poor": ("it was judged not to be good enough", "评估认为质量不足"),
    "answer_cut": ("it was cut at its length limit", "达到长度上限而被截断"),
    "model_fallback": ("another model than the usual one answered", "由备用模型回答"),
    "model_stale": ("the model could not be reached and an earlier answer was used", "模型无法访问，使用了先前的回答"),
    "too_many_calls": ("the run had made all the calls it may", "已达到本次运行的调用上限"),
    "too_many_items": ("there were more items than it takes", "条目超出了可处理的数量"),
    "abandoned": ("it did not stop when told to and was abandoned", "无法停止，已被放弃"),
    "shutting_down": ("the server was about to end", "服务即将停止"),
    "run_cancelled": ("the run was cancelled", "运行已取消"),
    "approval_rejected": ("a person said no to it", "被人工拒绝"),
    "approval_expired": ("nobody approved it in time", "未在期限内获得批准"),
    "approval_needed": ("a person would have had to approve it", "需要人工批准"),
    "outcome_unknown": ("it may have happened before", "它可能已经执行过"),
    "lease_lost": ("this process had to leave it to others", "本进程须将其交给其他进程"),
    "memory_lost": ("it could not be read in time", "没有及时读取到"),
    "store_error": ("it could not be written down first", "无法事先记录"),
    "truncated": ("it was cut short", "被截断"),
    "internal_error": ("of a defect of ours", "内部错误"),
}


def reason_text(reason: str, language: Literal["en", "zh"]) -> str:
    """The reason in words."""
    words = REASONS.get(reason)
    if words is None:
        return reason.replace("_", " ")
    return words[1] if language == "zh" else words[0]


def age_text(age: float, language: Literal["en", "zh"]) -> str:
    """An age in the largest unit that fits: ``5 min``, ``3 小时``."""
    for size, en, zh in ((86400.0, "days", "天"), (3600.0, "h", "小时"), (60.0, "min", "分钟")):
        if age >= size:
            return f"{age / size:.0f} {zh if language == 'zh' else en}"
    return f"{age:.0f} {'秒' if language == 'zh' else 's'}"


def clock_text(at: float, now: float) -> str:
    """A moment (seconds since the epoch) as people read it: ``14:02 UTC``, with its day when that is not today's."""
    try:
        moment, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    except (OverflowError, OSError, ValueError):
        return "?"
    return moment.strftime("%H:%M UTC" if moment.date() == today.date() else "%Y-%m-%d %H:%M UTC")


def sentence(
    title: str,
    kind: Literal["missing", "stale", "substituted", "truncated", "suspicious"],
    reason: str,
    age: float | None,
    language: Literal["en", "zh"],
    now: float | None = None,
) -> str:
    """What falls short and why, for people; with `now` (seconds since the epoch) the moment that it is of, too."""
    why = reason_text(reason, language)
    of = None if now is None or age is None else clock_text(now - age, now)
    if language == "zh":
        what = {
            "missing": "缺失",
            "stale": f"使用了 {age_text(age or 0.0, language)}前的结果，可能已过时"
            if of is None
            else f"截至 {of}（{age_text(age or 0.0, language)}前），可能已过时",
            "substituted": "由替代来源提供",
            "truncated": "不完整",
            "suspicious": "存疑",
        }[kind]
        return f"“{title}”{what}：{why}。"
    what = {
        "missing": "is missing",
        "stale": f"is from {age_text(age or 0.0, language)} ago and may be out of date"
        if of is None
        else f"is as of {of}, {age_text(age or 0.0, language)} ago, and may be out of date",
        "substituted": "comes from a substitute",
        "truncated": "is incomplete",
        "suspicious": "is doubtful",
    }[kind]
    return f"“{title}” {what}: {why}."
