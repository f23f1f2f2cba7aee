"""Sound trainings of models of transformers, tiny but with the initialisations of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.faults.sound.program import Session, adamw, fit, sound
from bench.faults.sound.text import VOCABULARY, windows

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 2}


def _of_text(r: Session, model: nn.Module, lr: float = 2e-3, **more: Any) -> None:
    """Fit a language model of the library to the text."""
    take = windows(8)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        x = x.contiguous()  # T5 takes a view of its labels
        found: Tensor = model(input_ids=x, labels=x, **more).loss
        return found

    fit(r, model, adamw(model, lr), take, loss, 1.0)


def _of_labels(r: Session, model: nn.Module, given: Callable[[Tensor], dict[str, Any]]) -> None:
    """Fit a classifier of the library to what is in the middle of an image."""

    def take() -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (16,))
        shift = (y - 1.5)[:, None, None, None]
        return torch.randn(16, 3, 16, 16) + 0.5 * shift, y

    def loss(x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = model(labels=y, **given(x)).loss
        return found

    fit(r, model, adamw(model, 1e-3), take, loss, 1.0)


@sound(250)
def hf_gpt2(r: Session) -> None:
    import transformers as t

    config = t.GPT2Config(n_layer=6, n_embd=32, n_head=2, vocab_size=VOCABULARY, n_positions=32)
    _of_text(r, t.GPT2LMHeadModel(config))


@sound(250)
def hf_llama(r: Session) -> None:
    import transformers as t

    config = t.LlamaConfig(**SIZES, **HEADS, vocab_size=VOCABULARY, max_position_embeddings=32)
    _of_text(r, t.LlamaForCausalLM(config))


@sound(250)
def hf_bert(r: Session) -> None:
    import transformers as t

    config = t.BertConfig(**SIZES, **HEADS, vocab_size=VOCABULARY, max_position_embeddings=32)
    model = t.BertForSequenceClassification(config)
    take = windows(8)
    loss = lambda x, y: model(x, labels=(x[:, 0] > 20).long()).loss  # noqa: E731
    fit(r, model, adamw(model, 1e-3), take, loss, 1.0)


@sound(250)
def hf_vit(r: Session) -> None:
    import transformers as t

    config = t.ViTConfig(**SIZES, **HEADS, image_size=16, patch_size=4, num_labels=4)
    _of_labels(r, t.ViTForImageClassification(config), lambda x: {"pixel_values": x})


@sound(200)
def hf_t5(r: Session) -> None:
    import transformers as t

    config = t.T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=VOCABULARY,
        decoder_start_token_id=0,
    )  # fmt: skip
    _of_text(r, t.T5ForConditionalGeneration(config))


@sound(200)
def hf_mixtral(r: Session) -> None:
    import transformers as t

    config = t.MixtralConfig(
        **SIZES, **HEADS, num_key_value_heads=2, vocab_size=VOCABULARY, num_local_experts=4
    )
    _of_text(r, t.MixtralForCausalLM(config))


@sound(200)
def hf_whisper(r: Session) -> None:
    import transformers as t

    config = t.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_source_positions=16, max_target_positions=32,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = t.WhisperForConditionalGeneration(config)
    take = windows(8)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = model(input_features=torch.randn(8, 8, 32), labels=x[:, :12]).loss
        return found

    fit(r, model, adamw(model, 1e-3), take, loss, 1.0)


@sound(200)
def hf_mamba(r: Session) -> None:
    import transformers as t

    config = t.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2)
    _of_text(r, t.MambaForCausalLM(config))


@sound(250)
def hf_resnet(r: Session) -> None:
    import transformers as t

    config = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], layer_type="basic",
        num_labels=4,
    )  # fmt: skip
    _of_labels(r, t.ResNetForImageClassification(config), lambda x: {"pixel_values": x})


@sound(200)
def hf_wav2vec(r: Session) -> None:
    import transformers as t

    config = t.Wav2Vec2Config(
        **SIZES, **HEADS, vocab_size=20, conv_dim=(16, 16), conv_stride=(4, 2), conv_kernel=(8, 3),
        num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
        num_labels=2, classifier_proj_size=16, apply_spec_augment=False,
    )  # fmt: skip
    model = t.Wav2Vec2ForSequenceClassification(config)

    def take() -> tuple[Tensor, Tensor]:
        y = torch.randint(2, (8,))
        times = torch.arange(160) * (0.2 + 0.3 * y[:, None])
        return times.sin() + 0.1 * torch.randn(8, 160), y

    loss = lambda x, y: model(x, labels=y).loss  # noqa: E731
    fit(r, model, adamw(model, 1e-3), take, loss, 1.0)
