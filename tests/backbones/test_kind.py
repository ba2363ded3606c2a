"""Kind and config of a model, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fewnlu.backbones.kind import model_kind, read_config
from fewnlu.errors import ConfigError
from tests.tiny import CAUSAL, FAMILIES


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "masked"),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "causal"),
        ({"architectures": ["NewForCausalLM"], "model_type": "new"}, "causal"),
        ({"model_type": "deberta-v2"}, "masked"),
        ({"architectures": None, "model_type": "qwen2"}, "causal"),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "masked"),
        ({"architectures": ["BertForSequenceClassification"], "model_type": "bert"}, "masked"),
        ({"architectures": ["BertLMHeadModel"], "model_type": "bert", "is_decoder": True}, "causal"),
    ],
)
def test_kind(config, kind):
    assert model_kind(config) == kind


@pytest.mark.parametrize("config", [{}, {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}])
def test_unknown_kind_names_the_key(config):
    with pytest.raises(ConfigError, match=r"model_args\.kind=masked or model_args\.kind=causal"):
        model_kind(config)


def test_local_and_embedded_configs(tiny):
    assert model_kind(read_config("smollm2")) == "causal"
    for family in FAMILIES:
        kind = model_kind(read_config("local", path=tiny(family)))
        assert kind == ("causal" if family in CAUSAL else "masked")


def test_errors_name_key_value_and_remedy(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="did you mean 'local'"):
        read_config("locl", path=tmp_path)
    with pytest.raises(ConfigError, match=r"model_args\.name"):
        read_config("hub")
    with pytest.raises(ConfigError, match=r"model_args\.path=FOLDER"):
        read_config("local")
    with pytest.raises(ConfigError, match=r"model_args\.path=.*no config\.json"):
        read_config("local", path=tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read as JSON"):
        read_config("local", path=tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object, found list"):
        read_config("local", path=tmp_path)

    import huggingface_hub

    def offline(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("outgoing traffic has been disabled")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(ConfigError) as caught:
        read_config("hub", name="roberta-bse", revision="abc")
    for part in ("model_args.name='roberta-bse'", "abc", "HF_HUB_OFFLINE", "HF_HOME", "model=local model_"):
        assert part in str(caught.value)


def test_no_torch_is_imported(tiny):
    """A config error and the study key must not wait seconds for torch."""
    code = (
        "import sys; from fewnlu.backbones.kind import model_kind, read_config\n"
        "from fewnlu.backbones.weights import fingerprint\n"
        f"p = {str(tiny('bert'))!r}\n"
        "model_kind(read_config('local', path=p)); fingerprint('local', path=p); fingerprint('smollm2')\n"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
