"""Echo for PyTorch. Importing it registers the c10d backend "echo" and the operators torch.ops.echo.

    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",), backend_override={"tp": "echo"})
    parallelize_module(model, mesh, plan)
    attach(model, mesh.get_group("tp"))

Read on in backend.py (what is coded and what is forwarded), inner.py (who carries the rest), passes.py (where feedback
begins and ends), gradients.py (where gradients are summed), ddp.py (data parallelism), route.py (how the bytes travel),
work.py (started calls) and ops.py (the codec as operators).
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("echo_comm.torch needs PyTorch >= 2.11: pip install 'echo-comm[torch]'")

from echo_comm.torch import ops
from echo_comm.torch.backend import EchoProcessGroup, Options, exact, register, wrap
from echo_comm.torch.config import EchoConfig
from echo_comm.torch.ddp import DDPState, ddp_hook
from echo_comm.torch.gradients import PlacementError, copy_to_ranks, sum_gradients, sum_over_ranks
from echo_comm.torch.passes import Attachment, PostNormError, attach
from echo_comm.torch.stats import Stats

register()

__all__ = [
    "Attachment",
    "DDPState",
    "EchoConfig",
    "EchoProcessGroup",
    "Options",
    "PlacementError",
    "PostNormError",
    "Stats",
    "attach",
    "copy_to_ranks",
    "ddp_hook",
    "exact",
    "ops",
    "register",
    "sum_gradients",
    "sum_over_ranks",
    "wrap",
]
