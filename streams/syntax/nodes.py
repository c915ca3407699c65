"""The tree of a stream program: what its file says, with the place of every part.

A file is parsed once (`parser`); checks, proofs, timing, machines and mappings are visitors of the same tree. Nodes are
equal only to themselves; `alike` compares what they say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from inspect import get_annotations
from typing import Any, ClassVar, NamedTuple, TypeGuard, TypeVar, dataclass_transform

from ...base.place import Place

AnyPart = TypeVar("AnyPart")

NOWHERE = Place(1, 1)
"""The place of nodes that no file holds."""

META = ("meta_if", "meta_elif", "meta_else", "meta_for")

ENDS = ("put", "get")
"""Methods of streams."""

COLLECTIVES = {"allreduce": "an all-reduce", "allgather": "an all-gather", "reduce_scatter": "a reduce-scatter"}
"""Functions in which instances exchange tiles, and what each is called in a text."""

ARITHMETIC = frozenset(("add", "sub", "mul", "div", "neg"))
"""The kernels of which an operator may be one."""


KINDS = {
    "Literal": "Constant",
    "Identifier": "Name",
    "Prefix": "UnaryOp",
    "Infix": "BinOp",
    "Compared": "Compare",
    "Logical": "BoolOp",
    "Conditional": "IfExp",
    "Slicing": "Slice",
    "Invocation": "Call",
    "NamedArgument": "keyword",
    "Evaluation": "Expr",
    "Assignment": "Assign",
    "Declaration": "AnnAssign",
    "ForLoop": "For",
    "WhileLoop": "While",
    "Branching": "If",
    "MetaArm": "With",
    "MetaChain": "With",
    "Skip": "Pass",
    "Returning": "Return",
    "Assertion": "Assert",
    "ImportNames": "ImportFrom",
    "FormalParameter": "arg",
    "FunctionDefinition": "FunctionDef",
}
"""What Python's grammar calls nodes that have another name here."""


class Facts(NamedTuple):
    """What a node contains, itself included. names: that it uses or assigns. assigned: variables that it assigns, as a
    whole or in part. calls: the names of called functions, methods and kernels. touches: whether there is a put, a get
    or a collective. ends_beat: whether a branch with it ends the beat before it and begins one behind it, whatever
    kernels cost. size: the number of nodes."""

    names: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    touches: bool = False
    ends_beat: bool = False
    size: int = 1


@dataclass_transform(eq_default=False)
class Parts:
    """Base of all nodes: makes a node of a place and of what its class declares, in order. parts: the names of these.
    Nodes are no dataclasses, because it takes longer to make forty dataclasses than to parse a file."""

    parts: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.parts = tuple(name for name in get_annotations(cls) if name != "place")

    def __init__(self, place: Place, *values: Any, **named: Any) -> None:
        self.place = place
        self._facts: Facts | None = None
        self.__dict__.update(zip(self.parts, values, strict=False), **named)


class SyntaxNode(Parts):
    """A part of a program. place: in its file. parts: the names of the fields that it has besides."""

    place: Place

    @property
    def children(self) -> Iterator[SyntaxNode]:
        """The nodes directly below, in the order of the file."""
        for name in self.parts:
            part = getattr(self, name)
            if isinstance(part, SyntaxNode):
                yield part
            elif type(part) is tuple:
                yield from (item for item in part if isinstance(item, SyntaxNode))

    @property
    def facts(self) -> Facts:
        """What the node and those below it contain, computed at the first use."""
        if self._facts is None:
            for node in reversed([*walk(self)]):  # what a node holds comes before it
                if node._facts is None:
                    node._facts = _facts_of(node, [child._facts or Facts() for child in node.children])
            assert self._facts is not None
        return self._facts

    @property
    def kind(self) -> str:
        """The name of the node in Python's grammar, such as `AugAssign`."""
        match self:
            case Collection(form=form) | Foreign(form=form) | ForeignStatement(form=form):
                return form
            case Jump(how=how):
                return how.capitalize()
            case Assignment(augmented=True):
                return "AugAssign"
            case FunctionDefinition(coroutine=True):
                return "AsyncFunctionDef"
            case ImportNames(module=None):
                return "Import"
        return KINDS.get(type(self).__name__, type(self).__name__)


