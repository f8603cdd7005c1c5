"""The rules of submit: a request in, the rewritten request and its explanation out; nothing here touches the world."""

from pyhetsched.submit.decide import decide
from pyhetsched.submit.guard import decide_modify
from pyhetsched.submit.policy import SubmitPolicy

__all__ = ["SubmitPolicy", "decide", "decide_modify"]
