"""`sift-index models`: the presets, their shapes, and which architectures can be indexed."""

from typing import Any

import click

from sift_index.cli.frame import emit, framed, table


@click.command()
@framed
def models(output: str) -> None:
    """List the model presets; --model also takes a local folder or a hub id.

    \b
    Example:
      sift-index models
    """
    from sift_index.models.gguf import is_installed
    from sift_index.models.presets import load_preset, preset_names
    from sift_index.models.support import TESTED_TYPES

    presets = [load_preset(name) for name in preset_names()]
    rows: list[dict[str, Any]] = [
        {
            "name": preset.name,
            "layers": preset.config["num_hidden_layers"],
            "heads": preset.config["num_attention_heads"],
            "kv_heads": preset.config["num_key_value_heads"],
            "context": preset.context,
            "source": preset.source.repo or f"package {preset.source.package}",
            "installed": is_installed(preset) if preset.source.package else None,
            "description": preset.description,
        }
        for preset in presets
    ]
    columns = ["name", "layers", "heads", "kv_heads", "context", "source"]
    cells = [[str(row[name]) for name in columns] for row in rows]
    note = f"Other models: a local folder or hub id of type {', '.join(TESTED_TYPES)}."
    emit(
        {"presets": rows, "model_types": list(TESTED_TYPES)},
        lambda console: console.print(table("model presets", columns, cells), "\n" + note),
        output,
    )
