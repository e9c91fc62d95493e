"""Makes the compiled code of a decoder layer: its forward and backward pass as two libraries, with its weights as inputs.

One trace of the layer holds both passes (AOTAutograd). It is cut in two so that little is kept in between (min-cut
rematerialization, arXiv:1604.06174 for the idea), and either part goes through AOTInductor. Sizes that vary from row to row
are symbols in it.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import compile_fx_aot
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gym_torch.compiled.layer_calls import Alike, Size, leaves, rebuilt, tensor_of
from gym_torch.compiled.layer_code import MANIFEST, UnfitError
from gym_torch.compiled.layer_description import Description
from gym_torch.compiled.layer_state import hooks_of
from gym_torch.kernels.shared_input_casts import LastCast
from gym_torch.rounding import rounding
from gym_torch.segment_spans import Spans

#: Sizes that vary are so many times those of the row that the code is compared on: what the compiler chooses by them, such as
#: how it sums, must be right for others too.
FURTHER = 5
_CHOICES = (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt)  #: what it, and nobody else, may ask about sizes
_TORCH = str(Path(torch.__file__).parent)
_WEIGHTS = (Tensor, nn.Parameter)
_VALUES = (bool, int, float, str, type(None))


def export(alike: Alike, precision: str, folder: Path) -> None:
    """Write the code of a layer into a folder. Raises UnfitError, and whatever a compiler may raise."""
    layer = _alone(alike.layers[0])
    given = dict(leaves(alike.given))
    tensors = {path: tensor_of(leaf) for path, leaf in given.items() if path in alike.sizes}
    values = {path: leaf for path, leaf in given.items() if path not in tensors}
    for path, value in values.items():
        if type(value) not in _VALUES:
            raise UnfitError(f"{type(layer).__name__} is given `{path.rpartition('/')[2]}`, a {type(value).__name__}")
    weights = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    inputs = [_given(mode, tensors[path], alike.sizes[path], path in alike.learns) for path in tensors]
    inputs += [_given(mode, part, list(part.shape), part.requires_grad) for part in weights.values()]

    def computed(*parts: Tensor) -> tuple[Tensor]:
        inside = dict(zip(weights, parts[len(tensors) :], strict=True))
        options = rebuilt(alike.given, dict(zip(tensors, parts, strict=False)))
        out = torch.func.functional_call(layer, inside, *options)
        if not isinstance(out, Tensor):
            raise UnfitError(f"{type(layer).__name__} returns more than hidden states")
        return (out,)

    learns = any(part.requires_grad for part in inputs)
    with _compiling(), rounding(torch.device("cpu"), precision):
        whole = aot_export_joint_simple(
            computed, tuple(inputs), trace_joint=learns, decompositions=select_decomp_table()
        )
    assert isinstance(whole, fx.GraphModule)
    names = [f"{name}-{uuid.uuid4().hex[:8]}.so" for name in ("forward", "backward")]
    told: dict[str, Any] = {"kept": [], "gradients": [], "libraries": [names[0], None]}
    forward = whole
    if learns:
        fakes = [node.meta["val"] for node in _nodes(whole, "placeholder")]
        with functorch_config.patch(recompute_views=True):
            forward, backward = min_cut_rematerialization_partition(whole, fakes, num_fwd_outputs=1)
        told = {"kept": _cut(forward, backward), "gradients": _only_tensors(backward), "libraries": names}
        _compile(backward, folder / names[1])
    _compile(forward, folder / names[0])
    for guard in environment.guards:
        where = guard.sloc.framework_loc
        if type(guard.expr) not in _CHOICES or not getattr(where, "filename", "").startswith(_TORCH):
            raise UnfitError(f"{type(layer).__name__} computes otherwise for other sizes: {guard.expr}")
    told |= {
        "precision": precision,
        "values": values,
        "weights": [[name, list(one.shape), str(one.dtype), one.requires_grad] for name, one in weights.items()],
        "tensors": {
            path: {
                "spans": type(given[path]) is Spans,
                "dtype": str(tensor.dtype),
                "sizes": alike.sizes[path],
                "learns": path in alike.learns,
            }
            for path, tensor in tensors.items()
        },
    }
    (folder / MANIFEST).write_text(json.dumps(told), encoding="utf-8")


def _alone(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer in training, without what is put around it. Raises UnfitError where it has what no code tells."""
    description = Description()
    description.layer(layer)
    if description.strange:
        raise UnfitError(f"{type(layer).__name__} holds what cannot be named: {', '.join(sorted(description.strange))}")
    copied: Any = deepcopy(layer).train()
    for hooks in hooks_of(copied):
        hooks.clear()
    copied.gradient_checkpointing = False  # the code that runs sees to it
    for name, part in copied.named_modules():
        if not all(type(hook) is LastCast for hooks in hooks_of(part) for hook in hooks.values()):
            raise UnfitError(f"a hook looks on in `{name}` of {type(layer).__name__}")
    strange = [part for part in [*copied.parameters(), *copied.buffers()] if type(part) not in _WEIGHTS]
    if strange:
        raise UnfitError(f"{type(layer).__name__} has weights of the class {type(strange[0]).__name__}")
    found: nn.Module = copied
    return found