def _facts_of(node: SyntaxNode, below: list[Facts]) -> Facts:
    """What a node holds. below: what its children hold."""
    names, assigned = _union([facts.names for facts in below]), _union([facts.assigned for facts in below])
    calls = _union([facts.calls for facts in below])
    touches, ends_beat = any(facts.touches for facts in below), any(facts.ends_beat for facts in below)
    match node:
        case Identifier(name=name, stored=stored):
            names = frozenset((name,))
            assigned, touches = names if stored else assigned, name in COLLECTIVES
        case Subscript(stored=True, root=Identifier(name=name)):
            assigned |= {name}
        case Attribute(name=name):
            ends_beat = ends_beat or name in ENDS
            touches = touches or name in ENDS or name in COLLECTIVES
        case Prefix() | Infix():
            calls |= ARITHMETIC | ({"matmul"} if node.op == "@" else set())
        case Invocation(function=Identifier(name=name) | Attribute(name=name)):
            calls |= {name}
            ends_beat = ends_beat or name == "cycles"
        case ForLoop() | WhileLoop() | Jump() | Returning():
            ends_beat = True
    return Facts(names, assigned, calls, touches, ends_beat, 1 + sum(facts.size for facts in below))


def _union(sets: list[frozenset[str]]) -> frozenset[str]:
    held = [names for names in sets if names]
    return held[0] if len(held) == 1 else frozenset[str]().union(*held)


