#!/usr/bin/env python3
"""Makes cases.json: chat templates, messages, and the texts that Jinja makes of them as the libraries of models set it up.

    pip install jinja2 && python3 make.py
"""

import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = pathlib.Path(__file__).parent


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = refuse
    return env


MODELS = {
    "turns": """{%- for m in messages %}
    {%- if loop.first and m.role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif -%}
    {{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "instructions": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must take turns') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}""",
    "tools": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- set ns = namespace(last=0, multi=true) %}
{%- for m in messages[::-1] %}
    {%- set at = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and m.role == "user" and not(m.content.startswith('<r>') and m.content.endswith('</r>')) %}
        {%- set ns.multi = false %}
        {%- set ns.last = at %}
    {%- endif %}
{%- endfor %}
Date: {{ date_string }} last: {{ ns.last }}
{%- if tools %}
    {{- "\\n# Tools\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ "\\n" if not loop.last }}
        {{- tool.function.parameters.properties | tojson(indent=2) }}
        {%- for name, p in tool.function.parameters.properties.items() if p.type is string %}
{{ name }}: {{ p.type }}{% if name in tool.function.parameters.required %} (needed){% endif %}{{ ", " if not loop.last else "." }}
        {%- endfor %}
    {%- endfor %}
{%- endif %}
{%- for m in messages %}
    {%- if m.content is string %}
        {%- set content = m.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if m.role == "assistant" and m.tool_calls %}
        {%- for call in m.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{% endif %}
            {%- set call = call.function if call.function else call %}
            {{- '<call>{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}
            {{- '}</call>' }}
        {%- endfor %}
    {%- elif m.role == "tool" %}
        {{- "<result>" + content + "</result>" }}
    {%- else %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- "\\n" + m.role|upper + ": " + content }}
    {%- endif %}
{%- endfor %}
""",
    "parts": """{% macro part(p, names=none) -%}
{%- if p is mapping -%}
  {%- if p.type == 'image' -%}<image>{%- else -%}{{ p.text | trim }}{%- endif -%}
{%- elif p is iterable and p is not string -%}
  {%- for x in p -%}{{ part(x) }}{%- endfor -%}
{%- else -%}{{ p | trim }}{%- endif -%}
{%- endmacro %}
{% for message in messages %}
{%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
<start_of_turn>{{ role }}
{{ part(message['content']) }}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
}
TALKS = [
    [{"role": "user", "content": " Hi "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 < 2?\n"}, {"role": "assistant", "content": "<think>hm\n</think>\n\nTrue. "},
     {"role": "user", "content": "日本 \"quoted\" 'it' é"}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "get", "arguments": {"city": "Köln", "days": 2, "x": [1.5, None, True]}}},
        {"name": "other", "arguments": "{}"}]}, {"role": "tool", "content": "<r>4 °C</r>"}],
    [{"role": "user", "content": [{"type": "text", "text": " look "}, {"type": "image"}]}],
    [],
]
TOOLS = [{"type": "function", "function": {"name": "get", "description": "Gets <it>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "enum": [1, 2]}, "any": {"type": ["string", "null"]}},
    "required": ["city"]}}}]
PLAIN = {"bos_token": "<s>", "eos_token": "</s>", "x": 3, "y": -7, "f": 2.5, "t": "Hello wOrld", "l": [3, 1, 2, 1], "d": {"b": 1, "a": [1, 2], "items": 5},
         "n": None, "people": [{"name": "Ann", "age": 30}, {"name": "bob", "age": 25}, {"name": "Cy"}], "e": [], "s": "  a,b , c  "}
