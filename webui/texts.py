"""Every word of the page, in each of its languages."""

from __future__ import annotations

from dataclasses import dataclass

from clients import ClientError

#: Tag of each language, as browsers send it, and its own name.
LANGUAGES = {"en": "English", "zh": "中文"}

#: Key to (English, Chinese). ``error_*`` are named as the classes of :mod:`clients.errors`.
TABLE: dict[str, tuple[str, str]] = {
    "title": ("Faces in photographs", "照片中的人脸"),
    "photographs": ("Photographs", "照片"),
    "find": ("Find faces", "检测人脸"),
    "options": ("Options", "选项"),
    "own_threshold": ("Set the score threshold here (else the model's own)", "自定义分数阈值（否则用模型自带的）"),
    "threshold": ("Score threshold", "分数阈值"),
    "threshold_info": ("Lower finds more faces, and more that are none", "越低找到的越多，误检也越多"),
    "smallest": ("Smallest face, px", "最小人脸，像素"),
    "most": ("Most faces a photograph", "每张照片最多人脸数"),
    "canvas": ("Canvas: height x width that the network runs at", "画布：网络运行的高 x 宽"),
    "canvas_info": (
        "auto fits best; native is the photograph's own size; larger finds smaller faces, and takes longer",
        "auto 最合适；native 为照片原尺寸；越大能找到越小的人脸，也越慢",
    ),
    "landmarks": ("Landmarks: eyes, nose, corners of the mouth", "关键点：双眼、鼻尖、嘴角"),
    "crops": ("Aligned crops", "对齐后的人脸"),
    "examples": ("Examples: NASA and US Navy, public domain", "示例：NASA 与美国海军，公有领域"),
    "example_astronaut": ("Astronaut", "宇航员"),
    "example_hopper": ("Hopper", "霍珀"),
    "example_both": ("Both", "两张"),
    "annotated": ("Faces found", "检测结果"),
    "faces": ("Crops", "人脸"),
    "table": ("All faces: boxes in px of the upright photograph", "所有人脸：框以正立照片的像素为单位"),
    "column_photograph": ("photograph", "照片"),
    "column_face": ("face", "人脸"),
    "column_score": ("score", "分数"),
    "column_size": ("size, px", "尺寸，像素"),
    "column_canvas": ("canvas", "画布"),
    "column_faces": ("faces", "人脸数"),
    "column_decode": ("decode, ms", "解码，毫秒"),
    "column_network": ("network, ms", "网络，毫秒"),
    "column_rest": ("rest, ms", "其他，毫秒"),
    "json": ("JSON", "JSON"),
    "csv": ("CSV", "CSV"),
    "pictures": ("Pictures", "图片"),
    "summary_faces": ("Faces: {count}.", "人脸：{count}。"),
    "summary_photographs": ("Photographs: {count}.", "照片：{count}。"),
    "summary_failed": ("Failed: {count}.", "失败：{count}。"),
    "summary_seconds": ("{seconds} s", "{seconds} 秒"),
    "cached": ("answered before", "先前已处理"),
    "empty": ("What is found is shown here.", "检测结果显示在这里。"),
    "none_given": ("Add a photograph first.", "请先添加照片。"),
    "too_many": (
        "{count} photographs were given: at most {limit} go at once.",
        "共 {count} 张照片：一次最多 {limit} 张。",
    ),
    "too_heavy": (
        "The photographs have {size} MB together: at most {limit} MB go at once.",
        "照片共 {size} MB：一次最多 {limit} MB。",
    ),
    "unwritten": (
        "The machine of this page cannot keep the results: {reason}.",
        "本页所在的机器无法保存结果：{reason}。",
    ),
    "progress": ("Photographs", "照片"),
    "undrawn": ("Its faces are in the table; it cannot be drawn here.", "人脸已列入表中；此处无法绘制该照片。"),
    "model": ("Model", "模型"),
    "weights": ("weights", "权重"),
    "engine": ("engine", "引擎"),
    "precision": ("precision", "精度"),
    "asking": ("Asking the server ...", "正在询问服务器……"),
    "private": (
        "Photographs go to this page's own server alone, and are deleted from it after {minutes} minutes.",
        "照片只发送到本页自己的服务器，{minutes} 分钟后删除。",
    ),
    "language": ("中文", "English"),
    "error_UsageError": (
        "This file cannot be read any more: add it again.",
        "无法再读取此文件：请重新添加。",
    ),
    "error_Refused": ("The server does not take this photograph.", "服务器不接受这张照片。"),
    "error_InvalidRequest": ("The server does not understand the request.", "服务器无法理解该请求。"),
    "error_InvalidOption": (
        "One of the options has a value that this model does not take.",
        "某个选项的值不被此模型接受。",
    ),
    "error_InvalidImage": ("This file is damaged, or is no picture.", "此文件已损坏，或不是图片。"),
    "error_TooLarge": ("This photograph is too large.", "这张照片太大。"),
    "error_UnsupportedImage": (
        "Pictures of this kind are not read: save it as JPEG or PNG.",
        "不支持此种图片：请存为 JPEG 或 PNG。",
    ),
    "error_NotAuthorised": (
        "The server does not know this page: whoever runs it has to give it a valid token.",
        "服务器不认识本页：请运行者提供有效的令牌。",
    ),
    "error_NotFound": ("The server does not serve this model.", "服务器上没有此模型。"),
    "error_Unavailable": ("The server cannot do it now: try again in a minute.", "服务器暂时无法处理：请稍后再试。"),
    "error_QueueFull": ("Too many photographs wait already: try again in a minute.", "排队的照片太多：请稍后再试。"),
    "error_DeadlineMissed": ("It took too long: try again, with a smaller canvas.", "用时过长：请用较小的画布再试。"),
    "error_OutOfMemory": (
        "The server's memory is out: try again, with a smaller canvas.",
        "服务器内存不足：请用较小的画布再试。",
    ),
    "error_WorkerDied": ("The server was interrupted: try again.", "服务器被中断：请再试一次。"),
    "error_Unreachable": ("The server does not answer: is it running?", "服务器没有响应：它在运行吗？"),
    "error_ServerFault": ("The server has a fault; its log says which.", "服务器出错；详见其日志。"),
    "error_BadAnswer": ("What answered is no server of this project.", "应答的不是本项目的服务器。"),
    "error_ClientFault": ("This page has a fault; its console says which.", "本页出错；详见其控制台。"),
}


