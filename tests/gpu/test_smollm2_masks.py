"""A trained model on two devices: float32 masks of CPU and GPU are equal but for ties."""

import torch

from sift_index import configs
from sift_index.models.loading import load_model
from sift_index.prompts import PromptWriter
from sift_index.selection.agreement import mask_agreement
from sift_index.selection.extractor import DocumentScores, Extractor
from sift_index.selection.policy import ProbePolicy, load_policy

DOCUMENTS = 8
# Long enough for LA bits: example texts joined, of more than 8 tiles.
LONG_TOKENS = 1200


def documents(writer: PromptWriter) -> list[list[int]]:
    folder = configs.resource("examples") / "corpus"
    texts = [path.read_text() for path in sorted(folder.glob("*.md"))]
    return [
        *(writer.document(text) for text in texts[:DOCUMENTS]),
        writer.document("\n\n".join(texts))[:LONG_TOKENS],
    ]


def scores(loaded, policy, prefix, ids) -> list[DocumentScores]:
    extractor = Extractor(loaded, policy, prefix)
    return [extractor.scores(document) for document in ids]


def test_masks_of_cpu_and_gpu(smollm2):
    policy = load_policy("probe")
    assert isinstance(policy, ProbePolicy)
    writer = PromptWriter(smollm2.tokenizer, smollm2.prompt)
    ids, prefix = documents(writer), writer.prefix()
    with torch.inference_mode():
        on_cpu = scores(smollm2, policy, prefix, ids)
        exact = load_model("smollm2-135m", "float32", "cuda")
        # Ties: both devices round 30 layers of float32 in their own way.
        agreement = mask_agreement(on_cpu, scores(exact, policy, prefix, ids), policy, 1e-3)
        rounded = load_model("smollm2-135m", "bfloat16", "cuda")
        information = mask_agreement(on_cpu, scores(rounded, policy, prefix, ids), policy, 1e-3)
    print(f"float32: {agreement}, share {agreement.share:.2e}")
    print(f"bfloat16 against float32: {information}, share {information.share:.2e}")
    assert agreement.errors == 0 and agreement.share < 1e-3
    assert information.share < 0.05
