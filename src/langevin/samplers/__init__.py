"""The samplers and their registry.

To add a sampler, add a file with its class under `@SAMPLERS.register` and one import below. `lv.NAME`, the command
line, the citation, the contract tests, the support table, the gold benchmark and the API page follow from the registry.
"""

from langevin.samplers.atmc import ATMC as ATMC
from langevin.samplers.base import SAMPLERS as SAMPLERS
from langevin.samplers.base import Group as Group
from langevin.samplers.base import Sampler as Sampler
from langevin.samplers.batch_temperature import batch_size_for as batch_size_for
from langevin.samplers.batch_temperature import temperature_of as temperature_of
from langevin.samplers.bnpsgld import BNPSGLD as BNPSGLD
from langevin.samplers.fsgd import FSGD as FSGD
from langevin.samplers.hmc import HMC as HMC
from langevin.samplers.ksgld import KSGLD as KSGLD
from langevin.samplers.mams import MAMS as MAMS
from langevin.samplers.mclmc import MCLMC as MCLMC
from langevin.samplers.nld import NLD as NLD
from langevin.samplers.psgld import pSGLD as pSGLD
from langevin.samplers.sgd import SGD as SGD
from langevin.samplers.sghmc import SGHMC as SGHMC
from langevin.samplers.sgld import SGLD as SGLD
from langevin.samplers.sgnht import SGNHT as SGNHT
from langevin.samplers.sngd import SNGD as SNGD
