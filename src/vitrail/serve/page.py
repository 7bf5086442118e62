"""HTML pages: a form to try the model, and the API documentation. They fetch nothing from outside."""

from collections.abc import Iterator
from html import escape
from typing import Any

from vitrail.export.engine import Engine
from vitrail.serve.settings import MEBIBYTE, Serving

HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Vitrail</title><style>
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
code,pre{font:14px/1.5 ui-monospace,monospace}pre{white-space:pre-wrap;padding:.6rem;border:1px solid #8886;border-radius:4px}
pre,#out{overflow-wrap:anywhere}table{border-collapse:collapse}td{padding:.15rem .8rem .15rem 0;vertical-align:top}
button,input{font:inherit;max-width:100%}#out img{display:block;max-width:100%;max-height:28rem;margin-top:1rem}
h2{margin:3rem 0 0}h2 code{font-size:1.3rem;font-weight:600}h3{font-size:1rem;margin:1rem 0 .2rem}
.fixed td:first-child,#out td+td{white-space:nowrap}#out td+td{text-align:right}#out p{margin:0}
</style>"""
SCRIPT = """<script>
const form=document.forms[0],out=document.querySelector("#out"),pre=document.querySelector("pre");
pre.textContent=pre.textContent.replaceAll("http://HOST",location.origin);
function add(kind,words){const made=document.createElement(kind);made.textContent=words;out.append(made);return made}
form.addEventListener("submit",async event=>{
  event.preventDefault();out.textContent="...";
  const body=new FormData();for(const file of form.files.files)body.append("files",file);
  const headers=form.token&&form.token.value?{Authorization:"Bearer "+form.token.value}:{};
  try{
    const answer=await fetch("/predict",{method:"POST",body,headers}),said=await answer.json();
    const rows=said.predictions||said.images;out.textContent=rows?"":said.error;
    for(const one of rows||[]){
      add("h3",one.file);if(one.error){add("p",one.error);continue}
      const table=add("table","");for(const guess of one.top){const line=table.insertRow();
        line.insertCell().textContent=guess.label;line.insertCell().textContent=(100*guess.probability).toFixed(2)+" %"}}
    if(form.explain.checked&&form.files.files.length===1&&answer.ok){
      const file=form.files.files[0],map=await fetch("/explain",{method:"POST",body:file,
        headers:{...headers,Accept:"image/png","Content-Type":file.type||"application/octet-stream"}});
      if(map.ok){const image=add("img","");image.src=URL.createObjectURL(await map.blob());image.alt="saliency map"
        }else add("p",(await map.json()).error)}
  }catch(error){out.textContent=error}
});
</script>"""


def front_page(engine: Engine | None, source: str, how: Serving) -> str:
    """Return the page with the model's name and a form to classify images."""
    what = "A Vision Transformer that classifies images."
    if engine is not None:
        what = f"{source}: {len(engine.labels):,} classes, served with {engine.name}."
    token = "<p><label>Token <input type=password name=token></label>" if how.token else ""
    shown = '-H "Authorization: Bearer TOKEN" ' if how.token else ""
    pixels = f"{how.max_pixels / 1e6:,.3g} million" if how.max_pixels >= 1e6 else f"{how.max_pixels:,}"
    limits = f"Up to {how.max_body / MEBIBYTE:,.3g} MiB per request and {pixels} pixels per image."
    return f"""{HEAD}<h1>Vitrail</h1><p>{escape(what)}
<form>{token}<p><input type=file name=files accept="image/*" multiple required>
<p><label><input type=checkbox name=explain> show a saliency map</label><p><button>Predict</button></form>
<div id=out></div><p>{limits} From a program:
<pre>curl {shown}--data-binary @cat.jpg -H "Content-Type: image/jpeg" http://HOST/predict

curl {shown}-F files=@cat.jpg -F files=@dog.jpg http://HOST/predict</pre>
<p><a href="/docs">API documentation</a>, <a href="/openapi.json">OpenAPI schema</a>.{SCRIPT}"""


def docs_page(schema: dict[str, Any]) -> str:
    """Return the OpenAPI schema as plain HTML."""
    links = "<a href='/'>Try an image</a>, or get the OpenAPI schema: <a href='/openapi.json'>openapi.json</a>."
    return f"{HEAD}<h1>Vitrail</h1><p>{links}" + "".join(_paths(schema))


def _paths(schema: dict[str, Any]) -> Iterator[str]:
    named = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for method, what in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield "".join(f"<p>{escape(part.replace('``', ''))}" for part in what.get("description", "").split("\n\n"))
            asked = [
                (f"?{one['name']}=", _kind(one["schema"], named), one.get("description", ""))
                for one in what.get("parameters", ())
            ]
            asked += [("body", kind, "") for kind in what.get("requestBody", {}).get("content", ())]
            yield _table("Request", asked)
            yield _table("Responses", [(status, _kinds(one), one["description"]) for status, one in what["responses"].items()])
    yield "<h2>Schemas</h2>"
    for name, shape in named.items():
        if "enum" in shape:  # listed with its parameter
            continue
        rows = [(field, _kind(one), one.get("description", "")) for field, one in shape.get("properties", {}).items()]
        yield f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(shape.get('description', ''))}{_table('', rows)}"


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (f"<h3>{title}</h3>" if title else "") + f"<table class=fixed>{cells}</table>" if rows else ""


def _kinds(answer: dict[str, Any]) -> str:
    return ", ".join(_kind(one["schema"]) if kind.endswith("json") else kind for kind, one in answer.get("content", {}).items())


def _kind(schema: dict[str, Any], named: dict[str, Any] | None = None) -> str:
    """Return the type of a schema: integer, PredictResponse, list of ImageError ...; for an enum in ``named``, its values."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        shape = (named or {}).get(name, {})
        return _kind(shape) if "enum" in shape else name
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("type", "anything"))
