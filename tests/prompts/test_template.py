import pytest

from fewnlu.errors import ConfigError
from fewnlu.prompts.template import (
    Boundary,
    Field,
    Mask,
    Slots,
    Text,
    causal_obstacle,
    parse,
    usable_by_causal,
)


def test_every_part_is_parsed():
    parts = parse("{{x}} {a|nopunct|lcfirst~} [P3] ? ‖ [MASK], {b}[MASK*]").parts
    assert parts == (
        Text("{x} "),
        Field("a", ("nopunct", "lcfirst"), True),
        Text(" "),
        Slots(3),
        Text(" ?"),
        Boundary(),
        Mask(),
        Text(", "),
        Field("b"),
        Mask(multi=True),
    )


def test_ascii_boundary_equals_the_sign():
    assert parse("{a} [SEP] [MASK]").parts == parse("{a} ‖ [MASK]").parts


def test_filters():
    fields = {"a": "The End?! "}
    assert Field("a", ("nopunct", "lcfirst")).render(fields) == "the End"
    assert Field("a", ("lcfirst",)).render({"a": ""}) == ""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{a} [MASK", "no [MASK]"),
        ("{a} x", "no [MASK]"),
        ("{b} [MASK]", "unknown field {b}"),
        ("{a|nopunkt} [MASK]", "did you mean 'nopunct'?"),
        ("{a [MASK]", "lone '{'"),
        ("a} [MASK]", "lone '}'"),
        ("{a} ‖ x ‖ [MASK]", "second boundary"),
        ("{a} [P0] [MASK]", "no slots"),
    ],
)
def test_errors_name_key_and_cause(source, says):
    with pytest.raises(ConfigError) as error:
        parse(source, "task.patterns.7.template", fields=["a"])
    assert says in str(error.value) and "task.patterns.7.template" in str(error.value)


def test_causal_obstacles():
    assert usable_by_causal("{a} ‖ Answer: [MASK] .")
    assert "{b} stands after the mask" in causal_obstacle("{a} [MASK] {b}")
    assert "more than one mask" in causal_obstacle("{a} [MASK] [MASK]")
    assert not usable_by_causal("Answer: [MASK]")
