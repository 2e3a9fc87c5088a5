"""Takes secrets out of what a host's log says, before a line of it gets into a task log, an XCom or a terminal."""

import re

MASK = "***"

_SECRET = re.compile(
    r"""(?x)
    \b hf_[A-Za-z0-9]{16,}                                  # Hugging Face
  | \b sk-[A-Za-z0-9_-]{16,}                                # OpenAI-like API keys
  | (?<= Bearer\ ) [^\s'"]+
  | (?<= --api-key[ =] ) [^\s'"]+
  | (?<= --hf-token[ =] ) [^\s'"]+
  | (?<= 'api_key':\ ) \[?'[^']*'\]?                        # vLLM prints its arguments like this
  | (?<= 'hf_token':\ ) '[^']*'
  | (?<= API_KEY= ) [^\s'"]+ | (?<= HF_TOKEN= ) [^\s'"]+ | (?<= HUB_TOKEN= ) [^\s'"]+
  | (?<= ://) [^\s/@:]+ : [^\s/@]+ (?= @)                   # user:password in an address
  | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*
    """
)


def redact(text: str) -> str:
    return _SECRET.sub(MASK, text)
