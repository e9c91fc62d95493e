# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_serve.contract import Engine as Engine
from gym_serve.contract import Grammar as Grammar
from gym_serve.contract import Limits as Limits
from gym_serve.contract import ModelSource as ModelSource
from gym_serve.contract import Piece as Piece
from gym_serve.contract import Request as Request
from gym_serve.contract import Sampling as Sampling
from gym_serve.contract import ServedModel as ServedModel
from gym_serve.contract import TokenLogprob as TokenLogprob
from gym_serve.contract import Usage as Usage
from gym_serve.errors import BadRequest as BadRequest
from gym_serve.errors import Full as Full
from gym_serve.errors import Gone as Gone
from gym_serve.errors import RequestError as RequestError
from gym_serve.errors import TooLong as TooLong
from gym_serve.errors import Unknown as Unknown
from gym_serve.kinds import Server as Server

__version__: str
