"""Reading checkpoints: no random head, no pickle, nothing from the network, and a hash that says which
weights."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fewnlu.backbones import weights
from fewnlu.backbones.loading import forget, load_backbone
from fewnlu.backbones.smollm2 import GGUF_SHA256
from fewnlu.backbones.weights import fingerprint
from fewnlu.errors import ConfigError
from tests.backbones.test_backbone import encode
from tests.tiny import tiny_model, tiny_tokenizer


def copy(tiny, family, to):
    return shutil.copytree(tiny(family), to / family)


def rewrite(folder, change):
    """Replace a checkpoint's tensors by what `change` makes of them."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def stored_deberta(folder):
    """A DeBERTa-v2 checkpoint as Microsoft stores it: head under lm_predictions, no 'legacy'."""
    tokenizer = tiny_tokenizer("deberta_v2")
    model = tiny_model("deberta_v2", tokenizer, legacy=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("legacy", None), config.pop("architectures", None)
    (folder / "config.json").write_text(json.dumps(config))
    assert any(k.startswith("lm_predictions.lm_head.") for k in load_file(folder / "model.safetensors"))
    return model


def test_debertas_stored_head_is_read(tmp_path):
    """I092: logits equal the source's, at both of two loads."""
    source = stored_deberta(tmp_path / "m")
    for _ in range(2):
        forget()
        backbone = load_backbone("local", path=tmp_path / "m")
        ids, mask, _ = encode(backbone)
        with torch.no_grad():
            want = source(input_ids=ids, attention_mask=mask).logits
            got = backbone.logits(backbone.hidden(ids, mask, decoder=False))  # transformers has no mask decoder
        torch.testing.assert_close(got[mask.bool()], want[mask.bool()], rtol=0, atol=1e-5)
        assert backbone.kind == "masked" and backbone.model.config.legacy is False


@pytest.mark.parametrize("legacy_in_config", [None, True, False])
def test_deberta_without_a_head_is_refused(tmp_path, legacy_in_config):
    """I092: an error that lists what is missing, never just a warning."""
    stored_deberta(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    if legacy_in_config is not None:
        config["legacy"] = legacy_in_config
    (tmp_path / "config.json").write_text(json.dumps(config))
    rewrite(tmp_path, lambda tensors: {k: v for k, v in tensors.items() if k.startswith("deberta.")})
    with pytest.raises(ConfigError, match="LM head would be random") as caught:
        load_backbone("local", path=tmp_path)
    assert "Missing: cls.predictions" in str(caught.value) and "dense.weight" in str(caught.value)


def test_a_sentence_vector_model_is_refused(tmp_path):
    import transformers as tf

    tokenizer = tiny_tokenizer("bert")
    base = tiny_model("bert", tokenizer).bert
    tf.BertModel.save_pretrained(base, tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["BertModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"Missing: cls\.predictions.*transform\.dense\.weight"):
        load_backbone("local", path=tmp_path)


@pytest.mark.parametrize(
    ("family", "key", "says"),
    [
        ("roberta", "lm_head.dense.weight", "LM head would be random"),
        ("albert", "predictions.LayerNorm.bias", "LM head would be random"),
        ("bert", "bert.encoder.layer.1.output.dense.weight", "parts of it would be random"),
        ("llama", "model.norm.weight", "parts of it would be random"),
    ],
)
def test_any_missing_weight_is_refused(tiny, tmp_path, family, key, says):
    folder = copy(tiny, family, tmp_path)
    rewrite(folder, lambda tensors: {k: v for k, v in tensors.items() if k != key})
    with pytest.raises(ConfigError, match=says) as caught:
        load_backbone("local", path=folder)
    assert f"Missing: {key}" in str(caught.value)


def test_tied_and_left_over_weights_are_no_reason(tiny, tmp_path):
    """Tied tensors are not stored, and checkpoints often carry heads of other tasks."""
    folder = copy(tiny, "bert", tmp_path)
    assert "cls.predictions.decoder.weight" not in load_file(folder / "model.safetensors")
    rewrite(folder, lambda tensors: tensors | {"cls.seq_relationship.weight": torch.zeros(2, 32)})
    assert load_backbone("local", path=folder).kind == "masked"


def test_untied_head_missing_is_refused_for_causal_models(tmp_path):
    tokenizer = tiny_tokenizer("llama")
    tiny_model("llama", tokenizer, tie_word_embeddings=False).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    backbone = load_backbone("local", path=tmp_path, freeze_layers=4)
    assert {n for n, p in backbone.model.named_parameters() if p.requires_grad} == {
        "model.norm.weight",
        "lm_head.weight",
    }
    rewrite(tmp_path, lambda tensors: {k: v for k, v in tensors.items() if not k.startswith("lm_head")})
    with pytest.raises(ConfigError, match=r"Missing: lm_head\.weight"):
        load_backbone("local", path=tmp_path)


def test_pickled_weights_are_refused(tiny, tmp_path):
    folder = copy(tiny, "bert", tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    assert load_backbone("local", path=folder).kind == "masked"  # safetensors go first
    (folder / "model.safetensors").unlink()
    for refused in (lambda: load_backbone("local", path=folder), lambda: fingerprint("local", path=folder)):
        with pytest.raises(ConfigError, match=r"found only pytorch_model\.bin, expected") as caught:
            refused()
        assert "save_pretrained" in str(caught.value)


def test_errors_are_messages(tiny, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'float32'"):
        load_backbone("local", path=tiny("bert"), dtype="float23")
    with pytest.raises(ConfigError, match=r"model_args\.kind='mask'.*did you mean 'masked'"):
        load_backbone("local", path=tiny("bert"), kind="mask")  # type: ignore[arg-type]
    folder = copy(tiny, "bert", tmp_path)
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_backbone("local", path=folder)
    folder = copy(tiny, "roberta", tmp_path)
    rewrite(folder, lambda tensors: tensors | {"lm_head.dense.weight": torch.zeros(8, 8)})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_backbone("local", path=folder)
    folder = copy(tiny, "gpt2", tmp_path)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer, found none of tokenizer\.json"):
        load_backbone("local", path=folder)


def test_tokenizers_that_do_not_fit(tiny, tmp_path):
    folder = copy(tiny, "bert", tmp_path)
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_tokens(["<more>"])
    tokenizer.add_special_tokens({"pad_token": "<own pad>"})
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"'<own pad>' has id .* of another model"):
        load_backbone("local", path=folder)
    folder = copy(tiny, "gpt2", tmp_path)
    with pytest.raises(ConfigError, match="no pad_token and no mask_token"):
        load_backbone("local", path=folder, kind="masked")


class Evil:
    """Unpickled, it writes a file `marker`."""

    def __reduce__(self):
        return (Path.write_text, (Path("marker"), "run"))


PICKLES = ["pytorch_model.bin", "model.pt", "model.ckpt", "adapter_model.bin", "training_args.bin", "optimizer.pt"]


@pytest.mark.parametrize("format", ["pickle", "zip"])
def test_i121_i122_nothing_in_a_model_folder_is_unpickled_or_called(tiny, tmp_path, monkeypatch, format):
    """Code in pickled weights beside safetensors is passed over, alone it is refused; `_instantiator` is just a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # as some set it for old checkpoints
    folder = copy(tiny, "bert", tmp_path)
    for name in PICKLES:
        if format == "zip":
            torch.save({"state_dict": Evil(), "hyper_parameters": {"_instantiator": "os.abort"}}, folder / name)
        else:
            (folder / name).write_bytes(pickle.dumps(Evil()))
    config = json.loads((folder / "config.json").read_text())
    config |= {"_instantiator": "os.abort", "_target_": "os.abort"}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_backbone("local", path=folder).kind == "masked"
    forget()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="Pickled weights can run code"):
        load_backbone("local", path=folder)
    (folder / "model.safetensors").write_bytes((folder / "pytorch_model.bin").read_bytes())  # under a better name
    with pytest.raises(ConfigError, match="cannot be read"):
        load_backbone("local", path=folder)
    assert not Path("marker").exists()


def test_remote_code_is_never_run(tiny, tmp_path, monkeypatch):
    """Refused where the classes are not transformers' own; where they are, the model's code is not looked at."""
    monkeypatch.chdir(tmp_path)
    folder = copy(tiny, "bert", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "own.C", "AutoTokenizer": "own.T", "AutoModelForMaskedLM": "own.M"}}
    (folder / "own.py").write_text("open('marker', 'w')")
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"auto_map": config["auto_map"]}))
    assert load_backbone("local", path=folder).kind == "masked"
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    for kind in ("masked", None):
        with pytest.raises(ConfigError, match=r"config\.json: model_type='own' is code that comes with the weights"):
            load_backbone("local", path=folder, kind=kind)
    assert not Path("marker").exists()


def test_i050_jobs_share_a_cold_cache_and_a_broken_one_costs_nothing(tiny, tmp_path, monkeypatch):
    """Four processes hash at once into one folder; then the place can't be written at all."""
    expected = fingerprint("local", path=tiny("bert"))
    for place, kept in ((tmp_path / "shared", True), (Path(os.devnull) / "cache", False)):
        monkeypatch.setenv("FEWNLU_CACHE", str(place))
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                code = 1
                with contextlib.suppress(BaseException):
                    code = int(fingerprint("local", path=tiny("bert")) != expected)
                os._exit(code)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0, 0]
        assert fingerprint("local", path=tiny("bert")) == expected
        if kept:
            assert len(json.loads((place / "weights-sha256.json").read_text())) == 1
            assert [p.name for p in place.iterdir()] == ["weights-sha256.json"]


def test_the_network_is_not_asked(tiny, tmp_path, monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("network used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_backbone("local", path=copy(tiny, "llama", tmp_path)).is_causal


def test_hub_models_are_read_through_the_cache(tiny, monkeypatch):
    import huggingface_hub

    asked = {}

    def snapshot(name, **options):
        asked.update(options, name=name)
        return str(tiny("bert"))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: tiny("bert") / "config.json")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    backbone = load_backbone("hub", name="owner/model", revision="abc")
    assert asked["name"] == "owner/model" and asked["revision"] == "abc"
    assert not any(pattern.endswith((".bin", ".py")) for pattern in asked["allow_patterns"])
    assert backbone.weights_sha == fingerprint("local", path=tiny("bert"))


def test_fingerprint_tells_weights_apart(tiny, tmp_path):
    folder = copy(tiny, "bert", tmp_path)
    first = fingerprint("local", path=folder)
    assert first == load_backbone("local", path=folder).weights_sha == fingerprint("local", path=tiny("bert"))
    rewrite(folder, lambda tensors: {k: v + 1 for k, v in tensors.items()})
    assert fingerprint("local", path=folder) != first


@pytest.mark.parametrize("change", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_fingerprint_tells_configs_and_tokenizers_apart(tiny, tmp_path, change):
    """The same tensors read by another tokenizer, or under another config, are another model."""
    folder = copy(tiny, "roberta", tmp_path)
    first = fingerprint("local", path=folder)
    (folder / "README.md").write_text("not part of the model")
    (folder / "trainer_state.json").write_text("{}")
    assert fingerprint("local", path=folder) == first == load_backbone("local", path=folder).weights_sha
    file = folder / change
    values = json.loads(file.read_text()) if file.is_file() else "{{ messages }}"
    if isinstance(values, dict):
        values["layer_norm_eps"] = 1e-3
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    assert fingerprint("local", path=folder) != first
    assert fingerprint("smollm2") == GGUF_SHA256  # the embedded model's files are all made from this one


def test_hashes_are_kept_and_the_cache_may_be_broken(tiny, monkeypatch):
    first = fingerprint("local", path=tiny("bert"))
    store = weights.cache_dir() / "weights-sha256.json"
    assert len(json.loads(store.read_text())) == 1
    monkeypatch.setattr(weights.hashlib, "file_digest", None)  # a second reading of the file would fail
    assert fingerprint("local", path=tiny("bert")) == first
    monkeypatch.undo()
    for broken in ("{", "[]"):
        store.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(broken)
        assert fingerprint("local", path=tiny("bert")) == first


def test_shards_are_hashed_together(tiny, tmp_path):
    folder = copy(tiny, "llama", tmp_path)
    load_backbone("local", path=folder).model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    for file in folder.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "shards")
    assert len(weights.weight_files(tmp_path / "shards")) > 1
    assert load_backbone("local", path=tmp_path / "shards").weights_sha == fingerprint(
        "local", path=tmp_path / "shards"
    )