def _given(mode: FakeTensorMode, tensor: Tensor, sizes: list[Size], learns: bool) -> Tensor:
    kinds = [DimDynamic.DUCK if type(size) is str else DimDynamic.STATIC for size in sizes]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)  # type: ignore[call-arg]
    like = tensor.new_empty([FURTHER * int(size[1:]) if isinstance(size, str) else size for size in sizes])
    return mode.from_tensor(like, symbolic_context=context).requires_grad_(learns)


@contextmanager
def _compiling() -> Iterator[None]:
    """Have the parts of a model know that what they compute is being compiled."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _nodes(graph: fx.GraphModule, kind: str) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == kind]


def _returned(graph: fx.GraphModule) -> list[Any]:
    (output,) = _nodes(graph, "output")
    return list(output.args[0])  # type: ignore[arg-type]


def _return(graph: fx.GraphModule, nodes: list[fx.Node]) -> None:
    (output,) = _nodes(graph, "output")
    output.args = (tuple(nodes),)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _cut(forward: fx.GraphModule, backward: fx.GraphModule) -> list[int | None]:
    """Have the forward pass return what only it has, and return which inputs the backward pass is given, or None for those."""
    out, *kept = _returned(forward)
    numbers = {node: number for number, node in enumerate(_nodes(forward, "placeholder"))}
    tensors = [node for node in kept if isinstance(node.meta["val"], Tensor)]
    _return(forward, [out, *(node for node in tensors if node not in numbers)])
    given = _nodes(backward, "placeholder")
    shaped = [node for node in given if isinstance(node.meta["val"], Tensor)]
    for node in given:
        if node not in shaped:  # a size, which one of the tensors tells
            _read_from(backward, node, shaped)
    backward.recompile()
    return [numbers.get(node) for node in tensors]


def _read_from(graph: fx.GraphModule, size: fx.Node, tensors: list[fx.Node]) -> None:
    wanted = size.meta["val"].node.expr
    places = [
        (node, place)
        for node in tensors
        for place, found in enumerate(node.meta["val"].shape)
        if isinstance(found, torch.SymInt) and found.node.expr == wanted
    ]
    if not places:
        raise UnfitError(f"the size {wanted} is not that of a tensor")
    with graph.graph.inserting_after(tensors[-1]):
        read = graph.graph.call_function(torch.ops.aten.sym_size.int, places[0])
    read.meta["val"] = size.meta["val"]
    size.replace_all_uses_with(read)
    graph.graph.erase_node(size)


def _only_tensors(backward: fx.GraphModule) -> list[int]:
    """Have the backward pass return gradients alone, and return the numbers of the inputs that they are of."""
    found = _returned(backward)
    numbers = [number for number, node in enumerate(found) if node is not None]
    _return(backward, [found[number] for number in numbers])
    return numbers


def _compile(graph: fx.GraphModule, file: Path) -> None:
    """Write a graph as a library, and beside it what it asks of torch by name."""
    fakes = [node.meta["val"] for node in _nodes(graph, "placeholder")]
    with tempfile.TemporaryDirectory(dir=file.parent) as folder, torch.no_grad():
        made = Path(folder, file.name)
        compile_fx_aot(
            graph,
            fakes,
            config_patches={
                "aot_inductor.output_path": str(made),
                "aot_inductor.compile_wrapper_opt_level": "O0",
                "aot_inductor.precompile_headers": False,
            },
        )
        made.replace(file)
        for asked in Path(folder).glob("*.wrapper.json"):
            asked.replace(file.with_suffix(".json"))
