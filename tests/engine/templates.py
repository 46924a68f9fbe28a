"""Chat templates that write calls of tools in the forms of well-known models, and some that cannot."""

_TOOLS = "{% if tools %}Tools: {% for tool in tools %}{{ tool.function | tojson }} {% endfor %}{% endif %}"

HERMES = (
    _TOOLS
    + """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}{% if not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {% if call.function.arguments is string %}\
{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
)
LLAMA = (
    _TOOLS
    + """{% for message in messages %}[{{ message.role }}] {{ message.content }}{% for call in message.tool_calls or [] %}\
{% if not loop.first %}; {% endif %}{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}\
{% endfor %}<|eot|>{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"""
)
MISTRAL = (
    _TOOLS
    + """{% for message in messages %}[{{ message.role }}]{{ message.content }}{% if message.tool_calls %}[TOOL_CALLS][\
{% for call in message.tool_calls %}{% if not loop.first %}, {% endif %}{"name": "{{ call.function.name }}", "arguments": \
{{ call.function.arguments | tojson }}}{% endfor %}]{% endif %}</s>{% endfor %}\
{% if add_generation_prompt %}[assistant]{% endif %}"""
)
PLAIN = """{% for message in messages %}[{{ message.role }}] {{ message.content }}<|eot|>{% endfor %}\
{% if add_generation_prompt %}[assistant] {% endif %}"""
PYTHONIC = (
    _TOOLS
    + """{% for message in messages %}[{{ message.role }}] {{ message.content }}{% for call in message.tool_calls or [] %}\
{{ call.function.name }}({% for name, value in call.function.arguments.items() %}{{ name }}={{ value }}{% endfor %})\
{% endfor %}<|eot|>{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"""
)
NAMELESS = (
    _TOOLS
    + """{% for message in messages %}[{{ message.role }}] {{ message.content }}<|eot|>{% endfor %}\
{% if add_generation_prompt %}[assistant] {% endif %}"""
)
