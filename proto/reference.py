"""Writes docs/wire-reference.md from the comments of the proto files. Run by `make proto`.

Run: python proto/reference.py DESCRIPTORS OUTPUT, where DESCRIPTORS is what
`protoc --include_source_info --descriptor_set_out` wrote.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

HEAD = """# The wire, message by message

Written by `make proto` from the comments in `proto/longturn/v1`; do not edit it here. What the rules mean together is
in [protocol.md](protocol.md).
"""
SERVICE, ENUM, MESSAGE = 6, 5, 4
"""Numbers of the parts of a file in the paths of its comments; below them members and methods have number 2."""
MEMBER = 2


class File:
    """One proto file and its comments by path."""

    def __init__(self, proto: FileDescriptorProto) -> None:
        self.proto = proto
        self._comments = {tuple(place.path): place.leading_comments for place in proto.source_code_info.location}

    def comment(self, *path: int) -> str:
        """The comment before a part, on one line."""
        return " ".join(self._comments.get(path, "").split()).replace("|", "\\|").replace("<", "\\<")

    def lines(self) -> Iterator[str]:
        """The file as Markdown."""
        yield f"## {Path(self.proto.name).name}\n"
        for index, service in enumerate(self.proto.service):
            yield f"### service {service.name}\n\n{self.comment(SERVICE, index)}\n"
            rows = []
            for number, method in enumerate(service.method):
                asked = "stream " * method.client_streaming + _short(method.input_type)
                answered = "stream " * method.server_streaming + _short(method.output_type)
                rows.append((method.name, asked, answered, self.comment(SERVICE, index, MEMBER, number)))
            yield from _table(("rpc", "asked with", "answered by", ""), rows)
        for index, message in enumerate(self.proto.message_type):
            yield f"### {message.name}\n\n{self.comment(MESSAGE, index)}\n"
            rows = [
                (str(field.number), field.name, _type(field, message), self.comment(MESSAGE, index, MEMBER, number))
                for number, field in enumerate(message.field)
            ]
            yield from _table(("", "field", "type", ""), rows)
        for index, enum in enumerate(self.proto.enum_type):
            yield f"### enum {enum.name}\n\n{self.comment(ENUM, index)}\n"
            rows = [
                (str(value.number), value.name, self.comment(ENUM, index, MEMBER, number))
                for number, value in enumerate(enum.value)
            ]
            yield from _table(("", "value", ""), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        lines = [head, ["---"] * len(head), *rows]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _short(name: str) -> str:
    return name.removeprefix(".longturn.v1.").removeprefix(".")


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map of {_type(key, entry)} to {_type(value, entry)}"
    name = _short(field.type_name) or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    if field.HasField("oneof_index"):
        return (
            f"optional {name}"
            if field.proto3_optional
            else f"{name}, one of `{message.oneof_decl[field.oneof_index].name}`"
        )
    return name


def main(descriptors: Path, output: Path) -> None:
    """Write the page."""
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    own = [File(proto) for proto in files if proto.package == "longturn.v1"]
    parts = [HEAD, *(line for file in own for line in file.lines())]
    output.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
