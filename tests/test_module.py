"""`compiled.module()`: an nn.Module of the model's class, whose calls run on the machine."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import rsn
from rsn.base.errors import TensorError

pytestmark = pytest.mark.long
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sits", "on", "the", "mat", "while", "dogs", "run"]
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}


@pytest.mark.parametrize("is_family", [True, False])
def test_a_module_in_place_of_the_model(is_family: bool, logged: list[logging.LogRecord]) -> None:
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=3)).eval()
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})
    inputs: dict[str, Any] = dict(tokenizer(["a cat sits"], return_tensors="pt"))
    shapes = {name: {0: rsn.Batch(1), 1: rsn.Length(16)} for name in inputs} if is_family else None
    with rsn.compile(model, inputs, dynamic_shapes=shapes) as compiled, torch.no_grad():
        module = compiled.module()

        def as_the_model() -> bool:
            return torch.allclose(module(**inputs).logits, model(**inputs).logits, atol=1e-5)

        assert isinstance(module, type(model))
        assert module.config is model.config
        assert dict(module.named_children()) == dict(model.named_children())
        assert dict(nn.Sequential(module).named_parameters()).keys() == {f"0.{n}" for n, _ in model.named_parameters()}
        assert as_the_model()
        assert compiled.last_run is not None
        # what says nothing, and what says something
        more = {"output_attentions": False, "output_hidden_states": False, "labels": None, "return_dict": True}
        assert torch.equal(module(**inputs, **more).logits, module(**inputs).logits)
        in_order = module(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"], return_dict=False)
        assert isinstance(in_order, tuple)
        assert torch.equal(in_order[0], module(**inputs).logits)
        for wrong in ({"output_attentions": True}, {"labels": torch.tensor([1])}):
            with pytest.raises(TensorError, match=next(iter(wrong))):
                module(**inputs, **wrong)
        # changes of the model: weights through the module, and a hook, which runs once
        module.classifier.weight.mul_(2)
        assert as_the_model()
        hook = model.register_forward_hook(lambda module, arguments, result: type(result)(logits=result.logits + 1))
        assert as_the_model()
        hook.remove()
        assert as_the_model()
        if is_family:
            made = (transformers.pipeline("text-classification", model=x, tokenizer=tokenizer) for x in (module, model))
            got, wanted = (pipe("the cat sits on a mat")[0] for pipe in made)
            assert got["label"] == wanted["label"]
            assert abs(got["score"] - wanted["score"]) < 1e-5
            assert not [record for record in logged if "not supported" in record.getMessage()]