@dataclass(frozen=True)
class Texts:
    """The page's words in one language.

    Args:
        language: one of ``LANGUAGES``.
    """

    language: str

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"language is {self.language!r}: expected one of {', '.join(LANGUAGES)}")

    def __getitem__(self, key: str) -> str:
        """A text.

        Raises:
            KeyError: there is none of this name.
        """
        return TABLE[key][tuple(LANGUAGES).index(self.language)]

    def error(self, error: ClientError) -> str:
        """What a person is told of an error: that of its class, or of the nearest above it."""
        for kind in type(error).__mro__:
            if (key := f"error_{kind.__name__}") in TABLE:
                return self[key]
        raise KeyError(f"no text for {type(error).__name__}")

    @property
    def other(self) -> str:
        """The language that the switch leads to."""
        return next(each for each in LANGUAGES if each != self.language)


def preferred(accepted: str) -> str:
    """The language of a browser's ``Accept-Language``: the first of ``LANGUAGES`` by its weights, else English."""
    weighted = []
    for part in accepted.split(","):
        tag, _, weight = part.partition(";q=")
        try:
            weighted.append((-float(weight or 1), tag.strip().lower().split("-")[0]))
        except ValueError:
            continue
    # A stable sort: of equal weights the one named first.
    found = [tag for weight, tag in sorted(weighted, key=lambda each: each[0]) if tag in LANGUAGES and weight < 0]
    return found[0] if found else "en"
