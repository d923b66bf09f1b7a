"""Head weights against gradients taken at the output projections, and against finite changes."""

from collections.abc import Sequence

import pytest
import torch
from torch.nn.functional import cross_entropy

from sift_index.errors import UsageError
from sift_index.prompts import Segment
from sift_index.selection.sensitivity import head_weights
from tests.attention import eager
from tests.plans import loaded, tiny, tokens

PROMPT = [Segment(tokens(9), glue=True), Segment(tokens(70)), Segment(tokens(6), glue=True)]
OTHER = [
    Segment(tokens(5), glue=True),
    Segment(tokens(31)),
    Segment(tokens(3), glue=True),
    Segment(tokens(12)),
    Segment(tokens(4), glue=True),
]
ANSWER = tokens(4, 3)


def ids_of(prompt: Sequence[Segment]) -> list[int]:
    return [i for segment in prompt for i in segment.ids]


def rows_of(prompt: Sequence[Segment]) -> list[int]:
    """Return the positions of document tokens."""
    glue = [segment.glue for segment in prompt for _ in segment.ids]
    return [at for at, is_glue in enumerate(glue) if not is_glue]


def normalised(weights: torch.Tensor) -> torch.Tensor:
    weights = weights.clamp(min=1e-4 * float(weights.max()))
    return weights / weights[:-1].log().mean().exp()


def gradients(model, prompt) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [layers, heads]: squared gradients and value norms, attention written out in full.

    Gradients are at the input of each output projection, where the heads' outputs lie side by side.
    """
    inputs: dict[int, torch.Tensor] = {}
    values: dict[int, torch.Tensor] = {}
    heads = model.config.num_attention_heads

    def keep(number):
        def hook(module, arguments):
            arguments[0].retain_grad()
            inputs[number] = arguments[0]

        return hook

    def keep_values(number):
        return lambda module, arguments, output: values.__setitem__(number, output)

    hooks = []
    for number, layer in enumerate(model.model.layers):
        hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(keep(number)))
        hooks.append(layer.self_attn.v_proj.register_forward_hook(keep_values(number)))
    with eager(model):
        ids = torch.tensor([[*ids_of(prompt), *ANSWER[:-1]]])
        logits = model(ids, use_cache=False).logits
    cross_entropy(logits[0, -len(ANSWER) :], torch.tensor(ANSWER), reduction="sum").backward()
    for hook in hooks:
        hook.remove()
    squares, norms = [], []
    for number in range(len(hooks) // 2):
        gradient = inputs[number].grad
        assert gradient is not None
        gradient = gradient[0, rows_of(prompt)].unflatten(-1, (heads, -1))
        norm = values[number][0].detach().unflatten(-1, (-1, gradient.shape[-1])).norm(dim=-1)
        squares.append(gradient.square().sum(-1).mean(0))
        norms.append(norm.mean(0).repeat_interleave(heads // norm.shape[1]))
    return torch.stack(squares), torch.stack(norms)


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, OTHER]], ids=["one", "two"])
def test_weights_are_gradient_times_value_norm(prompts):
    model = tiny("llama", num_hidden_layers=3)
    squares, norms = (
        sum(part) for part in zip(*(gradients(model, p) for p in prompts), strict=True)
    )
    expected = normalised(torch.sqrt(squares) * norms)
    found = torch.tensor(head_weights(loaded(model), prompts, [ANSWER] * len(prompts)))
    torch.testing.assert_close(found, expected, rtol=6e-3, atol=0)
    assert found[:2].max() > 1.1 * found[:2].min()  # heads differ, and rounding hides nothing


def likelihood_changes(model, prompt, number: int, step: float = 1e-4) -> torch.Tensor:
    """Return [rows, heads * D]: change of the answer's NLL per change of one layer's head outputs.

    A batch holds every single change, upwards and downwards.
    """
    projection = model.model.layers[number].self_attn.o_proj
    rows, size = rows_of(prompt), projection.in_features
    count = len(rows) * size

    def change(module, arguments):
        moved = arguments[0].clone()
        for sign, first in ((step, 0), (-step, count)):
            for at in range(count):
                moved[first + at, rows[at // size], at % size] += sign
        return (moved,)

    ids = torch.tensor([[*ids_of(prompt), *ANSWER[:-1]]]).repeat(2 * count, 1)
    hook = projection.register_forward_pre_hook(change)
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[:, -len(ANSWER) :]
    hook.remove()
    wanted = torch.tensor(ANSWER).repeat(2 * count, 1)
    nll = cross_entropy(logits.transpose(1, 2), wanted, reduction="none").sum(1)
    return ((nll[:count] - nll[count:]) / (2 * step)).unflatten(0, (len(rows), size))


def test_weights_are_what_small_changes_of_a_head_do_to_the_answer():
    model = tiny("llama").double()
    prompt = [Segment(tokens(3), glue=True), Segment(tokens(2)), Segment(tokens(2), glue=True)]
    heads, (_, norms) = model.config.num_attention_heads, gradients(model, prompt)
    squares = [
        likelihood_changes(model, prompt, layer).unflatten(-1, (heads, -1)).square().sum(-1).mean(0)
        for layer in range(2)
    ]
    expected = normalised(torch.stack(squares).sqrt() * norms)
    found = torch.tensor(head_weights(loaded(model), [prompt], [ANSWER]), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=6e-3, atol=0)


def test_document_rows_of_the_last_layer_never_matter():
    found = torch.tensor(head_weights(loaded(tiny("llama")), [PROMPT], [ANSWER]))
    assert (found[-1] == found.min()).all()
    assert found[-1].max() < found[0].min()
    assert found[:-1].log().mean() == pytest.approx(0.0, abs=0.01)


def test_the_model_is_left_as_it_was():
    model = tiny("llama")
    frozen = model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    head_weights(loaded(model), [PROMPT], [ANSWER])
    kept = [parameter for parameter in model.parameters() if parameter is not frozen]
    assert all(parameter.requires_grad for parameter in kept)
    assert not frozen.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.config._attn_implementation != "sift"


def test_every_prompt_needs_an_answer():
    with pytest.raises(ValueError, match="shorter"):
        head_weights(loaded(tiny("llama")), [PROMPT, OTHER], [ANSWER])


@pytest.mark.parametrize("prompts", [[], [[Segment(tokens(9), glue=True)]]])
def test_prompts_without_documents_are_refused(prompts):
    with pytest.raises(UsageError, match="expected prompts with documents to weigh heads on"):
        head_weights(loaded(tiny("llama")), prompts, [ANSWER for _ in prompts])
