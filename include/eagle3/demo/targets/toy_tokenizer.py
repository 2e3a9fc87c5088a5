"""The tokenizer of the toy targets: byte-level BPE over the grammar, digits apart. Runs on the GPU host.

Any text encodes (bytes are the floor). The thinking tags are added tokens but not special ones, as in Qwen3: a
server that skips special tokens still shows them to its reasoning parser.
"""

from itertools import islice

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from eagle3.demo.targets.grammar import examples

VOCAB_SIZE = 640
MAX_POSITIONS = 1024
THINKING_TAGS = ("<think>", "</think>")
CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """The same tokenizer at every call: it is trained on a fixed corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(THINKING_TAGS),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = (f"{e.question}\n{e.reasoning}\n\n{e.answer}" for e in islice(examples(seed=0), 3000))
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False) for tag in THINKING_TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