def walk(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """Yield a node and all nodes below it, level by level."""
    todo = deque([node])
    while todo:
        found = todo.popleft()
        todo.extend(found.children)
        yield found


def copied(value: AnyPart) -> AnyPart:
    """Return a copy of a tree, or of a tuple of trees; a node that stands in two places becomes two nodes."""
    if isinstance(value, tuple):
        return tuple(map(copied, value))  # type: ignore[return-value]
    if not isinstance(value, SyntaxNode):
        return value
    made = object.__new__(type(value))
    made.__dict__.update(value.__dict__)
    for name in value.parts:
        part = value.__dict__.get(name)
        if isinstance(part, SyntaxNode | tuple):
            made.__dict__[name] = copied(part)
    return made


def alike(a: Any, b: Any) -> bool:
    """Return whether two trees, or two tuples of trees, are equal except for the places of their nodes."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, SyntaxNode):
        return type(a) is type(b) and all(alike(getattr(a, part), getattr(b, part)) for part in a.parts)
    return type(a) is type(b) and (a == b or a != a)


# -- expressions ------------------------------------------------------------------------------------------------------


class ExpressionNode(SyntaxNode):
    """An expression. bracketed: whether the printer writes brackets around it even if it needs none; the parser never
    sets it."""

    bracketed = False


class Literal(ExpressionNode):
    """A number, a Boolean, a text, `None` or `...`; also a size, as a `SymbolicNumber`, in a proof for all sizes."""

    value: Any


class Identifier(ExpressionNode):
    """A name. stored: whether it is assigned here."""

    name: str
    stored: bool = False


class Await(ExpressionNode):
    """`await value`."""

    value: ExpressionNode


class Prefix(ExpressionNode):
    """`-x`, `+x`, `~x`, `not x`."""

    op: str
    operand: ExpressionNode


class Infix(ExpressionNode):
    """`left op right`, an operator of arithmetic or on bits, or `@`."""

    left: ExpressionNode
    op: str
    right: ExpressionNode


class ComparisonChain(ExpressionNode):
    """`left op other op other ...`."""

    left: ExpressionNode
    ops: tuple[str, ...]
    others: tuple[ExpressionNode, ...]


class Logical(ExpressionNode):
    """`a and b and ...`, `a or b or ...`."""

    op: str
    values: tuple[ExpressionNode, ...]


class Conditional(ExpressionNode):
    """`body if test else orelse`."""

    test: ExpressionNode
    body: ExpressionNode
    orelse: ExpressionNode


class Collection(ExpressionNode):
    """A tuple, a list or a set. form: "Tuple", "List" or "Set"."""

    form: str
    items: tuple[ExpressionNode, ...]


class Slicing(ExpressionNode):
    """`low:high:step`; None for what is left out."""

    low: ExpressionNode | None
    high: ExpressionNode | None
    step: ExpressionNode | None


class Subscript(ExpressionNode):
    """`base[index]`. stored: whether it is assigned here."""

    base: ExpressionNode
    index: ExpressionNode
    stored: bool = False

    @property
    def indices(self) -> tuple[ExpressionNode, ...]:
        """The expressions between the brackets: the items of a tuple, or one expression."""
        whole = isinstance(self.index, Collection) and self.index.form == "Tuple"
        return self.index.items if whole else (self.index,)  # type: ignore[attr-defined]

    @property
    def root(self) -> ExpressionNode:
        """The expression that is subscripted first: `x` of `x[i][j]`."""
        base = self.base
        while isinstance(base, Subscript):
            base = base.base
        return base


class Attribute(ExpressionNode):
    """`base.name`."""

    base: ExpressionNode
    name: str


class NamedArgument(SyntaxNode):
    """`name=value` in a call. name: None for `**value`."""

    name: str | None
    value: ExpressionNode


class Invocation(ExpressionNode):
    """`function(arguments, .., name=value, ..)`. instead_of: for a call that the program does not contain, the text
    that messages show for it; "" for a call of the program."""

    instead_of = ""
    function: ExpressionNode
    arguments: tuple[ExpressionNode, ...]
    named: tuple[NamedArgument, ...] = ()

    @property
    def called(self) -> str:
        """The name of the function, `f` of `f(x)`; "" if the function is not a plain name, such as in `a.f(x)`."""
        return self.function.name if isinstance(self.function, Identifier) else ""

    @property
    def keywords(self) -> dict[str | None, ExpressionNode]:
        """The values of the named arguments, by name; that of `**value` is under None."""
        return {argument.name: argument.value for argument in self.named}


class Starred(ExpressionNode):
    """`*value`."""

    value: ExpressionNode


class Foreign(ExpressionNode):
    """An expression of Python that this language does not have. form: its name in Python's grammar, such as "Lambda".
    text: as Python writes it. own: the names that it binds itself. inside: the expressions in it."""

    form: str
    text: str
    own: tuple[str, ...]
    inside: tuple[SyntaxNode, ...]


# -- statements -------------------------------------------------------------------------------------------------------


class StatementNode(SyntaxNode):
    """A statement. blank: empty lines above it. comment: the comment above it. Both are for the printer only; the
    parser does not set them."""

    blank = 0
    comment = ""


Block = tuple[StatementNode, ...]


class Evaluation(StatementNode):
    """An expression as a statement."""

    value: ExpressionNode


class Assignment(StatementNode):
    """`target = target = value`. augmented: whether the program has `target op= value`; then `value` is the `Infix` of
    target and operand."""

    targets: tuple[ExpressionNode, ...]
    value: ExpressionNode
    augmented: bool = False

    @property
    def pairs(self) -> list[tuple[ExpressionNode, ExpressionNode]] | None:
        """The pairs of target and value of `a, b = x, y`; None for an assignment of any other form."""
        match self.targets, self.value:
            case (Collection(form="Tuple", items=names),), Collection(form="Tuple", items=values) if len(names) == len(
                values
            ):
                return list(zip(names, values, strict=True))
        return None


class Declaration(StatementNode):
    """`target: annotation = value`. value: None for `target: annotation`."""

    target: ExpressionNode
    annotation: ExpressionNode
    value: ExpressionNode | None


class ForLoop(StatementNode):
    """`for target in iterable`, with the statements of its `else` in `orelse`. made: whether it is not in the file, but
    an inner loop of a `grid`."""

    target: ExpressionNode
    iterable: ExpressionNode
    body: Block
    orelse: Block = ()
    made: bool = False

    @property
    def unrolled(self) -> bool:
        """Whether it is a loop over `meta_for`, which is repeated before the run."""
        return isinstance(self.iterable, Invocation) and self.iterable.called == "meta_for"


class WhileLoop(StatementNode):
    """`while test`, with the statements of its `else` in `orelse`."""

    test: ExpressionNode
    body: Block
    orelse: Block = ()


class Branching(StatementNode):
    """`if test`, with the statements of its `else` in `orelse`."""

    test: ExpressionNode
    body: Block
    orelse: Block


class MetaArm(StatementNode):
    """`with heads[0] as targets[0], ..`. name: "meta_if", "meta_elif", "meta_else" or "meta_for", if its only head is a
    call of one of these; "" for any other `with`."""

    name: str
    heads: tuple[ExpressionNode, ...]
    targets: tuple[ExpressionNode | None, ...]
    body: Block

    @property
    def target(self) -> ExpressionNode | None:
        """The target of the first head; None if there is none."""
        return self.targets[0]

    @property
    def unrolled(self) -> bool:
        """Whether it is a `meta_for`, whose body is repeated before the run."""
        return self.name == "meta_for"

    @property
    def call(self) -> Invocation:
        """The call of the meta function; only an arm with a `name` has one."""
        assert isinstance(self.heads[0], Invocation)
        return self.heads[0]


class MetaChain(StatementNode):
    """`with meta_if`, with the `meta_elif` and `meta_else` behind it; or any other `with`, alone."""

    arms: tuple[MetaArm, ...]


class Skip(StatementNode):
    """`pass`."""


class Jump(StatementNode):
    """`break` or `continue`. how: which of the two."""

    how: str


class Returning(StatementNode):
    """`return value`."""

    value: ExpressionNode | None


class Assertion(StatementNode):
    """`assert test, message`."""

    test: ExpressionNode
    message: ExpressionNode | None


class ImportNames(StatementNode):
    """`from module import name as other`, or, with the module None, `import name as other`. aliases: each name, and the
    name after `as`, or None."""

    module: str | None
    aliases: tuple[tuple[str, str | None], ...]


class FormalParameter(SyntaxNode):
    """A parameter of a function. form: "posonlyargs", "args", "vararg", "kwonlyargs" or "kwarg", as in Python's
    grammar."""

    name: str
    form: str
    annotation: ExpressionNode | None
    default: ExpressionNode | None


class FunctionDefinition(StatementNode):
    """A function. coroutine: whether it is an `async` one."""

    name: str
    parameters: tuple[FormalParameter, ...]
    body: Block
    decorators: tuple[ExpressionNode, ...]
    returns: ExpressionNode | None
    coroutine: bool = False


class ForeignStatement(StatementNode):
    """A statement of Python that this language does not have. form: its name in Python's grammar, such as "Try". text:
    as Python writes it. inside: the nodes in it."""

    form: str
    text: str
    inside: tuple[SyntaxNode, ...]


class TooDeep(StatementNode):
    """A statement that is nested too deeply to be read."""


# -- questions --------------------------------------------------------------------------------------------------------


def is_tuple(node: SyntaxNode | None) -> TypeGuard[Collection]:
    """Return whether a node is a tuple of the program."""
    return isinstance(node, Collection) and node.form == "Tuple"


def is_listed(node: SyntaxNode | None) -> TypeGuard[Collection]:
    """Return whether a node is a tuple or a list of the program."""
    return isinstance(node, Collection) and node.form != "Set"