SNIPPETS = r"""
{{ x + y }} {{ x * y }} {{ x / 2 }} {{ y // 2 }} {{ y % 3 }} {{ x ** 2 }} {{ f * 2 }} {{ 1e3 if false else 10 }} {{ -x }} {{ -x ** 2 }} {{ f // 1 }}
{{ x < 5 < 10 }} {{ 1 < x and x < 2 or y }} {{ not x }} {{ not x == 3 }} {{ x != 3 }} {{ x >= 3 }} {{ 2 in l }} {{ 'ell' in t }} {{ 'b' in d }} {{ 9 not in l }}
{{ l }} {{ d }} {{ n }} {{ true }} {{ [1.0, 'a', "it's", none, {'k': (1, 2)[0]}] }} {{ () | list }} {{ t ~ x ~ f ~ n }}
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[:-1] }} {{ t[::2] }} {{ t[1:4] }} {{ t[-3:] }} {{ l[5:] }} {{ l[3:0:-1] }} {{ d.b }} {{ d['b'] }} {{ d['items'] }} {{ d.a[1] }} {{ d.zzz }} {{ l[10] }}
{{ t | upper }} {{ t | lower }} {{ t | title }} {{ t | capitalize }} {{ t | length }} {{ l | length }} {{ t | replace('o', '0') }} {{ t | replace('o', '0', 1) }} {{ t | first }} {{ l | last }} {{ s | trim }}
{{ l | sort }} {{ l | sort(reverse=true) }} {{ l | unique | list }} {{ l | reverse | list }} {{ t | reverse }} {{ l | sum }} {{ l | max }} {{ l | min }} {{ l | join('-') }} {{ l | join }} {{ people | map(attribute='name') | join(', ') }}
{{ people | selectattr('age', 'defined') | map(attribute='name') | list }} {{ people | rejectattr('age') | list }} {{ l | select('odd') | list }} {{ l | reject('equalto', 1) | list }} {{ l | map('string') | list }} {{ people | sort(attribute='name') | map(attribute='name') | list }}
{{ d | dictsort | map('first') | list }} {{ d | items | map('last') | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 7) }} {{ '3' | int + 1 }} {{ '2.5' | float }} {{ 'q' | int(4) }} {{ 3.7 | int }} {{ f | round }} {{ 2.567 | round(2) }} {{ y | abs }}
{{ missing | default('m') }} {{ e | default('m', true) }} {{ n | default('m') }} {{ missing is defined }} {{ x is defined }} {{ n is none }} {{ t is string }} {{ d is mapping }} {{ l is sequence }} {{ x is number }} {{ f is float }} {{ x is integer }} {{ true is boolean }} {{ x is odd }} {{ x is divisibleby 3 }} {{ x is not none }} {{ x is eq 3 }} {{ 1 is in l }} {{ e is iterable }}
{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s.split(',') }}|{{ s.split() }}|{{ s.strip().split(',', 1) }}|{{ s.rsplit(',', 1) }}|{{ t.find('o') }}|{{ t.count('o') }}|{{ t.startswith('He') }}|{{ t.endswith(('x', 'ld')) }}|{{ 'xxaxx'.strip('x') }}|{{ t.title() }}|{{ ', '.join(['a', 'b']) }}|{{ t.upper() }}|{{ t.replace('l', 'L') }}|{{ 'a\nb'.splitlines() }}|{{ '12'.isdigit() }}
{% for i in range(3) %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %} {% for i in range(2, 8, 3) %}{{ i }} {{ loop.index }} {{ loop.revindex }} {{ loop.length }};{% endfor %}{% for i in e %}x{% else %}empty{% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}
{% for i in l if i > 1 %}{{ loop.index }}:{{ i }} {{ loop.previtem }} {{ loop.nextitem }};{% endfor %}{% for i in l %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}{% for c in 'ab' %}{{ loop.cycle('x', 'y') }}{{ c }}{% endfor %}
{% set a = 1 %}{% for i in l %}{% set a = a + i %}{% endfor %}{{ a }}{% set ns = namespace(v=0) %}{% for i in l %}{% set ns.v = ns.v + i %}{% endfor %}{{ ns.v }}{% set p, q = 1, 2 %}{{ p }}{{ q }}{% set b %}block {{ x }}{% endset %}[{{ b }}]{% set b | upper %}block{% endset %}[{{ b }}]
{% macro m(a, b=2, c='z') %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(1, 2, 3) }}{{ m() }}{% filter upper %}shout {{ t }}{% endfilter %}
{% if x > 5 %}a{% elif x > 2 %}b{% else %}c{% endif %}{% if e %}a{% else %}b{% endif %}{{ 'yes' if x else 'no' }}{{ 'only' if not x }}{{ 'a' if x == 1 else 'b' if x == 2 else 'c' }}
{{ d | tojson }} {{ "é\"\n</s>" | tojson }} {{ people | tojson(indent=2) }} {{ [] | tojson }} {{ {} | tojson(indent=4) }} {{ 1.0 | tojson }} {{ none | tojson }}
{{ "a" "b" }} {{ 'it\'s' }} {{ "tab\there" }} {{ '\u00e9' }} {{ '\\n' }} {# comment #}x {#- c -#} y {{- ' z ' -}} w
  {% if true %}  
  kept {{ x }}
  {% endif %}
tail
a
  {%- if true -%}
   b   
  {%- endif +%}
  c
{%+ if true %} d {% endif %}
  {# gone #}
  e
{% raw %}{{ not this }}{% endraw %} {{ "{{" }} {{ '%}' }}
{{ t | indent(2) }} {{ 'a\n\nb' | indent(2, true) }} {{ 'a<b>&"' | escape }} {{ [[1, 2], [3, 4]] | map('first') | list }} {{ 5 | string ~ 'x' }} {{ l | list | length }} {{ dict(a=1, b=2) }} {{ x.__class__ is defined }}
{{ missing.field }}
{{ 1 / 0 }}
{{ t.nothing() }}
{{ raise_exception('no ' + t) }}
{{ 1 + 'a' }}
{% if x %}
{{ x
{% unknown %}
{{ l | nofilter }}
{{ x is notest }}
{% endfor %}
"""


def main():
    env = environment()
    cases = []

    def add(source, messages, variables, prompt=True):
        try:
            text = env.from_string(source).render(messages=messages, add_generation_prompt=prompt, **{"tools": None, "documents": None, **variables})
        except Exception:
            text = None
        cases.append({"template": source, "messages": messages, "variables": variables, "prompt": prompt, "text": text})

    for source in MODELS.values():
        for talk in TALKS:
            for tools in (None, TOOLS):
                add(source, talk, {"bos_token": "<s>", "eos_token": "</s>", **({"tools": tools} if tools else {})}, prompt=tools is None)
    lines = SNIPPETS.strip("\n").split("\n")
    for line in lines:
        add(line, [], PLAIN)
    for at in range(len(lines) - 4):
        if "{%" in lines[at]:
            add("\n".join(lines[at:at + 4]) + "\n", [], PLAIN)
    add(SNIPPETS[:SNIPPETS.index("{{ missing.field")], [], PLAIN)
    (FOLDER / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")
    return cases


if __name__ == "__main__":
    main()
